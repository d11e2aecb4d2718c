package dispatch_test

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/millrace/millrace/internal/grpcerr"
	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/order"
	"github.com/millrace/millrace/loader/store"
	"github.com/millrace/millrace/loader/store/memstore"
	"github.com/millrace/millrace/preprocess/dispatch"
	feedv1 "github.com/millrace/millrace/proto/millrace/feed/v1"
	workerv1 "github.com/millrace/millrace/proto/millrace/worker/v1"
)

// harness is a dispatcher on an in-memory connection, over a source of numbered samples.
type harness struct {
	t    *testing.T
	ctx  context.Context //nolint:containedctx // It is the lifetime of the harness.
	d    *dispatch.Dispatcher
	conn *grpc.ClientConn
}

const textRecipe = `
source: mem://data/a.tar
fields: {label: cls}
partition: {samples: 4, block_samples: 4, window_blocks: 2, lanes: 1}
`

func newHarness(t *testing.T, samples int, planDir string) *harness {
	t.Helper()
	m := memstore.New()
	m.Put("a.tar", tarOf(t, samples))
	cache, err := dataset.NewCache(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	resolver := store.NewResolver(map[string]store.OpenFunc{"mem": memstore.Opener(map[string]*memstore.Store{"data": m})})
	d, err := dispatch.New(dispatch.Config{
		Version: "test", Resolver: resolver, Cache: cache, PlanDir: planDir, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	d.Register(server)
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(listener) })
	running.Go(func() { _ = d.Run(ctx) })
	conn, err := grpc.NewClient("passthrough:dispatcher", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = conn.Close()
		server.Stop()
		running.Wait()
		_ = resolver.Close()
	})
	return &harness{t: t, ctx: ctx, d: d, conn: conn}
}

