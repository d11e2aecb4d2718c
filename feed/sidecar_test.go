package feed_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/feed/feedtest"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/order"
)

// want is what a rank gets of an epoch from a step on, cut from the beginning.
func want(data feedtest.Data, batch int64, tail order.Tail, epoch uint64, from int64, rank, world, parts int) []got {
	b := order.Batching{GlobalBatch: batch, Tail: tail}
	var out []got
	steps := b.NumSteps(data.NumRows)
	for step := from; step < steps; step++ {
		first, _, _ := b.Step(data.NumRows, step)
		for part := range parts {
			g := got{epoch: epoch, step: uint64(step), part: uint32(part), next: uint64(first + batch), generation: 1, sequence: uint64(len(out))}
			if part == parts-1 {
				g.flags |= 2
				g.cursor = feedtest.Cursor(epoch, step)
				if step == steps-1 {
					g.flags |= 1
					g.next = 0
				}
			}
			for _, s := range b.RankRows(data.NumRows, step, part*world+rank, world*parts) {
				for i := range s.NumRows {
					g.rows = append(g.rows, gotRow{feedtest.Label(epoch, s.First+i), s.Valid})
				}
			}
			out = append(out, g)
		}
	}
	return out
}

func diff(a, b []got) string { return cmp.Diff(a, b, cmp.AllowUnexported(got{}, gotRow{})) }

// Every rank reads exactly its rows of every epoch, with the bytes that the worker holds, whether the worker is in the
// same process or not, whether the rows are known or not, and for any way of accumulating gradients.
func TestRanksReadTheirRows(t *testing.T) {
	for _, c := range []struct {
		remote, known bool
		world, parts  int
		tail          string
		batch         int64
	}{
		{remote: false, known: true, world: 2, parts: 1, tail: "pad", batch: 8},
		{remote: true, known: false, world: 2, parts: 1, tail: "pad", batch: 8},
		{remote: true, known: true, world: 4, parts: 2, tail: "short", batch: 8},
		{remote: false, known: false, world: 1, parts: 4, tail: "drop", batch: 12},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			r := newRig(t, rigOptions{remote: c.remote, knownRows: c.known})
			s := r.settings()
			s["tail"], s["accumulation"], s["global_batch"] = c.tail, c.parts, c.batch
			tail, err := order.ParseTail(c.tail)
			if err != nil {
				t.Fatal(err)
			}
			var ranks sync.WaitGroup
			for rank := range c.world {
				client := r.client()
				o := r.open(client, s, rank, c.world)
				ranks.Go(func() {
					for epoch := range uint64(2) {
						read := r.exchange(client, o.Session, int64(epoch), 0, 0).all(t)
						if d := diff(want(r.dispatcher.Data, c.batch, tail, epoch, 0, rank, c.world, c.parts), read); d != "" {
							t.Errorf("rank %d, epoch %d (-want +got):\n%s", rank, epoch, d)
						}
					}
				})
			}
			ranks.Wait()
			b := order.Batching{GlobalBatch: c.batch, Tail: tail}
			for rank := range c.world {
				r.await("the marks of the end", func() bool {
					e, step := r.dispatcher.Mark(uint32(rank))
					return e == 1 && step == b.NumSteps(r.dispatcher.Data.NumRows)
				})
			}
			if n := r.dispatcher.Generation(); n != 1 {
				t.Errorf("%d generations began; the second epoch goes on in the first", n)
			}
		})
	}
}

// A stream that breaks leaves the rank's mark where it was; the next one goes on from any batch that was received, in
// the same generation.
func TestBrokenStreamGoesOn(t *testing.T) {
	r := newRig(t, rigOptions{knownRows: true})
	client := r.client()
	o := r.open(client, r.settings(), 0, 1)
	e := r.exchange(client, o.Session, 0, 0, 0)
	for range 2 {
		if _, err := e.next(t); err != nil {
			t.Fatal(err)
		}
	}
	e.ack(t, 1)
	r.await("the mark of one step", func() bool { _, step := r.dispatcher.Mark(0); return step == 1 })
	e.cancel()
	// Both what was acknowledged last and what was received last can be gone on from.
	for _, step := range []int64{1, 2} {
		other := r.exchange(r.client(), o.Session, 0, step, 8*step)
		g, err := other.next(t)
		if err != nil {
			t.Fatal(err)
		}
		if d := diff(want(r.dispatcher.Data, 8, order.TailPad, 0, step, 0, 1, 1)[:1], []got{g}); d != "" {
			t.Errorf("from step %d (-want +got):\n%s", step, d)
		}
		other.cancel()
	}
	if n := r.dispatcher.Generation(); n != 1 {
		t.Errorf("%d generations began", n)
	}
}

