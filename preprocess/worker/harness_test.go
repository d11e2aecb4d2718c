package worker

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/grpcerr"
	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/dataset/datasettest"
	"github.com/millrace/millrace/loader/store/memstore"
	"github.com/millrace/millrace/preprocess/lineage"
	"github.com/millrace/millrace/preprocess/partition"
	"github.com/millrace/millrace/preprocess/recipe"
	workerv1 "github.com/millrace/millrace/proto/millrace/worker/v1"
)

// fakeDispatcher hands the streams of workers to the test.
type fakeDispatcher struct {
	workerv1.UnimplementedWorkerServiceServer

	manifest *dataset.Manifest
	streams  chan *fakeStream
}

// fakeStream is the dispatcher's end of one worker's stream.
type fakeStream struct {
	t        *testing.T
	stream   workerv1.WorkerService_ConnectServer
	register *workerv1.Register
	end      chan error // its error ends the stream

	mu      sync.Mutex
	events  []*workerv1.Event
	batches int
	drained bool
	beats   []*workerv1.Heartbeat

	quarantined []*workerv1.BadSample // of the tasks that run gives
}

func (d *fakeDispatcher) Connect(stream workerv1.WorkerService_ConnectServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	s := &fakeStream{stream: stream, register: first.GetRegister(), end: make(chan error, 1)}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		s.receive()
	}()
	d.streams <- s
	select {
	case err := <-s.end:
		return err
	case <-gone:
		return nil
	}
}

func (s *fakeStream) receive() {
	for {
		m, err := s.stream.Recv()
		if err != nil {
			return
		}
		s.mu.Lock()
		if m.GetEvents() != nil {
			s.events = append(s.events, m.GetEvents().GetEvents()...)
			s.batches++
		}
		if m.GetHeartbeat() != nil {
			s.beats = append(s.beats, m.GetHeartbeat())
		}
		s.drained = s.drained || m.GetDrain() != nil
		s.mu.Unlock()
	}
}

func (d *fakeDispatcher) GetManifest(req *workerv1.GetManifestRequest, stream workerv1.WorkerService_GetManifestServer) error {
	if id := d.manifest.ID(); !bytes.Equal(req.GetManifest(), id[:]) {
		return grpcerr.ToStatus(errkind.Errorf(errkind.NotFound, "no such manifest"))
	}
	for piece := range slices.Chunk(d.manifest.Encode(), 100) {
		if err := stream.Send(&workerv1.GetManifestResponse{Data: piece}); err != nil {
			return err
		}
	}
	return nil
}

func (s *fakeStream) send(m *workerv1.ConnectResponse) {
	s.t.Helper()
	if err := s.stream.Send(m); err != nil {
		s.t.Fatal(err)
	}
}

func (s *fakeStream) welcome() {
	s.t.Helper()
	s.send(&workerv1.ConnectResponse{Message: &workerv1.ConnectResponse_Welcome{Welcome: &workerv1.Welcome{Term: 1, HeartbeatMs: 1000}}})
}

// world is a worker and a dispatcher that the test plays.
type world struct {
	t      *testing.T
	d      *fakeDispatcher
	worker *Worker
	pool   *partition.Pool
	ran    chan error
	cancel context.CancelFunc
	bad    []*workerv1.BadSample // that collect was told of
	finish func()
}

// data is what worlds read. It is made outside of the bubble of a test.
type data struct {
	set      *datasettest.Set
	manifest *dataset.Manifest
}

func newData(t *testing.T, samples []datasettest.Sample) *data {
	t.Helper()
	m := memstore.New()
	const perShard = 30
	for i := range (len(samples) + perShard - 1) / perShard {
		m.Put(fmt.Sprintf("train-%06d.tar", i), datasettest.Tar(t, samples[i*perShard:min(len(samples), (i+1)*perShard)]...))
	}
	set := &datasettest.Set{
		Store: m, Samples: samples, Resolver: datasettest.Resolver(t, map[string]*memstore.Store{"data": m}),
		Source: []string{fmt.Sprintf("mem://data/train-{000000..%06d}.tar", (len(samples)-1)/perShard)},
	}
	return &data{set: set, manifest: set.Build(t)}
}

func newWorld(t *testing.T, d *data, slots int, budget int64) *world {
	t.Helper()
	return newWorldWith(t, d, Config{Slots: map[string]int{"cpu": slots}, BudgetBytes: budget}, slog.New(slog.DiscardHandler))
}