func tarOf(t *testing.T, samples int) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for i := range samples {
		text := fmt.Sprint(i)
		if err := w.WriteHeader(&tar.Header{Name: fmt.Sprintf("s%04d.cls", i), Size: int64(len(text)), Mode: 0o600}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// request opens job "train" for a rank; edit changes what the test is about.
func request(rank, world int, edit func(*feedv1.OpenJobRequest)) *feedv1.OpenJobRequest {
	r := &feedv1.OpenJobRequest{
		Job: "train", Recipe: []byte(textRecipe), Rank: uint32(rank), WorldSize: uint32(world),
		Settings: &feedv1.Settings{
			Seed: 1, Shuffle: "block", GlobalBatch: 8, Tail: "pad", Accumulation: 1, OnError: "raise", Prefetch: 2,
		},
	}
	if edit != nil {
		edit(r)
	}
	return r
}

func (h *harness) open(r *feedv1.OpenJobRequest) (*feedv1.OpenJobResponse, error) {
	resp, err := feedv1.NewFeedServiceClient(h.conn).OpenJob(h.ctx, r)
	return resp, grpcerr.FromStatus(err)
}

func (h *harness) mustOpen(r *feedv1.OpenJobRequest) *feedv1.OpenJobResponse {
	h.t.Helper()
	resp, err := h.open(r)
	if err != nil {
		h.t.Fatal(err)
	}
	return resp
}

// attach is a sidecar's stream for job "train".
func (h *harness) attach(name string) feedv1.FeedService_AttachClient {
	h.t.Helper()
	stream, err := feedv1.NewFeedServiceClient(h.conn).Attach(h.ctx)
	if err != nil {
		h.t.Fatal(err)
	}
	h.send(stream, &feedv1.AttachRequest{Message: &feedv1.AttachRequest_Hello{Hello: &feedv1.Hello{Sidecar: name, Job: "train"}}})
	return stream
}

func (h *harness) send(stream feedv1.FeedService_AttachClient, m *feedv1.AttachRequest) {
	h.t.Helper()
	if err := stream.Send(m); err != nil {
		h.t.Fatal(err)
	}
}

func seek(rank int, p *feedv1.Position) *feedv1.AttachRequest {
	return &feedv1.AttachRequest{Message: &feedv1.AttachRequest_Seek{Seek: &feedv1.Seek{Seat: uint32(rank), Position: p}}}
}

func consumed(rank int, generation uint64, step int64) *feedv1.AttachRequest {
	return &feedv1.AttachRequest{Message: &feedv1.AttachRequest_Consumed{
		Consumed: &feedv1.Consumed{Seat: uint32(rank), Generation: generation, Step: step},
	}}
}

// fakeWorker makes every source partition as one output at once; its hash is the partition's number.
type fakeWorker struct {
	h      *harness
	name   string
	stream workerv1.WorkerService_ConnectClient
	cancel context.CancelFunc
	done   chan struct{}
	layout *workerv1.Layout
	slots  map[string]uint32
	python string // functions of users that it runs

	mu    sync.Mutex
	plan  *workerv1.JobPlan // the last
	runs  int
	freed int
	// hold, if set, keeps a task from being answered.
	hold func(*workerv1.SourceTask) bool
	// broken, if set, gives the text with which a task fails.
	broken func(*workerv1.SourceTask) string
	wrong  byte
}

func (h *harness) worker(name string, edit func(*fakeWorker)) *fakeWorker {
	h.t.Helper()
	ctx, cancel := context.WithCancel(h.ctx)
	stream, err := workerv1.NewWorkerServiceClient(h.conn).Connect(ctx)
	if err != nil {
		h.t.Fatal(err)
	}
	w := &fakeWorker{h: h, name: name, stream: stream, cancel: cancel, done: make(chan struct{}), slots: map[string]uint32{"cpu": 2}}
	if edit != nil {
		edit(w)
	}
	if err := stream.Send(&workerv1.ConnectRequest{Message: &workerv1.ConnectRequest_Register{Register: &workerv1.Register{
		Worker: name, DataAddress: "local:" + name, Slots: w.slots, BudgetBytes: 1 << 20, Version: "test", Python: w.python,
	}}}); err != nil {
		h.t.Fatal(err)
	}
	go w.serve()
	h.t.Cleanup(w.stop)
	return w
}

func (w *fakeWorker) stop() {
	w.cancel()
	<-w.done
}

func (w *fakeWorker) serve() {
	defer close(w.done)
	for {
		m, err := w.stream.Recv()
		if err != nil {
			return
		}
		switch {
		case m.GetPlan() != nil:
			w.layout = m.GetPlan().GetLayout()
			w.mu.Lock()
			w.plan = m.GetPlan()
			w.mu.Unlock()
		case m.GetRun() != nil:
			for _, task := range m.GetRun().GetTasks() {
				w.run(m.GetRun(), task)
			}
		case m.GetFree() != nil:
			w.mu.Lock()
			w.freed += len(m.GetFree().GetIds())
			w.mu.Unlock()
		}
	}
}

func (w *fakeWorker) run(run *workerv1.Run, task *workerv1.SourceTask) {
	w.mu.Lock()
	w.runs++
	w.mu.Unlock()
	if w.hold != nil && w.hold(task) {
		return
	}
	event := func(e *workerv1.Event) {
		e.Job, e.Generation = run.GetJob(), run.GetGeneration()
		_ = w.stream.Send(&workerv1.ConnectRequest{Message: &workerv1.ConnectRequest_Events{Events: &workerv1.Events{Events: []*workerv1.Event{e}}}})
	}
	if w.broken != nil {
		if text := w.broken(task); text != "" {
			event(&workerv1.Event{Event: &workerv1.Event_Failed{Failed: &workerv1.SourceFailed{
				Id: task.GetId(), Attempt: task.GetAttempt(), Kind: "bad_data", Text: text,
			}}})
			return
		}
	}
	k := w.layout.GetPartitionSamples()
	rows := min(k, w.layout.GetNumSamples()-int64(task.GetId().GetSource())*k)
	out := &workerv1.PartitionID{Epoch: task.GetId().GetEpoch(), Source: task.GetId().GetSource(), Path: []uint32{0}}
	hash := make([]byte, 16)
	hash[0], hash[1], hash[2] = byte(out.GetSource()), byte(out.GetEpoch()), w.wrong
	event(&workerv1.Event{Event: &workerv1.Event_Output{Output: &workerv1.OutputReady{
		Id: out, Attempt: task.GetAttempt(), Rows: rows, Bytes: rows * 100, ContentHash: hash,
	}}})
	event(&workerv1.Event{Event: &workerv1.Event_Done{Done: &workerv1.PartitionDone{Id: task.GetId(), Attempt: task.GetAttempt(), Outputs: 1}}})
}

// feed is what a sidecar learns, collected until a condition holds.
type feed struct {
	generation uint64
	start      *feedv1.Position
	placed     map[string]*feedv1.Placement // by id
	sealed     []*feedv1.Sealed
	ended      []*feedv1.EpochEnd
	failed     *feedv1.Failed
}

func collect(t *testing.T, stream feedv1.FeedService_AttachClient, f *feed, until func(*feed) bool) {
	t.Helper()
	if f.placed == nil {
		f.placed = map[string]*feedv1.Placement{}
	}
	for !until(f) {
		m, err := stream.Recv()
		if err != nil {
			t.Fatalf("stream ended: %v", err)
		}
		switch {
		case m.GetStarted() != nil:
			*f = feed{generation: m.GetStarted().GetGeneration(), start: m.GetStarted().GetPosition(), placed: map[string]*feedv1.Placement{}}
		case m.GetPlaced() != nil:
			for _, p := range m.GetPlaced().GetPlacements() {
				f.placed[fmt.Sprint(p.GetId().GetEpoch(), "/", p.GetId().GetSource())] = p
			}
		case m.GetSealed() != nil:
			f.sealed = append(f.sealed, m.GetSealed())
		case m.GetEpochEnd() != nil:
			f.ended = append(f.ended, m.GetEpochEnd())
		case m.GetFailed() != nil:
			f.failed = m.GetFailed()
		}
	}
}

func sealedSteps(n int) func(*feed) bool { return func(f *feed) bool { return len(f.sealed) >= n } }

func epochEnds(n int) func(*feed) bool { return func(f *feed) bool { return len(f.ended) >= n } }

func position(step, row int64) *feedv1.Position {
	return &feedv1.Position{Step: step, Row: row}
}

func cursorOf(t *testing.T, text string) order.Cursor {
	t.Helper()
	c, err := order.ParseCursor(text)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