// The sidecar never sends more than prefetch batches beyond what was acknowledged.
func TestCreditIsKept(t *testing.T) {
	r := newRig(t, rigOptions{knownRows: true})
	client := r.client()
	o := r.open(client, r.settings(), 0, 1)
	e := r.exchange(client, o.Session, 0, 0, 0)
	read := make(chan got, 16)
	go func() {
		defer close(read)
		for {
			g, err := e.next(t)
			if err != nil {
				return
			}
			read <- g
		}
	}()
	for acked := range uint64(3) {
		e.ack(t, acked)
		for seq := range uint64(2) {
			if acked > 0 && seq == 0 {
				continue // it came with the credit before
			}
			if g := <-read; g.sequence != acked+seq {
				t.Fatalf("batch %d came, want %d", g.sequence, acked+seq)
			}
		}
		// Nothing else is on the way: the sidecar has it ready and waits for the acknowledgement.
		r.await("the next batch to be ready", func() bool { return gauge(t, r, "millrace_feed_ready_batches") >= 1 })
		if n := len(read); n != 0 {
			t.Fatalf("%d batches came beyond the credit", n)
		}
	}
	e.cancel()
	for range read {
	}
}

// Any Flight client reads a rank by discovery alone, without acknowledgements.
func TestDiscoveryAndDoGet(t *testing.T) {
	r := newRig(t, rigOptions{})
	client := r.client()
	o := r.open(client, r.settings(), 0, 1)
	if o.Rows != -1 || o.BatchRows != 8 {
		t.Errorf("opened %+v", o)
	}
	names := []string{}
	for _, c := range o.Columns {
		names = append(names, c.Name+" "+c.DType+" "+fmt.Sprint(len(c.Shape)))
	}
	if d := cmp.Diff([]string{"image uint8 1", "label int64 0", "text string 0"}, names); d != "" {
		t.Errorf("columns (-want +got):\n%s", d)
	}
	flights, err := client.ListFlights(t.Context(), &flight.Criteria{})
	if err != nil {
		t.Fatal(err)
	}
	listed, err := flights.Recv()
	if err != nil || !slices.Equal(listed.GetFlightDescriptor().GetPath(), []string{"job"}) {
		t.Fatalf("listed %v, %v", listed, err)
	}
	whole := []byte(`{"job": "job", "rank": 0, "batch_bytes": 0}`)
	info, err := client.GetFlightInfo(t.Context(), &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: whole})
	if err != nil || len(info.GetEndpoint()) != 1 {
		t.Fatalf("info %v, %v", info, err)
	}
	stream, err := client.DoGet(t.Context(), info.GetEndpoint()[0].GetTicket())
	if err != nil {
		t.Fatal(err)
	}
	reader, err := flight.NewRecordReader(stream)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Release()
	var read []got
	for reader.Next() {
		read = append(read, parse(t, reader.LatestAppMetadata(), reader.RecordBatch(), r.dispatcher.Data))
	}
	if reader.Err() != nil {
		t.Fatal(reader.Err())
	}
	if d := diff(want(r.dispatcher.Data, 8, order.TailPad, 0, 0, 0, 1, 1), read); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	r.await("the mark of the end", func() bool { _, step := r.dispatcher.Mark(0); return step == 5 })
	schema, err := client.GetSchema(t.Context(), &flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: []string{"job"}})
	if err != nil || len(schema.GetSchema()) == 0 {
		t.Errorf("schema %v, %v", schema, err)
	}
}

