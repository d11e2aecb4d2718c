package feed_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/millrace/millrace/feed"
	"github.com/millrace/millrace/feed/feedtest"
	"github.com/millrace/millrace/preprocess/partition"
	"github.com/millrace/millrace/preprocess/partition/flightdata"
)

// rig is a sidecar on a Unix socket between a fake dispatcher and a worker.
type rig struct {
	t          *testing.T
	dispatcher *feedtest.FakeDispatcher
	sidecar    *feed.Sidecar
	socket     string
	idle       atomic.Int64
}

type rigOptions struct {
	data      feedtest.Data
	epochs    uint64
	knownRows bool
	remote    bool // the worker is another process
	budget    int64
	gone      time.Duration
}

func newRig(t *testing.T, o rigOptions) *rig {
	t.Helper()
	if o.data.NumRows == 0 {
		o.data = feedtest.Data{NumRows: 37, PartitionRows: 5, TensorBytes: 300}
	}
	if o.epochs == 0 {
		o.epochs = 2
	}
	if o.budget == 0 {
		o.budget = 64 << 20
	}
	store, err := o.data.Store("job", o.epochs)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	r := &rig{t: t, dispatcher: &feedtest.FakeDispatcher{Data: o.data, Epochs: o.epochs, KnownRows: o.knownRows, Address: "local:worker"}}
	cfg := feed.Config{
		Name: "sidecar", Dispatcher: serve(t, func(s *grpc.Server) { r.dispatcher.Register(s) }), BudgetBytes: o.budget, GoneTimeout: o.gone,
		Local:  map[string]partition.Fetcher{"local:worker": partition.Local(store)},
		OnIdle: func() { r.idle.Add(1) },
		Logger: slog.New(slog.DiscardHandler),
	}
	if o.remote {
		r.dispatcher.Address = "worker:1"
		l := listen(t, partition.NewServer(store).Register, flightdata.ServerOptions()...)
		cfg.Local = nil
		cfg.Dial = func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }
	}
	r.socket = filepath.Join(t.TempDir(), "s")
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "unix", r.socket)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Listeners = []net.Listener{l}
	if r.sidecar, err = feed.New(cfg); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- r.sidecar.Run(context.Background()) }()
	t.Cleanup(func() {
		if err := r.sidecar.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		r.await("every buffer to be given back", func() bool {
			runtime.GC() // gRPC forgets buffers of broken connections
			buffers, bytes := r.sidecar.Held()
			return buffers == 0 && bytes == 0
		})
	})
	return r
}

// listen serves over memory.
func listen(t *testing.T, register func(*grpc.Server), options ...grpc.ServerOption) *bufconn.Listener {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	s := grpc.NewServer(options...)
	register(s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() {
		s.Stop()
		<-done
	})
	return l
}

func serve(t *testing.T, register func(*grpc.Server)) *grpc.ClientConn {
	t.Helper()
	l := listen(t, register)
	c, err := grpc.NewClient("passthrough:///dispatcher", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// client is a stock Flight client.
func (r *rig) client() flight.Client {
	r.t.Helper()
	c, err := flight.NewClientWithMiddleware("unix:"+r.socket, nil, nil, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Close() })
	return c
}

// conn is a connection to the sidecar.
func (r *rig) conn() *grpc.ClientConn {
	r.t.Helper()
	c, err := grpc.NewClient("unix:"+r.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Close() })
	return c
}

type settings map[string]any

func (r *rig) settings() settings {
	return settings{
		"seed": 0, "shuffle": "block", "global_batch": 8, "accumulation": 1, "tail": "pad", "on_error": "raise", "prefetch": 2, "epochs": 0,
	}
}

type opened struct {
	Session   string `json:"session"`
	Rows      int64  `json:"rows"`
	Steps     int64  `json:"steps"`
	BatchRows int64  `json:"batch_rows"`
	Columns   []struct {
		Name  string   `json:"name"`
		DType string   `json:"dtype"`
		Shape []*int64 `json:"shape"`
	} `json:"columns"`
}

// do calls an action with a body, and reads the answer into out.
func do(ctx context.Context, c flight.Client, action string, body, out any) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	stream, err := c.DoAction(ctx, &flight.Action{Type: action, Body: raw})
	if err != nil {
		return err
	}
	result, err := stream.Recv()
	if err != nil {
		return err
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("a second result: %w", err)
	}
	return json.Unmarshal(result.GetBody(), out)
}

func (r *rig) open(c flight.Client, s settings, rank, world int) opened {
	r.t.Helper()
	var out opened
	if err := do(r.t.Context(), c, "millrace.open", openBody(s, rank, world), &out); err != nil {
		r.t.Fatal(err)
	}
	return out
}

func openBody(s settings, rank, world int) map[string]any {
	return map[string]any{
		"version": 1, "job": "job", "recipe": "source: x", "settings": s, "rank": rank, "world_size": world,
		"cursor": "", "continue_on_mismatch": false, "attempt": 0,
	}
}

