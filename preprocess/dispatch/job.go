package dispatch

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/order"
	"github.com/millrace/millrace/preprocess/dispatch/journal"
	"github.com/millrace/millrace/preprocess/dispatch/ledger"
	"github.com/millrace/millrace/preprocess/exec"
	"github.com/millrace/millrace/preprocess/lineage"
	feedv1 "github.com/millrace/millrace/proto/millrace/feed/v1"
	workerv1 "github.com/millrace/millrace/proto/millrace/worker/v1"
)

// job is one run over a stream. All of it is guarded by the dispatcher's mutex.
type job struct {
	d        *Dispatcher
	name     string
	spec     *spec
	ranks    []*rank // by seat
	sidecars map[string]*sidecar

	generation uint64
	// fingerprint of the workers that serve it; empty until the first does.
	fingerprint string
	marked      journal.Position // last logged
	start       ledger.Position  // of the generation
	// The rest is nil or empty while no generation runs.
	core    *exec.Core
	ledger  *ledger.Ledger
	members map[string]bool // workers that the core knows
	tasks   map[lineage.ID]task
	next    lineage.ID // source partition to offer next
	orders  map[uint64]*order.Epoch
	failed  error
	timer   *time.Timer // for decisions that only wait for time

	idleSince time.Duration
	waiting   waiting
	bad       badSamples
}

// rank is one seat of a job: a data-parallel rank, or one of the peers that share its batches.
type rank struct {
	index   int // rank * peers + peer
	joined  bool
	attempt uint64
	sidecar *sidecar
	opened  *ledger.Position // where its cursor leads
	want    *ledger.Position // asked for, until a generation begins
	// wantGeneration is that in which it goes on there; 0: it asks for the position.
	wantGeneration uint64
	// epoch and step are its consumed mark: all steps below are consumed.
	epoch uint64
	step  int64
}

// task is a source partition that a worker was given.
type task struct {
	id      exec.TaskID
	attempt uint32
	worker  string
	skip    int
	retries int
	told    bool // the worker knows that the ranks wait for it
}

// maxRetries is how often a source partition may fail for reasons that lie outside its samples.
const maxRetries = 3

func (d *Dispatcher) newJob(name string, s *spec) *job {
	j := &job{d: d, name: name, spec: s, sidecars: map[string]*sidecar{}, idleSince: d.now()}
	for i := range s.world * s.peers {
		j.ranks = append(j.ranks, &rank{index: i})
	}
	return j
}

// set makes ready for a generation whose stream begins at p.
func (j *job) set(p ledger.Position) error {
	s := j.spec
	book, err := ledger.New(ledger.Config{
		KeepsRows: s.plan.KeepsRows, Stages: len(s.plan.Stages), GlobalBatch: s.globalBatch, Tail: s.tail,
		NumPartitions: s.numPartitions(), Samples: s.samples, Start: p,
		MaxBad: s.maxBad, MaxBadPerEpoch: int64(s.maxBadFraction * float64(s.layout.NumSamples)),
	})
	if err != nil {
		return fmt.Errorf("job %s: %w", j.name, err)
	}
	core, err := exec.New(exec.Config{
		Stages: []exec.StageSpec{{Name: "grant", Resources: map[string]int{grantSlot: 1}}},
		// A worker's own core bounds what its tasks hold unread.
		MaxUnread: 1 << 20,
		// Workers and sidecars may still know attempts that a dispatcher before this one has granted.
		AttemptsBefore: uint32((j.d.term - 1) % (1 << 20) * attemptsPerTerm),
	})
	if err != nil {
		return fmt.Errorf("job %s: %w", j.name, err)
	}
	j.start, j.ledger, j.core, j.failed = p, book, core, nil
	j.members, j.tasks, j.orders = map[string]bool{}, map[lineage.ID]task{}, map[uint64]*order.Epoch{}
	j.next = lineage.SourceID(p.Epoch, uint64(p.Partition)) //nolint:gosec // Never negative.
	return nil
}

// begin starts a generation at p: workers drop what they have, sidecars what they were told.
func (j *job) begin(p ledger.Position) error {
	if err := j.set(p); err != nil {
		return err
	}
	j.generation++
	for _, r := range j.ranks {
		r.want, r.epoch, r.step = nil, p.Epoch, p.Step
	}
	for _, w := range j.d.sortedWorkers() {
		if w.jobs[j.name] {
			w.out.put(&workerv1.ConnectResponse{Message: &workerv1.ConnectResponse_Cancel{
				Cancel: &workerv1.Cancel{Job: j.name, BelowGeneration: j.generation},
			}})
		}
		delete(w.held, j.name)
		j.join(w)
	}
	j.note(nil)
	for _, s := range j.sidecars {
		j.tellStarted(s)
	}
	j.d.cfg.Logger.Info("generation began", "job", j.name, "generation", j.generation, "epoch", p.Epoch, "step", p.Step, "row", p.Row)
	j.decide()
	return nil
}