// Every error has its code, one line of text, and its kind at the end.
func TestErrorsSayTheirKind(t *testing.T) {
	r := newRig(t, rigOptions{})
	client := r.client()
	body := func(change func(map[string]any)) map[string]any {
		b := openBody(r.settings(), 0, 1)
		change(b)
		return b
	}
	var out map[string]any
	for name, c := range map[string]struct {
		call func() error
		code codes.Code
		text string
	}{
		"unknown action": {func() error { return do(t.Context(), client, "millrace.opn", struct{}{}, &out) }, codes.InvalidArgument, "millrace.open"},
		"unknown key": {func() error {
			return do(t.Context(), client, "millrace.open", body(func(b map[string]any) { b["rnak"] = 1 }), &out)
		}, codes.InvalidArgument, "rnak"},
		"other version": {func() error {
			return do(t.Context(), client, "millrace.open", body(func(b map[string]any) { b["version"] = 2 }), &out)
		}, codes.InvalidArgument, "version 2"},
		"batch that cannot be dealt": {func() error {
			return do(t.Context(), client, "millrace.open", body(func(b map[string]any) { b["world_size"] = 3 }), &out)
		}, codes.InvalidArgument, "3"},
		"unknown session": {func() error {
			_, err := r.exchange(client, "s-0", 0, 0, 0).next(t)
			return err
		}, codes.NotFound, "s-0"},
		"job that is not open": {func() error {
			_, err := client.GetFlightInfo(t.Context(), &flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: []string{"other"}})
			return err
		}, codes.NotFound, "other"},
		"batches that do not fit": {func() error {
			s := r.settings()
			s["global_batch"] = 1 << 20
			return do(t.Context(), client, "millrace.open", openBody(s, 0, 1), &out)
		}, codes.ResourceExhausted, "budget"},
	} {
		err := c.call()
		s := status.Convert(err)
		if s.Code() != c.code || !strings.Contains(s.Message(), c.text) || !strings.Contains(s.Message(), " [kind=") || strings.Contains(s.Message(), "\n") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	r.dispatcher.Refuse(errkind.Errorf(errkind.BadData, "manifest is damaged"))
	err := do(t.Context(), client, "millrace.open", openBody(r.settings(), 0, 1), &out)
	if s := status.Convert(err); s.Code() != codes.DataLoss || s.Message() != "manifest is damaged [kind=bad_data]" {
		t.Errorf("the dispatcher's no came as %v", err)
	}
}

// What the dispatcher says of a failure is what the streams of its ranks end with; a rank may ask again.
func TestFailuresReachTheirRanks(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.dispatcher.Hold(true)
	client := r.client()
	first, second := r.open(client, r.settings(), 0, 2), r.open(client, r.settings(), 1, 2)
	a, b := r.exchange(client, first.Session, 0, 0, 0), r.exchange(client, second.Session, 0, 0, 0)
	r.await("a generation", func() bool { return r.dispatcher.Generation() == 1 })
	r.dispatcher.Fail(errkind.BadData, "sample x is damaged", 0)
	if _, err := a.next(t); status.Code(err) != codes.DataLoss || !strings.Contains(err.Error(), "sample x is damaged [kind=bad_data]") {
		t.Errorf("rank 0 got %v", err)
	}
	r.dispatcher.Fail(errkind.Conflict, "ranks disagree")
	if _, err := b.next(t); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("rank 1 got %v", err)
	}
	r.dispatcher.Hold(false)
	a, b = r.exchange(client, first.Session, 0, 0, 0), r.exchange(client, second.Session, 0, 0, 0)
	for _, e := range []*exchange{a, b} {
		if _, err := e.next(t); err != nil {
			t.Error(err)
		}
	}
}

// Streams go on, without a gap, when the dispatcher was away.
func TestDispatcherComesBack(t *testing.T) {
	r := newRig(t, rigOptions{knownRows: true})
	client := r.client()
	o := r.open(client, r.settings(), 0, 1)
	e := r.exchange(client, o.Session, 0, 0, 0)
	var read []got
	for range 2 {
		g, err := e.next(t)
		if err != nil {
			t.Fatal(err)
		}
		read = append(read, g)
	}
	r.dispatcher.Break(status.Error(codes.Unavailable, "going away"))
	r.await("the next generation", func() bool { return r.dispatcher.Generation() == 2 })
	e.ack(t, 2)
	for {
		g, err := e.next(t)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		g.generation = 1
		read = append(read, g)
		e.ack(t, uint64(len(read)))
	}
	if d := diff(want(r.dispatcher.Data, 8, order.TailPad, 0, 0, 0, 1, 1), read); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// Closing a session tells the dispatcher that the rank has left, twice is fine, and the last one is told to the owner.
func TestCloseAndStop(t *testing.T) {
	r := newRig(t, rigOptions{})
	client := r.client()
	var none struct{}
	o := r.open(client, r.settings(), 0, 1)
	e := r.exchange(client, o.Session, 0, 0, 0)
	if _, err := e.next(t); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := do(t.Context(), client, "millrace.close", map[string]string{"session": o.Session}, &none); err != nil {
			t.Fatal(err)
		}
	}
	for {
		if _, err := e.next(t); err != nil {
			if status.Code(err) != codes.Canceled {
				t.Errorf("the stream of a closed session ended in %v", err)
			}
			break
		}
	}
	if left := r.dispatcher.Left(); !slices.Equal(left, []uint32{0}) || r.idle.Load() != 1 || !r.sidecar.Idle() {
		t.Errorf("left: %v, idle %d times", left, r.idle.Load())
	}

	o = r.open(client, r.settings(), 0, 1)
	e = r.exchange(client, o.Session, 0, 0, 0)
	if _, err := e.next(t); err != nil {
		t.Fatal(err)
	}
	if err := do(t.Context(), client, "millrace.stop", map[string]string{"job": "job"}, &none); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := e.next(t); err != nil {
			if status.Code(err) != codes.Canceled || !strings.Contains(err.Error(), "job") {
				t.Errorf("the stream of a stopped job ended in %v", err)
			}
			break
		}
	}
	r.await("the table to be empty", r.sidecar.Idle)
}