// got is one batch that came.
type got struct {
	flags      byte
	part       uint32
	epoch      uint64
	step       uint64
	next       uint64
	generation uint64
	sequence   uint64
	cursor     string
	rows       []gotRow
}

type gotRow struct {
	label int64
	valid bool
}

func parse(t *testing.T, meta []byte, rec arrow.RecordBatch, data feedtest.Data) got {
	t.Helper()
	le := binary.LittleEndian
	if len(meta) < 56 || meta[0] != 1 || int(le.Uint16(meta[2:])) != len(meta)-56 {
		t.Fatalf("header %x", meta)
	}
	g := got{
		flags: meta[1], part: le.Uint32(meta[4:]), epoch: le.Uint64(meta[8:]), step: le.Uint64(meta[16:]), next: le.Uint64(meta[24:]),
		generation: le.Uint64(meta[32:]), sequence: le.Uint64(meta[48:]), cursor: string(meta[56:]),
	}
	image := as[*array.Uint8](as[*array.FixedSizeList](as[array.ExtensionArray](rec.Column(0)).Storage()).ListValues()).Uint8Values()
	label, text := as[*array.Int64](rec.Column(1)), as[*array.String](rec.Column(2))
	key, sample, valid := as[*array.String](rec.Column(3)), as[*array.Int64](rec.Column(4)), as[*array.Boolean](rec.Column(5))
	count := uint32(0)
	for i := range int(rec.NumRows()) {
		l := label.Value(i)
		g.rows = append(g.rows, gotRow{l, valid.Value(i)})
		row := l % 1_000_000
		if text.Value(i) != fmt.Sprintf("text %d", l) || key.Value(i) != fmt.Sprintf("shard-0/%d", row) || sample.Value(i) != row {
			t.Fatalf("row of label %d: %s, %s, %d", l, text.Value(i), key.Value(i), sample.Value(i))
		}
		for k := range data.TensorBytes {
			if image[i*data.TensorBytes+k] != feedtest.Pixel(l, k) {
				t.Fatalf("row of label %d: byte %d of its image is %d", l, k, image[i*data.TensorBytes+k])
			}
		}
		if valid.Value(i) {
			count++
		}
	}
	if le.Uint32(meta[40:]) != uint32(rec.NumRows()) || le.Uint32(meta[44:]) != count {
		t.Fatalf("header says %d rows, %d valid; there are %d, %d", le.Uint32(meta[40:]), le.Uint32(meta[44:]), rec.NumRows(), count)
	}
	return g
}

// exchange is a stream with acknowledgements.
type exchange struct {
	stream flight.FlightService_DoExchangeClient
	reader *flight.Reader
	cancel context.CancelFunc
	data   feedtest.Data
}

func (r *rig) exchange(c flight.Client, session string, epoch, step, row int64) *exchange {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	r.t.Cleanup(cancel)
	stream, err := c.DoExchange(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	command, err := json.Marshal(map[string]any{"session": session, "epoch": epoch, "step": step, "row": row})
	if err != nil {
		r.t.Fatal(err)
	}
	if err := stream.Send(&flight.FlightData{FlightDescriptor: &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: command}}); err != nil {
		r.t.Fatal(err)
	}
	return &exchange{stream: stream, cancel: cancel, data: r.dispatcher.Data}
}

func (e *exchange) ack(t *testing.T, count uint64) {
	t.Helper()
	if err := e.stream.Send(&flight.FlightData{AppMetadata: binary.LittleEndian.AppendUint64(nil, count)}); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
}

// next reads one batch; io.EOF at the end.
func (e *exchange) next(t *testing.T) (got, error) {
	t.Helper()
	if e.reader == nil {
		r, err := flight.NewRecordReader(e.stream)
		if err != nil {
			return got{}, err
		}
		t.Cleanup(r.Release)
		e.reader = r
	}
	rec, err := e.reader.Read()
	if err != nil {
		return got{}, err
	}
	return parse(t, e.reader.LatestAppMetadata(), rec, e.data), nil
}

// all reads to the end, acknowledging each batch when it asks for the next.
func (e *exchange) all(t *testing.T) []got {
	t.Helper()
	var out []got
	for {
		g, err := e.next(t)
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, g)
		e.ack(t, uint64(len(out)))
	}
}

// await waits for a condition.
func (r *rig) await(what string, cond func() bool) {
	r.t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline.C:
			r.t.Fatalf("waited in vain for %s", what)
		}
	}
}

// gauge is the sum of a metric over its labels.
func gauge(t *testing.T, r *rig, name string) float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	for _, c := range r.sidecar.Collectors() {
		if err := registry.Register(c); err != nil {
			t.Fatal(err)
		}
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name {
				sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// as is v, which is known to be a T.
func as[T any](v any) T {
	t, ok := v.(T)
	if !ok {
		panic(fmt.Sprintf("%T is no %T", v, t))
	}
	return t
}
