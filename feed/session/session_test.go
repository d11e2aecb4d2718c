package session_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/millrace/millrace/feed/feedtest"
	"github.com/millrace/millrace/feed/fetch"
	"github.com/millrace/millrace/feed/session"
	"github.com/millrace/millrace/feed/session/deal"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/partition"
	feedv1 "github.com/millrace/millrace/proto/millrace/feed/v1"
	workerv1 "github.com/millrace/millrace/proto/millrace/worker/v1"
)

// rig is a table between a fake dispatcher and a store, in a bubble of synctest.
type rig struct {
	t          *testing.T
	dispatcher *feedtest.FakeDispatcher
	table      *session.Table
	queue      *fetch.Queue
	pool       *partition.Pool
	store      *slowStore
}

// slowStore is a fetcher that can be held up.
type slowStore struct {
	partition.Fetcher

	broken atomic.Pointer[error]
}

func (s *slowStore) Fetch(ctx context.Context, t partition.Ticket, fn func(int, arrow.RecordBatch) error) error {
	if err := s.broken.Load(); err != nil {
		return *err
	}
	return s.Fetcher.Fetch(ctx, t, fn)
}

func run(t *testing.T, test func(*rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		data := feedtest.Data{NumRows: 37, PartitionRows: 5, TensorBytes: 64}
		store, err := data.Store("job", 2)
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		r := &rig{
			t: t, dispatcher: &feedtest.FakeDispatcher{Data: data, Epochs: 2, Address: "local:w"}, pool: partition.NewPool(1 << 20),
			store: &slowStore{Fetcher: partition.Local(store)},
		}
		l := bufconn.Listen(1 << 20)
		server := grpc.NewServer()
		r.dispatcher.Register(server)
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = server.Serve(l)
		}()
		conn, err := grpc.NewClient("passthrough:///dispatcher", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
		if err != nil {
			t.Fatal(err)
		}
		logger := slog.New(slog.DiscardHandler)
		r.queue, err = fetch.NewQueue(fetch.Config{
			BudgetBytes: 1 << 20, Pool: r.pool, Local: map[string]partition.Fetcher{"local:w": r.store}, Logger: logger,
		})
		if err != nil {
			t.Fatal(err)
		}
		r.table, err = session.NewTable(session.Config{
			Sidecar: "s", Client: feedv1.NewFeedServiceClient(conn), Queue: r.queue, Pool: r.pool, BudgetBytes: 1 << 20, Logger: logger,
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{}, 2)
		go func() { r.queue.Run(ctx); ended <- struct{}{} }()
		go func() { r.table.Run(ctx); ended <- struct{}{} }()

		test(r)

		cancel()
		<-ended
		<-ended
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		server.Stop()
		<-served
		if err := r.pool.Close(); err != nil || r.queue.Used() != 0 {
			t.Errorf("%v, %d bytes are still accounted for", err, r.queue.Used())
		}
	})
}

func request() session.OpenRequest {
	return session.OpenRequest{
		Job: "job", Recipe: []byte("x"), Rank: 0, WorldSize: 1,
		Settings: session.Settings{Shuffle: "block", GlobalBatch: 8, Accumulation: 1, Tail: "pad", OnError: "raise", Prefetch: 2},
	}
}

func (r *rig) open(conn *session.Connection) string {
	r.t.Helper()
	o, err := r.table.Open(r.t.Context(), request(), conn)
	if err != nil {
		r.t.Fatal(err)
	}
	return o.Session
}