// A stream that waits for the acknowledgement of its last batch ends with its session.
func TestCloseEndsAStreamThatWaitsForAcknowledgements(t *testing.T) {
	r := newRig(t, rigOptions{})
	client := r.client()
	o := r.open(client, r.settings(), 0, 1)
	e := r.exchange(client, o.Session, 0, 0, 0)
	for count := uint64(1); ; count++ {
		b, err := e.next(t)
		if err != nil {
			t.Fatal(err)
		}
		if b.flags&1 != 0 { // the last one of the epoch
			break
		}
		e.ack(t, count)
	}
	var none struct{}
	if err := do(t.Context(), client, "millrace.close", map[string]string{"session": o.Session}, &none); err != nil {
		t.Fatal(err)
	}
	if _, err := e.next(t); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ended in %v", err)
	}
}

// A session whose client has gone is closed after a while.
func TestGoneClientsAreClosed(t *testing.T) {
	r := newRig(t, rigOptions{gone: 20 * time.Millisecond})
	client := r.client()
	r.open(client, r.settings(), 0, 1)
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	r.await("the session to be closed", func() bool { return r.sidecar.Idle() && slices.Equal(r.dispatcher.Left(), []uint32{0}) })
}

// While a rank waits, the status says for what.
func TestStatusSaysWhoWaits(t *testing.T) {
	r := newRig(t, rigOptions{})
	client := r.client()
	waiting := func() string {
		var s struct {
			Jobs []struct{ Name, Waiting string }
		}
		if err := do(t.Context(), client, "millrace.status", struct{}{}, &s); err != nil || len(s.Jobs) != 1 || s.Jobs[0].Name != "job" {
			t.Fatalf("status %+v, %v", s, err)
		}
		return s.Jobs[0].Waiting
	}
	o := r.open(client, r.settings(), 0, 2)
	e := r.exchange(client, o.Session, 0, 0, 0)
	r.await("a reason", func() bool { return strings.Contains(waiting(), "rank 0 waits for every rank") })
	e.cancel()
}

// Health, reflection and the list of actions are served beside the rest.
func TestServerDescribesItself(t *testing.T) {
	r := newRig(t, rigOptions{})
	client := r.client()
	stream, err := client.ListActions(t.Context(), &flight.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for {
		a, err := stream.Recv()
		if err != nil {
			break
		}
		names = append(names, a.GetType())
	}
	if d := cmp.Diff([]string{"millrace.open", "millrace.close", "millrace.stop", "millrace.status", "millrace.job", "CancelFlightInfo"}, names); d != "" {
		t.Errorf("actions (-want +got):\n%s", d)
	}
	conn, err := grpc.NewClient("unix:"+r.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	h, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil || h.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health %v, %v", h, err)
	}
}

// A ticket is one JSON object that names one thing to read.
func TestTicketsAreChecked(t *testing.T) {
	r := newRig(t, rigOptions{})
	client := r.client()
	o := r.open(client, r.settings(), 0, 1)
	for _, ticket := range []any{
		map[string]any{"epoch": 0, "step": 0, "row": 0},
		map[string]any{"session": o.Session, "job": "job", "epoch": 0},
		map[string]any{"session": o.Session, "step": -1},
		map[string]any{"session": o.Session, "shard": 1},
		7, "x",
	} {
		raw, err := json.Marshal(ticket)
		if err != nil {
			t.Fatal(err)
		}
		stream, err := client.DoGet(context.Background(), &flight.Ticket{Ticket: raw})
		if err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("ticket %s: got %v", raw, err)
		}
	}
}