// end stops the running generation and frees what it holds.
func (j *job) end() {
	if j.core == nil {
		return
	}
	for name := range j.members {
		if w := j.d.workers[name]; w != nil {
			w.out.put(&workerv1.ConnectResponse{Message: &workerv1.ConnectResponse_Cancel{
				Cancel: &workerv1.Cancel{Job: j.name, BelowGeneration: j.generation + 1},
			}})
		}
	}
	j.core, j.ledger, j.members, j.tasks, j.orders = nil, nil, nil, nil, nil
	j.generation++ // nobody goes on with the one that has ended
}

// join makes a worker known to the running generation.
func (j *job) join(w *worker) {
	if j.core == nil || w.draining {
		return
	}
	if err := w.offers(j.spec); err != nil {
		j.d.cfg.Logger.Warn("worker has no part in a job", "job", j.name, "error", err)
		return
	}
	if !w.jobs[j.name] {
		w.jobs[j.name] = true
		w.out.put(&workerv1.ConnectResponse{Message: &workerv1.ConnectResponse_Plan{Plan: j.wirePlan()}})
	}
	j.members[w.name] = true
	j.apply(exec.NodeJoined{Node: exec.NodeID(w.name), Slots: map[string]int{grantSlot: w.grants()}, BudgetBytes: w.budget})
	j.adopt(w)
}

// apply tells the core; an event that contradicts its state is a fault of ours or of a worker, so it is logged.
func (j *job) apply(ev exec.Event) {
	if err := j.core.Apply(ev); err != nil {
		j.d.cfg.Logger.Error("event does not fit", "job", j.name, "event", fmt.Sprintf("%T", ev), "error", err)
	}
}

// lookahead is how many source partitions beyond the awaited one are offered to the core. It bounds metadata; bytes
// are bounded by the workers' budgets.
func (j *job) lookahead() int64 {
	total := int64(256)
	for name := range j.members {
		if w := j.d.workers[name]; w != nil {
			total += 2 * int64(w.grants())
		}
	}
	return total
}

// offer gives the core the source partitions that may be made next.
func (j *job) offer() {
	n := j.spec.numPartitions()
	ordinal := func(id lineage.ID) int64 {
		return int64(id.Epoch-j.start.Epoch)*n + int64(id.Source) //nolint:gosec // Bounded by lookahead.
	}
	last := ordinal(j.ledger.Awaited()) + j.lookahead()
	for ordinal(j.next) < last {
		if int64(j.next.Source) >= n { //nolint:gosec // As above.
			j.next = lineage.SourceID(j.next.Epoch+1, 0)
		}
		if j.spec.epochs > 0 && j.next.Epoch >= j.spec.epochs {
			return
		}
		part := j.order(j.next.Epoch).Partition(int64(j.next.Source)) //nolint:gosec // As above.
		j.apply(exec.Offered{
			ID: j.next, Rows: part.NumSamples, ExpectBytes: j.expectBytes(part.NumSamples),
			Affinity: j.next.Epoch<<40 | uint64(part.Window+1), //nolint:gosec // Never negative.
		})
		j.next = lineage.SourceID(j.next.Epoch, j.next.Source+1)
	}
}

// keyBytes is what the key and the number of a sample take in a partition, roughly.
const keyBytes = 48

// expectBytes is the size of the outputs of a source partition, 0 when rows differ in size.
func (j *job) expectBytes(samples int64) int64 {
	stages := j.spec.plan.Stages
	row := stages[len(stages)-1].RowBytes
	if row == 0 {
		return 0
	}
	return samples * (row + keyBytes)
}

func (j *job) order(epoch uint64) *order.Epoch {
	o := j.orders[epoch]
	if o == nil {
		o = j.spec.layout.Epoch(j.spec.seed, epoch)
		j.orders[epoch] = o
		delete(j.orders, epoch-2)
	}
	return o
}

