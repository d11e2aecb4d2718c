package dispatch

import (
	"context"
	"errors"
	"io"
	"maps"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/grpcerr"
	"github.com/millrace/millrace/preprocess/exec"
	workerv1 "github.com/millrace/millrace/proto/millrace/worker/v1"
)

var (
	errGoingAway = errkind.Errorf(errkind.Unavailable, "the dispatcher is stopping")
	errSilent    = errkind.Errorf(errkind.Unavailable, "no heartbeat arrived in time; register again")
	errReplaced  = errkind.Errorf(errkind.Conflict, "another worker of the same name has registered")
)

// worker is one registered worker.
type worker struct {
	name, address, version, fingerprint string
	slots                               map[string]int
	python                              string // which functions of users it runs
	budget                              int64
	out                                 *outbox[*workerv1.ConnectResponse]
	lastSeen                            time.Duration
	beat                                *workerv1.Heartbeat
	draining                            bool
	jobs                                map[string]bool // jobs whose plan it has
	// held is what it had when it registered, by job, as far as that was not looked at yet.
	held map[string][]*workerv1.SourceHeld
}

// grantSlot is the resource of the dispatcher's level of the executor: source partitions outstanding on a worker.
const grantSlot = "grant"

// grants is how many source partitions may be outstanding on w: enough that a slot never waits for the next one.
func (w *worker) grants() int {
	total := 0
	for _, n := range w.slots {
		total += n
	}
	return 2*total + 2
}

func (w *worker) silentFor(now time.Duration) time.Duration { return now - w.lastSeen }

type workerService struct {
	workerv1.UnimplementedWorkerServiceServer
	d *Dispatcher
}

// Connect registers a worker and runs its stream.
func (s *workerService) Connect(stream workerv1.WorkerService_ConnectServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	register := first.GetRegister()
	if register == nil {
		return status.Error(codes.InvalidArgument, "the first message of a worker must be Register")
	}
	w, err := newWorker(register)
	if err != nil {
		return grpcerr.ToStatus(err)
	}
	if err := s.d.addWorker(w, register); err != nil {
		return grpcerr.ToStatus(err)
	}
	defer s.d.removeWorker(w)

	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	go func() { cancel(s.receive(stream, w)) }()
	err = w.out.run(ctx, stream.Send)
	if errors.Is(err, context.Canceled) {
		if err = context.Cause(ctx); errors.Is(err, io.EOF) {
			return nil
		}
	}
	return grpcerr.ToStatus(err)
}

func newWorker(r *workerv1.Register) (*worker, error) {
	w := &worker{
		name: r.GetWorker(), address: r.GetDataAddress(), version: r.GetVersion(), fingerprint: r.GetFingerprint(),
		slots: map[string]int{}, budget: r.GetBudgetBytes(), python: r.GetPython(),
		out: newOutbox[*workerv1.ConnectResponse](), jobs: map[string]bool{}, beat: &workerv1.Heartbeat{},
	}
	if w.name == "" || w.address == "" {
		return nil, errkind.Errorf(errkind.Invalid, "a worker must register a name and a data address")
	}
	if w.budget <= 0 {
		return nil, errkind.Errorf(errkind.Invalid, "worker %s registers a budget of %d bytes; it must be positive", w.name, w.budget)
	}
	for name, n := range r.GetSlots() {
		if n == 0 || n > 1<<16 {
			return nil, errkind.Errorf(errkind.Invalid, "worker %s registers %d slots of %s", w.name, n, name)
		}
		w.slots[name] = int(n)
	}
	if len(w.slots) == 0 {
		return nil, errkind.Errorf(errkind.Invalid, "worker %s registers no slots", w.name)
	}
	return w, nil
}

// receive handles the worker's messages until its stream ends.
func (s *workerService) receive(stream workerv1.WorkerService_ConnectServer, w *worker) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		s.d.handleWorker(w, m)
	}
}

func (d *Dispatcher) handleWorker(w *worker, m *workerv1.ConnectRequest) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.workers[w.name] != w {
		return // lost or replaced; what it says is stale
	}
	w.lastSeen = d.now()
	switch {
	case m.GetHeartbeat() != nil:
		w.beat = m.GetHeartbeat()
	case m.GetDrain() != nil:
		d.drain(w)
	case m.GetEvents() != nil:
		touched := map[string]*job{}
		for _, e := range m.GetEvents().GetEvents() {
			if j := d.jobs[e.GetJob()]; j != nil && j.generation == e.GetGeneration() {
				j.workerEvent(w, e)
				touched[j.name] = j
			}
		}
		for _, j := range touched {
			j.decide()
		}
	}
}