// newWorldWith makes a world whose worker has the slots, budget and policy of cfg.
func newWorldWith(t *testing.T, d *data, cfg Config, log *slog.Logger) *world {
	t.Helper()
	w := &world{t: t, d: &fakeDispatcher{manifest: d.manifest, streams: make(chan *fakeStream, 1)}, pool: partition.NewPool(1 << 20), ran: make(chan error, 1)}
	lis := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	workerv1.RegisterWorkerServiceServer(server, w.d)
	served := make(chan error, 1)
	go func() { served <- server.Serve(lis) }()
	cc, err := grpc.NewClient("passthrough:///dispatcher", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Name, cfg.DataAddress, cfg.Fingerprint, cfg.Version = "w1", "local:w1", "f", "test"
	w.worker, err = New(cfg, Deps{Dispatcher: cc, Resolver: d.set.Resolver, Pool: w.pool, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	w.cancel = cancel
	go func() { w.ran <- w.worker.Run(ctx) }()
	w.finish = func() {
		cancel()
		if err := <-w.ran; err != nil {
			t.Errorf("Run: %v", err)
		}
		_ = cc.Close()
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if held := w.worker.Store().Stats(); held != (partition.StoreStats{}) {
			t.Errorf("the store still holds %+v", held)
		}
		if err := w.pool.Close(); err != nil {
			t.Error(err)
		}
	}
	return w
}

func (w *world) accept() *fakeStream {
	w.t.Helper()
	s := <-w.d.streams
	s.t = w.t
	return s
}

const planText = `
source: mem://data/train.tar
fields: {label: cls, bin: bin, text: txt}
operators:
  - label: {field: label}
  - select: {fields: [label, bin, text]}
`

const (
	samplesPerSource = 8
	numSamples       = 100
	numSources       = 13
)

// planOf is job name over d. Without variable columns its rows have one size.
func planOf(t *testing.T, d *data, name, columns string) *workerv1.JobPlan {
	t.Helper()
	r, err := recipe.Parse([]byte(planText + columns + "\npartition: {target_bytes: 3000}\n"))
	if err != nil {
		t.Fatal(err)
	}
	r.Operators[1].Barrier = true // two stages
	wire, err := r.ToProto()
	if err != nil {
		t.Fatal(err)
	}
	id := d.manifest.ID()
	return &workerv1.JobPlan{
		Job: name, Recipe: wire, Manifest: id[:], Seed: 3, PlanDigest: make([]byte, 16), Weight: 1,
		Layout: &workerv1.Layout{
			Shuffle: "block", NumSamples: int64(len(d.set.Samples)), BlockSamples: 4, WindowBlocks: 4, Lanes: 2, PartitionSamples: samplesPerSource,
		},
	}
}

const (
	variableColumns = "output: {label: {dtype: int64}, bin: {}, text: {}}"
	fixedColumns    = "output: {label: {dtype: float32}}"
)

func (s *fakeStream) plan(p *workerv1.JobPlan) {
	s.t.Helper()
	s.send(&workerv1.ConnectResponse{Message: &workerv1.ConnectResponse_Plan{Plan: p}})
}

// run grants source partitions.
func (s *fakeStream) run(job string, generation uint64, attempt uint32, skip []lineage.ID, sources ...uint64) {
	s.t.Helper()
	msg := &workerv1.Run{Job: job, Generation: generation}
	for _, p := range sources {
		task := &workerv1.SourceTask{Id: partition.IDToWire(lineage.SourceID(0, p)), Attempt: attempt, Quarantined: s.quarantined}
		for _, id := range skip {
			if id.Source == p {
				task.Skip = append(task.Skip, partition.IDToWire(id))
			}
		}
		msg.Tasks = append(msg.Tasks, task)
	}
	s.send(&workerv1.ConnectResponse{Message: &workerv1.ConnectResponse_Run{Run: msg}})
}

func everySource() []uint64 {
	out := make([]uint64, numSources)
	for i := range out {
		out[i] = uint64(i)
	}
	return out
}

// made is an output as a worker reported it, by id.
type made map[string]string

// collect reads all reported outputs by reference, checks them against their reports and frees them, until every
// source partition of the job has ended.
func (w *world) collect(s *fakeStream, job string, sources int) (made, []*workerv1.SourceFailed) {
	w.t.Helper()
	out := made{}
	var failed []*workerv1.SourceFailed
	ended, read := 0, 0
	want := map[string]int{}
	for ended < sources {
		synctest.Wait()
		s.mu.Lock()
		events := s.events[read:]
		s.mu.Unlock()
		read += len(events)
		if len(events) == 0 {
			time.Sleep(time.Millisecond) // of the bubble's clock
		}
		for _, e := range events {
			if e.GetJob() != job {
				continue
			}
			w.bad = append(w.bad, e.GetDone().GetBad()...)
			switch {
			case e.GetOutput() != nil:
				id := w.take(s, job, e.GetOutput())
				out[id.String()] = fmt.Sprintf("%d rows, %d bytes, %x", e.GetOutput().GetRows(), e.GetOutput().GetBytes(), e.GetOutput().GetContentHash())
				want[lineage.SourceID(id.Epoch, id.Source).String()]--
			case len(e.GetDone().GetId().GetPath()) > 0: // an input of a later stage
			case e.GetDone() != nil:
				ended++
				want[sourceName(w.t, e.GetDone().GetId())] += int(e.GetDone().GetOutputs())
			case e.GetFailed() != nil:
				ended++
				failed = append(failed, e.GetFailed())
			}
		}
	}
	for source, n := range want {
		if n != 0 && len(failed) == 0 {
			w.t.Errorf("source partition %s ended with %d outputs more than were reported", source, n)
		}
	}
	return out, failed
}

func sourceName(t *testing.T, id *workerv1.PartitionID) string {
	t.Helper()
	source, err := partition.IDFromWire(id)
	if err != nil {
		t.Fatal(err)
	}
	return source.String()
}

func (w *world) take(s *fakeStream, job string, o *workerv1.OutputReady) lineage.ID {
	w.t.Helper()
	id, err := partition.IDFromWire(o.GetId())
	if err != nil {
		w.t.Fatal(err)
	}
	ticket := partition.Ticket{Job: job, Slices: []partition.Slice{{ID: id, Attempt: o.GetAttempt(), Rows: o.GetRows()}}}
	err = partition.Local(w.worker.Store()).Fetch(w.t.Context(), ticket, func(_ int, rec arrow.RecordBatch) error {
		if h := partition.Hash(rec); !bytes.Equal(h[:], o.GetContentHash()) || rec.NumRows() != o.GetRows() {
			w.t.Errorf("partition %s is not what was reported", id)
		}
		return nil
	})
	if err != nil {
		w.t.Error(err)
	}
	s.send(&workerv1.ConnectResponse{Message: &workerv1.ConnectResponse_Free{Free: &workerv1.Free{Job: job, Ids: []*workerv1.PartitionID{o.GetId()}}}})
	return id
}