func (r *rig) stream(name string, pos deal.Position) *session.Stream {
	r.t.Helper()
	s, err := r.table.Stream(name, pos, session.NewConnection())
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// steps reads n batches and gives their steps.
func (r *rig) steps(s *session.Stream, n int) []int64 {
	r.t.Helper()
	var steps []int64
	for range n {
		b, err := s.Next(r.t.Context(), 1<<20)
		if err != nil {
			r.t.Fatal(err)
		}
		if label := as[*array.Int64](b.Record.Column(1)).Value(0); label != feedtest.Label(b.Epoch, b.Step*8) {
			r.t.Errorf("step %d of epoch %d begins with row %d", b.Step, b.Epoch, label)
		}
		steps = append(steps, b.Step)
		b.Record.Release()
		s.Consumed(b.Sequence)
	}
	return steps
}

// What peers get is put together once, and given back when the last of them has consumed it; none of them runs away from
// the others.
func TestPeersGetWhatIsMadeOnce(t *testing.T) {
	run(t, func(r *rig) {
		t := r.t
		var streams []*session.Stream
		for peer := range 3 {
			req := request()
			req.Peer, req.Peers = peer, 3
			o, err := r.table.Open(t.Context(), req, session.NewConnection())
			if err != nil {
				t.Fatal(err)
			}
			streams = append(streams, r.stream(o.Session, deal.Position{}))
		}
		place := func(b *session.Batch) *byte {
			return &b.Record.Column(1).Data().Buffers()[1].Bytes()[0]
		}
		var first []*session.Batch
		for range 2 {
			b, err := streams[0].Next(t.Context(), 2)
			if err != nil {
				t.Fatal(err)
			}
			first = append(first, b)
		}
		streams[0].Consumed(2)
		b, err := streams[0].Next(t.Context(), 2) // one more than the others may have, whom it waits for from now on
		if err != nil {
			t.Fatal(err)
		}
		first = append(first, b)
		streams[0].Consumed(3)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if b, err := streams[0].Next(ctx, 2); errkind.Of(err) != errkind.Canceled {
			t.Errorf("a peer ran away to %v, %v", b, err)
		}
		cancel()
		for _, s := range streams[1:] {
			for i, want := range first {
				b, err := s.Next(t.Context(), 2)
				if err != nil {
					t.Fatal(err)
				}
				if b.Step != int64(i) || place(b) != place(want) {
					t.Errorf("peers have step %d and step %d, in one place: %t", b.Step, want.Step, place(b) == place(want))
				}
				b.Record.Release()
				s.Consumed(b.Sequence + 1)
			}
		}
		for _, b := range first {
			b.Record.Release()
		}
		b, err = streams[0].Next(t.Context(), 2)
		if err != nil || b.Step != 3 {
			t.Fatalf("%+v, %v", b, err)
		}
		b.Record.Release()
		if members := r.table.Members(); len(members) != 1 || members[0].Rank != 0 {
			t.Errorf("three peers are listed as %+v", members)
		}
	})
}

// A stream that waits says for what, and a partition that cannot be had is named with its worker and the cause.
func TestWaitsHaveCauses(t *testing.T) {
	run(t, func(r *rig) {
		t := r.t
		lost := errkind.Errorf(errkind.NotFound, "worker w has lost it")
		r.store.broken.Store(&lost)
		s := r.stream(r.open(session.NewConnection()), deal.Position{})
		ctx, cancel := context.WithTimeout(t.Context(), 12*time.Second)
		defer cancel()
		_, err := s.Next(ctx, 1)
		for _, part := range []string{"rank 0 waits for partition 0/0 from worker worker", "worker w has lost it", "next try in"} {
			if err == nil || errkind.Of(err) != errkind.Canceled || !strings.Contains(err.Error(), part) {
				t.Errorf("after 12 s: %v; want it to say %q", err, part)
			}
		}
		if text := r.table.Waits()["job"]; !strings.Contains(text, "lost it") {
			t.Errorf("the table says %q", text)
		}
		r.store.broken.Store(nil)
		if got := r.steps(s, 5); !slices.Equal(got, []int64{0, 1, 2, 3, 4}) {
			t.Errorf("read steps %v", got)
		}
		if _, err := s.Next(t.Context(), 1); !errors.Is(err, io.EOF) {
			t.Errorf("the epoch ended in %v", err)
		}
	})
}

// What the dispatcher says of a long wait is passed on, and is gone when it takes it back.
func TestDispatchersReasonIsPassedOn(t *testing.T) {
	run(t, func(r *rig) {
		t := r.t
		r.dispatcher.Hold(true)
		s := r.stream(r.open(session.NewConnection()), deal.Position{})
		synctest.Wait()
		if text := s.Job().Waits(); !strings.Contains(text, "not sealed yet") {
			t.Errorf("at first: %q", text)
		}
		for _, text := range []string{"worker w7 reads shard 3, 503 SlowDown", ""} {
			r.dispatcher.Tell(&feedv1.AttachResponse{Message: &feedv1.AttachResponse_Waiting{Waiting: &feedv1.Waiting{Text: text}}})
			synctest.Wait()
			if got := s.Job().Waits(); text != "" && got != text || text == "" && strings.Contains(got, "SlowDown") {
				t.Errorf("the dispatcher says %q, the sidecar %q", text, got)
			}
		}
	})
}

// A partition that is placed again is fetched from its new place.
func TestPartitionsMove(t *testing.T) {
	run(t, func(r *rig) {
		t := r.t
		r.dispatcher.Address = "local:dead"
		s := r.stream(r.open(session.NewConnection()), deal.Position{})
		synctest.Wait()
		if text := s.Job().Waits(); !strings.Contains(text, "local:dead") {
			t.Errorf("waits for %q", text)
		}
		placed := &feedv1.Placed{Generation: 1}
		for source := range r.dispatcher.Data.Partitions() {
			placed.Placements = append(placed.Placements, &feedv1.Placement{
				Id: &workerv1.PartitionID{Source: uint64(source)}, FirstRow: source * 5, Rows: min(5, 37-source*5), Worker: "w", Address: "local:w",
			})
		}
		r.dispatcher.Tell(&feedv1.AttachResponse{Message: &feedv1.AttachResponse_Placed{Placed: placed}})
		if got := r.steps(s, 5); len(got) != 5 {
			t.Errorf("read steps %v", got)
		}
	})
}

// A new stream of a rank ends the one before, and a session that was closed ends its stream.
func TestOneStreamForEachRank(t *testing.T) {
	run(t, func(r *rig) {
		t := r.t
		name := r.open(session.NewConnection())
		old := r.stream(name, deal.Position{})
		r.steps(old, 1)
		s := r.stream(name, deal.Position{Step: 1, Row: 8})
		if _, err := old.Next(t.Context(), 1); errkind.Of(err) != errkind.Conflict {
			t.Errorf("the old stream ended in %v", err)
		}
		old.Consumed(100) // is of no effect
		if got := r.steps(s, 2); !slices.Equal(got, []int64{1, 2}) {
			t.Errorf("read steps %v", got)
		}
		r.table.Close(t.Context(), name)
		if _, err := s.Next(t.Context(), 1); errkind.Of(err) != errkind.Canceled {
			t.Errorf("the stream of a closed session ended in %v", err)
		}
		if _, err := r.table.Stream(name, deal.Position{}, nil); errkind.Of(err) != errkind.NotFound {
			t.Errorf("a closed session: %v", err)
		}
		if left := r.dispatcher.Left(); !slices.Equal(left, []uint32{0}) {
			t.Errorf("ranks that left: %v", left)
		}
	})
}

// A session without a connection stays for a while, for its client to come back, and then its rank leaves.
func TestSessionsOutliveConnectionsForAWhile(t *testing.T) {
	run(t, func(r *rig) {
		t := r.t
		conn := session.NewConnection()
		name := r.open(conn)
		r.table.Disconnected(conn)
		time.Sleep(20 * time.Second)
		s := r.stream(name, deal.Position{})
		r.steps(s, 1)
		time.Sleep(time.Hour)
		if r.table.Len() != 1 {
			t.Fatal("a session with a connection was closed")
		}
		other := session.NewConnection()
		if _, err := r.table.Stream(name, deal.Position{Step: 1, Row: 8}, other); err != nil {
			t.Fatal(err)
		}
		r.table.Disconnected(other)
		time.Sleep(time.Minute)
		if r.table.Len() != 0 || !slices.Equal(r.dispatcher.Left(), []uint32{0}) {
			t.Errorf("%d sessions; ranks that left: %v", r.table.Len(), r.dispatcher.Left())
		}
	})
}

// A trainer that was killed and starts again finds its rank free, even if the dispatcher hears of it late.
func TestRankComesBackAfterItsProcessDied(t *testing.T) {
	run(t, func(r *rig) {
		t := r.t
		conn := session.NewConnection()
		r.steps(r.stream(r.open(conn), deal.Position{}), 2)
		// The stream has made another connection the session's.
		name := r.open(conn)
		r.table.Disconnected(conn)
		r.dispatcher.Refuse(errkind.Errorf(errkind.Conflict, "rank 0 is already being served"))
		time.AfterFunc(500*time.Millisecond, func() { r.dispatcher.Refuse(nil) })
		again := r.open(session.NewConnection())
		if again == name || r.table.Len() != 1 {
			t.Errorf("session %s after %s, %d in all", again, name, r.table.Len())
		}
		if got := r.steps(r.stream(again, deal.Position{}), 2); !slices.Equal(got, []int64{0, 1}) {
			t.Errorf("read steps %v", got)
		}
		// A no that has another cause is final, after a while.
		r.dispatcher.Refuse(errkind.Errorf(errkind.Conflict, "ranks disagree"))
		time.Sleep(10 * time.Second)
		began := time.Now()
		if _, err := r.table.Open(t.Context(), request(), nil); errkind.Of(err) != errkind.Conflict || time.Since(began) > time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
	})
}

// A dispatcher that does not know the job any more ends it with its own words; opening it again begins anew.
func TestJobThatIsUnknownEnds(t *testing.T) {
	run(t, func(r *rig) {
		t := r.t
		name := r.open(session.NewConnection())
		s := r.stream(name, deal.Position{})
		r.steps(s, 1)
		r.dispatcher.Break(errkind.Errorf(errkind.NotFound, "there is no job \"job\"; open it first"))
		synctest.Wait()
		if _, err := s.Next(t.Context(), 1); errkind.Of(err) != errkind.NotFound {
			t.Errorf("the stream ended in %v", err)
		}
		if got := r.steps(r.stream(r.open(session.NewConnection()), deal.Position{}), 1); !slices.Equal(got, []int64{0}) {
			t.Errorf("read steps %v", got)
		}
	})
}

// While the dispatcher is away the stream waits and says so; what is ready is handed over all the same.
func TestDispatcherIsAway(t *testing.T) {
	run(t, func(r *rig) {
		t := r.t
		s := r.stream(r.open(session.NewConnection()), deal.Position{})
		r.steps(s, 1)
		synctest.Wait()
		for range 20 {
			r.dispatcher.Break(status.Error(codes.Unavailable, "restarting"))
			synctest.Wait()
		}
		if text := s.Job().Waits(); !strings.Contains(text, "dispatcher cannot be reached") || !strings.Contains(text, "restarting") {
			t.Errorf("waits for %q", text)
		}
		if got := r.steps(s, 4); !slices.Equal(got, []int64{1, 2, 3, 4}) {
			t.Errorf("read steps %v", got)
		}
	})
}

// A job whose batches do not fit is refused with the figures, and its rank is free to come again with a smaller one.
func TestJobsThatDoNotFitAreTurnedAway(t *testing.T) {
	run(t, func(r *rig) {
		t := r.t
		q := request()
		q.Settings.GlobalBatch = 1 << 16
		_, err := r.table.Open(t.Context(), q, session.NewConnection())
		if errkind.Of(err) != errkind.Exhausted || !strings.Contains(err.Error(), "4 batches of 65536 rows") || !strings.Contains(err.Error(), "budget is 1.0 MB") {
			t.Errorf("a batch that is too large: %v", err)
		}
		synctest.Wait()
		if left := r.dispatcher.Left(); !slices.Equal(left, []uint32{0}) || r.table.Len() != 0 {
			t.Errorf("%d sessions; ranks that left: %v", r.table.Len(), left)
		}
		if got := r.steps(r.stream(r.open(session.NewConnection()), deal.Position{}), 5); len(got) != 5 {
			t.Errorf("read steps %v", got)
		}
	})
}

// What does not make a session is refused before the dispatcher hears of it.
func TestRequestsAreChecked(t *testing.T) {
	run(t, func(r *rig) {
		t := r.t
		for name, change := range map[string]func(*session.OpenRequest){
			"job":    func(q *session.OpenRequest) { q.Job = "" },
			"recipe": func(q *session.OpenRequest) { q.Recipe = nil },
			"rank":   func(q *session.OpenRequest) { q.Rank = 1 },
			"tail":   func(q *session.OpenRequest) { q.Settings.Tail = "tial" },
			"batch":  func(q *session.OpenRequest) { q.Settings.GlobalBatch = 0 },
			"cursor": func(q *session.OpenRequest) { q.Cursor = strings.Repeat("x", 1<<20) },
		} {
			q := request()
			change(&q)
			if _, err := r.table.Open(t.Context(), q, nil); errkind.Of(err) != errkind.Invalid {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// as is v, which is known to be a T.
func as[T any](v any) T {
	t, ok := v.(T)
	if !ok {
		panic(fmt.Sprintf("%T is no %T", v, t))
	}
	return t
}