// checkTerm refuses whoever has seen a dispatcher with a higher term: that one leads, and this one was not told.
func (d *Dispatcher) checkTerm(who string, seen uint64) error {
	if seen <= d.term {
		return nil
	}
	err := errkind.Errorf(errkind.Conflict, "%s has seen a dispatcher of term %d; this one, of term %d, was replaced", who, seen, d.term)
	if d.book != nil {
		d.fenced(err)
	}
	return errkind.With(errkind.Unavailable, err)
}

func (d *Dispatcher) addWorker(w *worker, register *workerv1.Register) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.checkTerm("worker "+w.name, register.GetTerm()); err != nil {
		return err
	}
	if old := d.workers[w.name]; old != nil {
		old.out.close(errReplaced)
		d.dropWorker(old)
	}
	w.lastSeen = d.now()
	d.workers[w.name] = w
	w.out.put(&workerv1.ConnectResponse{Message: &workerv1.ConnectResponse_Welcome{Welcome: &workerv1.Welcome{
		Term: d.term, HeartbeatMs: d.cfg.Heartbeat.Milliseconds(),
	}}})
	w.out.put(&workerv1.ConnectResponse{Message: &workerv1.ConnectResponse_Beat{Beat: d.sign()}})
	d.cfg.Logger.Info("worker joined", "worker", w.name, "address", w.address, "slots", w.slots, "budget_bytes", w.budget)
	w.held = map[string][]*workerv1.SourceHeld{}
	for _, h := range register.GetSources() {
		w.held[h.GetJob()] = append(w.held[h.GetJob()], h)
	}
	for name := range w.held {
		if d.jobs[name] == nil {
			delete(w.held, name)
			w.out.put(&workerv1.ConnectResponse{Message: &workerv1.ConnectResponse_EndJob{EndJob: &workerv1.EndJob{Job: name}}})
		}
	}
	for _, j := range d.sortedJobs() {
		j.join(w)
	}
	delete(d.missing, w.name)
	d.settle(d.now())
	for _, j := range d.sortedJobs() {
		j.decide()
	}
	d.noteWorkers()
	return nil
}

func (d *Dispatcher) removeWorker(w *worker) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.workers[w.name] == w {
		d.cfg.Logger.Info("worker left", "worker", w.name)
		d.dropWorker(w)
	}
}

// dropWorker takes w out: what only it held is made again elsewhere.
func (d *Dispatcher) dropWorker(w *worker) {
	delete(d.workers, w.name)
	d.noteWorkers()
	for _, j := range d.sortedJobs() {
		if j.core != nil && j.members[w.name] {
			delete(j.members, w.name)
			j.apply(exec.NodeLost{Node: exec.NodeID(w.name)})
			j.decide()
		}
	}
}

func (d *Dispatcher) drain(w *worker) {
	w.draining = true
	for _, j := range d.sortedJobs() {
		if j.core != nil && j.members[w.name] {
			j.apply(exec.NodeDraining{Node: exec.NodeID(w.name)})
			j.decide()
		}
	}
	d.checkDrained(w)
}

// checkDrained tells a draining worker when nothing on it is needed any more.
func (d *Dispatcher) checkDrained(w *worker) {
	if !w.draining {
		return
	}
	for _, j := range d.jobs {
		if j.core != nil && j.members[w.name] && j.holds(w.name) {
			return
		}
	}
	w.out.put(&workerv1.ConnectResponse{Message: &workerv1.ConnectResponse_Drained{Drained: &workerv1.Drained{}}})
}

// GetManifest streams a manifest to a worker.
func (s *workerService) GetManifest(req *workerv1.GetManifestRequest, stream workerv1.WorkerService_GetManifestServer) error {
	id, err := digestOf(req.GetManifest(), "manifest")
	if err != nil {
		return grpcerr.ToStatus(err)
	}
	s.d.mu.Lock()
	m := s.d.manifests[id]
	s.d.mu.Unlock()
	if m == nil {
		return grpcerr.ToStatus(errkind.Errorf(errkind.NotFound, "no job uses manifest %x", id))
	}
	const piece = 1 << 20
	data := m.Encode()
	for len(data) > 0 {
		n := min(piece, len(data))
		if err := stream.Send(&workerv1.GetManifestResponse{Data: data[:n]}); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// statusSlots copies slots for a status message.
func statusSlots(slots map[string]int) map[string]uint32 {
	out := make(map[string]uint32, len(slots))
	for name, n := range maps.All(slots) {
		out[name] = uint32(n) //nolint:gosec // Bounded at registration.
	}
	return out
}