// decide lets the core choose and sends what it chose. It must follow every change.
func (j *job) decide() {
	if j.core == nil || j.failed != nil || j.d.settling {
		return
	}
	j.apply(exec.Tick{Now: j.d.now()})
	j.offer()
	if j.starving() {
		j.apply(exec.Needed{ID: j.ledger.Awaited()})
	}
	runs, frees := map[string][]*workerv1.SourceTask{}, map[string][]*workerv1.PartitionID{}
	for _, decision := range j.core.Decide(nil) {
		switch d := decision.(type) {
		case exec.Launch:
			t := task{id: d.Task, attempt: d.Attempt, worker: string(d.Node), skip: len(d.Skip), retries: j.tasks[d.Input].retries}
			j.tasks[d.Input] = t
			runs[t.worker] = append(runs[t.worker], sourceTask(d))
		case exec.Discard:
			frees[string(d.Node)] = append(frees[string(d.Node)], wireID(d.ID))
		case exec.FreeInput, exec.Cancel, exec.Pause, exec.Resume:
			// With one stage there are no inputs to free; nothing is withdrawn within a generation; and a worker's own core
			// paces its tasks.
		}
	}
	for name, tasks := range runs {
		if w := j.d.workers[name]; w != nil {
			w.out.put(&workerv1.ConnectResponse{Message: &workerv1.ConnectResponse_Run{
				Run: &workerv1.Run{Job: j.name, Generation: j.generation, Tasks: tasks},
			}})
		}
	}
	j.sendFrees(frees)
	j.tellNeeded()
	j.wakeAt()
}

// starving says that the ranks will wait unless the awaited source partition is made: besides the batch that they may be
// at, none is sealed. Only then may budgets be passed; with more in hand, ranks that take their time are no reason to.
func (j *job) starving() bool { return j.ledger.NumSealed() <= 1 }

// tellNeeded tells the worker that makes the awaited source partition, once.
func (j *job) tellNeeded() {
	id := j.ledger.Awaited()
	t, running := j.tasks[id]
	if !running || t.told || !j.starving() {
		return
	}
	t.told = true
	j.tasks[id] = t
	if w := j.d.workers[t.worker]; w != nil {
		w.out.put(&workerv1.ConnectResponse{Message: &workerv1.ConnectResponse_Needed{Needed: &workerv1.Needed{Job: j.name, Id: wireID(id)}}})
	}
}

// wakeAt lets the core decide again when time alone allows more.
func (j *job) wakeAt() {
	if j.timer != nil {
		j.timer.Stop()
		j.timer = nil
	}
	next, ok := j.core.NextTick()
	if !ok {
		return
	}
	generation := j.generation
	j.timer = time.AfterFunc(max(0, next-j.d.now()), func() {
		j.d.mu.Lock()
		defer j.d.mu.Unlock()
		if j.core != nil && j.generation == generation {
			j.decide()
		}
	})
}

func (j *job) sendFrees(frees map[string][]*workerv1.PartitionID) {
	for name, ids := range frees {
		if w := j.d.workers[name]; w != nil {
			w.out.put(&workerv1.ConnectResponse{Message: &workerv1.ConnectResponse_Free{Free: &workerv1.Free{Job: j.name, Ids: ids}}})
			j.d.checkDrained(w)
		}
	}
}

// holds says whether a worker holds or makes anything of the job that is still needed.
func (j *job) holds(worker string) bool {
	for _, t := range j.tasks {
		if t.worker == worker {
			return true
		}
	}
	for _, p := range j.ledger.Live().Placed {
		if p.Worker == worker {
			return true
		}
	}
	return false
}

// workerEvent takes one event of the running generation.
func (j *job) workerEvent(w *worker, e *workerv1.Event) {
	if j.core == nil || j.failed != nil {
		return
	}
	id, attempt, err := eventSource(e)
	if err != nil {
		j.d.cfg.Logger.Error("worker sent a malformed event", "worker", w.name, "error", err)
		return
	}
	t, known := j.tasks[lineage.SourceID(id.Epoch, id.Source)]
	if !known || t.worker != w.name || t.attempt != attempt {
		return // an attempt that was given up
	}
	switch {
	case e.GetOutput() != nil:
		j.output(w, t, id, e.GetOutput())
	case e.GetDone() != nil:
		j.ledger.Bad(id, j.badSamples(id, e.GetDone().GetBad()))
		j.done(t, id, int(e.GetDone().GetOutputs()))
	case e.GetFailed() != nil:
		j.sourceFailed(w, t, id, e.GetFailed())
	}
}

func (j *job) output(w *worker, t task, id lineage.ID, o *workerv1.OutputReady) {
	hash, err := digestOf(o.GetContentHash(), "content hash")
	if err != nil {
		j.fail(errkind.With(errkind.Internal, fmt.Errorf("worker %s, partition %s: %w", w.name, id, err)))
		return
	}
	j.apply(exec.OutputReady{Task: t.id, Attempt: t.attempt, ID: id, Rows: o.GetRows(), Bytes: o.GetBytes()})
	j.apply(exec.OutputTaken{ID: id})
	j.take(j.ledger.Output(ledger.Output{
		ID: id, Attempt: t.attempt, Rows: o.GetRows(), Bytes: o.GetBytes(), Hash: hash, Worker: w.name,
	}))
}

func (j *job) done(t task, id lineage.ID, outputs int) {
	if id.Depth > 0 {
		j.take(j.ledger.InputDone(id, outputs), nil)
		return
	}
	delete(j.tasks, id)
	j.apply(exec.TaskDone{Task: t.id, Attempt: t.attempt, Outputs: outputs})
	j.take(j.ledger.Done(id, outputs))
}

func (j *job) sourceFailed(w *worker, t task, id lineage.ID, f *workerv1.SourceFailed) {
	if f.GetRetry() && t.retries < maxRetries {
		j.d.cfg.Logger.Warn("source partition failed and is tried again", "job", j.name, "partition", id, "worker", w.name, "error", f.GetText())
		t.retries++
		j.tasks[id] = t
		j.apply(exec.TaskFailed{Task: t.id, Attempt: t.attempt})
		return
	}
	delete(j.tasks, id)
	j.apply(exec.TaskFailed{Task: t.id, Attempt: t.attempt, Fatal: true})
	j.take(j.ledger.Fail(id, errkind.With(errkind.Parse(f.GetKind()), fmt.Errorf("%s", j.hinted(f)))), nil)
}

// take passes on what a report changed.
func (j *job) take(eff ledger.Effects, err error) {
	if err != nil {
		j.fail(err)
		return
	}
	for _, s := range j.sidecars {
		j.tell(s, eff)
	}
	j.free(eff.Freed)
	j.d.metrics.sealed.Add(float64(len(eff.Sealed)))
	j.noteBad(eff.Bad)
	if eff.Failed != nil {
		j.fail(eff.Failed)
	}
}

// fail stops the job: every rank hears why.
func (j *job) fail(err error) {
	j.failed = err
	j.d.cfg.Logger.Error("job failed", "job", j.name, "error", err)
	for _, s := range j.sidecars {
		s.out.put(failedMessage(err, nil))
	}
}

// consumed moves a rank's mark and frees what every rank has passed.
func (j *job) consumed(r *rank, epoch uint64, step int64) {
	if epoch < r.epoch || (epoch == r.epoch && step <= r.step) {
		return
	}
	r.epoch, r.step = epoch, step
	slowest := j.slowest()
	j.free(j.ledger.Consumed(slowest.epoch, slowest.step))
	j.decide()
}

// slowest is a rank that has consumed least.
func (j *job) slowest() *rank {
	return slices.MinFunc(j.ranks, func(a, b *rank) int {
		return cmp.Or(cmp.Compare(a.epoch, b.epoch), cmp.Compare(a.step, b.step))
	})
}

// free has workers drop outputs that nobody needs any more.
func (j *job) free(outputs []ledger.Output) {
	frees := map[string][]*workerv1.PartitionID{}
	for _, o := range outputs {
		j.apply(exec.Freed{ID: o.ID})
		frees[o.Worker] = append(frees[o.Worker], wireID(o.ID))
	}
	j.sendFrees(frees)
}

// leave takes a rank out. When the last one is gone the job gives its memory back.
func (j *job) leave(r *rank) {
	r.joined, r.sidecar, r.want, r.opened = false, nil, nil, nil
	defer j.note(nil)
	if !j.hasRanks() {
		j.end()
		j.idleSince = j.d.now()
	}
}

// hasRanks says whether any rank has joined and not left.
func (j *job) hasRanks() bool {
	return slices.ContainsFunc(j.ranks, func(r *rank) bool { return r.joined })
}

// hasStreams says whether any rank is served by a sidecar now.
func (j *job) hasStreams() bool {
	return slices.ContainsFunc(j.ranks, func(r *rank) bool { return r.sidecar != nil })
}

// tick ends generations that nobody listens to, and says who waits for what.
func (j *job) tick(now time.Duration) {
	if j.hasStreams() {
		j.idleSince = now
	} else if j.core != nil && now-j.idleSince > j.d.cfg.IdleTimeout {
		j.d.cfg.Logger.Info("job is idle and gives its memory back", "job", j.name)
		j.end()
	}
	j.updateWaiting(now)
}

// tellStarted begins the running generation for a sidecar that does not know of it.
func (j *job) tellStarted(s *sidecar) {
	if s.generation == j.generation {
		return
	}
	s.generation = j.generation
	s.out.put(&feedv1.AttachResponse{Message: &feedv1.AttachResponse_Started{
		Started: &feedv1.Started{Generation: j.generation, Position: wirePosition(j.start)},
	}})
	j.tell(s, j.ledger.Live())
}
