package run

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/exec"
	"github.com/millrace/millrace/preprocess/lineage"
)

// node is the name of the only node of a Runner's core.
const node exec.NodeID = "here"

// errUnwanted is what a task gets from emit once it is cancelled.
var errUnwanted = errkind.Errorf(errkind.Canceled, "the task is not wanted any more")

// Config is what a Runner is made from. Every field has to be set, but for what the fields of Core leave open.
type Config struct {
	// Core is the plan.
	Core exec.Config
	// Slots and BudgetBytes are what the node has.
	Slots       map[string]int
	BudgetBytes int64
	// Share is the job's part of the node.
	Share   *Share
	Stages  Stages
	Reports Reports
	Logger  *slog.Logger
	// TaskSeconds, if set, is told how long each task ran.
	TaskSeconds func(stage int, d time.Duration)
}

// Runner runs the source partitions that it is offered. Its methods are safe for concurrent use.
type Runner struct {
	cfg     Config
	started time.Time
	// spawn runs a task on a goroutine, with a context that the result cancels. cancelAll cancels those of all tasks,
	// and then over is true.
	spawn     func(task func(context.Context)) context.CancelFunc
	cancelAll context.CancelFunc
	over      func() bool
	running   sync.WaitGroup

	// mu guards the queue. What is in it runs one at a time, on the goroutine that found nobody else at it.
	mu     sync.Mutex
	queue  []posted
	active bool

	// The rest is touched by queued functions alone.
	core      *exec.Core
	tasks     map[exec.TaskID]*running
	sources   map[lineage.ID]*source
	decisions []exec.Decision
	timer     *time.Timer
	closing   bool
}

// posted is a function to run; done, if not nil, is closed after it has run and what follows from it is carried out.
type posted struct {
	fn   func()
	done chan struct{}
}

// source is a source partition that is not finished.
type source struct {
	grant Grant
	// pending is how many inputs of stages are known that no task has finished.
	pending int
	// outputs of the last stage, by tasks that have finished.
	outputs int
}

// running is an attempt that has a goroutine.
type running struct {
	exec.Launch
	src      *source
	cancel   context.CancelFunc
	end      func()      // gives its share of the node back; used by its goroutine alone
	begun    atomic.Bool // it had its share of the node once
	canceled bool
	paused   bool
	waits    atomic.Bool   // paused, for its own goroutine
	resumed  chan struct{} // closed at Resume, made anew at Pause
}

// New makes a Runner whose tasks end with ctx. Errors are of kind Invalid.
func New(ctx context.Context, cfg Config) (*Runner, error) {
	core, err := exec.New(cfg.Core)
	if err != nil {
		return nil, err
	}
	if err := core.Apply(exec.NodeJoined{Node: node, Slots: cfg.Slots, BudgetBytes: cfg.BudgetBytes}); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	r := &Runner{
		cfg: cfg, started: time.Now(), core: core, cancelAll: cancel,
		over:  func() bool { return ctx.Err() != nil },
		tasks: map[exec.TaskID]*running{}, sources: map[lineage.ID]*source{},
	}
	r.spawn = func(task func(context.Context)) context.CancelFunc {
		ctx, cancel := context.WithCancel(ctx)
		r.running.Go(func() {
			defer cancel()
			task(ctx)
		})
		return cancel
	}
	return r, nil
}

// post has fn run, after what was posted before and never at the same time. It may be another goroutine that runs it,
// after post has returned.
func (r *Runner) post(fn func()) { r.enqueue(posted{fn: fn}) }

// ask is post, waiting until fn has run and what the core decides then is carried out.
func (r *Runner) ask(fn func()) {
	p := posted{fn: fn, done: make(chan struct{})}
	r.enqueue(p)
	<-p.done
}

func (r *Runner) enqueue(p posted) {
	r.mu.Lock()
	r.queue = append(r.queue, p)
	if r.active {
		r.mu.Unlock()
		return
	}
	r.active = true
	for len(r.queue) > 0 {
		batch := r.queue
		r.queue = nil
		r.mu.Unlock()
		r.work(batch)
		r.mu.Lock()
	}
	r.active = false
	r.mu.Unlock()
}

// work runs what was posted and carries out what the core decides then.
func (r *Runner) work(batch []posted) {
	r.apply(exec.Tick{Now: time.Since(r.started)})
	for _, p := range batch {
		p.fn()
	}
	r.decide()
	for _, p := range batch {
		if p.done != nil {
			close(p.done)
		}
	}
}

// apply tells the core what happened. What contradicts its state is a fault of ours: it is logged, and the core goes
// on as if it had not been said.
func (r *Runner) apply(ev exec.Event) {
	if err := r.core.Apply(ev); err != nil {
		r.cfg.Logger.Error("event does not fit", "event", fmt.Sprintf("%T", ev), "error", err)
	}
}

// Offer adds source partitions to run. One that is live already is run anew.
func (r *Runner) Offer(offers ...Offer) {
	r.post(func() {
		for _, o := range offers {
			err := r.core.Apply(o.Offered)
			if errkind.Of(err) == errkind.Conflict {
				r.withdraw(o.ID)
				err = r.core.Apply(o.Offered)
			}
			if err != nil {
				r.cfg.Reports.SourceFailed(o.ID, o.Grant, err)
				continue
			}
			r.sources[o.ID] = &source{grant: o.Grant, pending: 1}
		}
	})
}

// Withdraw drops source partitions: their tasks are cancelled, and when it returns nothing more is reported of them. What
// was kept of their last stage stays.
func (r *Runner) Withdraw(ids ...lineage.ID) {
	r.ask(func() { r.withdraw(ids...) })
}

func (r *Runner) withdraw(ids ...lineage.ID) {
	for _, id := range ids {
		delete(r.sources, id)
	}
	r.apply(exec.Withdrawn{Sources: ids})
}

// WithdrawBelow is Withdraw for all source partitions that are not done and of a generation below the given one. When
// it returns, nothing is reported of them any more.
func (r *Runner) WithdrawBelow(generation uint64) {
	r.ask(func() {
		var ids []lineage.ID
		for id, src := range r.sources {
			if src.grant.Generation < generation {
				ids = append(ids, id)
			}
		}
		r.withdraw(ids...)
	})
}

// Freed says that the memory of an output of the last stage was given up.
func (r *Runner) Freed(id lineage.ID) {
	r.post(func() { r.apply(exec.Freed{ID: id}) })
}

// Needed says that the ranks wait for a source partition.
func (r *Runner) Needed(id lineage.ID) {
	r.post(func() { r.apply(exec.Needed{ID: id}) })
}

// Taken says that a reader has taken an output of the last stage.
func (r *Runner) Taken(id lineage.ID) {
	r.post(func() { r.apply(exec.OutputTaken{ID: id}) })
}

// Status is the state of the core and what waits in it, and why.
func (r *Runner) Status() (exec.Snapshot, []exec.Wait) {
	var (
		snapshot exec.Snapshot
		waits    []exec.Wait
	)
	r.ask(func() { snapshot, waits = r.core.Snapshot(), r.core.Waiting() })
	return snapshot, waits
}

// Close stops the Runner: nothing is launched any more, and tasks that wait are cancelled. Tasks that run may finish
// until ctx ends and are cancelled then. It returns when all have ended; nothing is reported after that.
func (r *Runner) Close(ctx context.Context) {
	r.ask(func() {
		r.closing = true
		if r.timer != nil {
			r.timer.Stop()
		}
		for _, t := range r.tasks {
			if t.paused || !t.begun.Load() {
				t.stop()
			}
		}
	})
	stop := context.AfterFunc(ctx, r.cancelAll)
	r.running.Wait()
	stop()
	r.cancelAll()
}

// decide carries out what the core decides now.
func (r *Runner) decide() {
	if r.closing {
		return
	}
	r.decisions = r.core.Decide(r.decisions[:0])
	for _, d := range r.decisions {
		switch d := d.(type) {
		case exec.Launch:
			r.launch(d)
		case exec.Cancel:
			if t := r.find(d.Task, d.Attempt); t != nil {
				t.stop()
			}
		case exec.Pause:
			if t := r.find(d.Task, d.Attempt); t != nil {
				t.pause()
			}
		case exec.Resume:
			if t := r.find(d.Task, d.Attempt); t != nil {
				t.resume()
			}
		case exec.FreeInput:
			r.cfg.Stages.Free(d.ID)
		case exec.Discard:
			if int(d.ID.Depth) < len(r.cfg.Core.Stages) {
				r.cfg.Stages.Free(d.ID)
			}
		}
	}
	clear(r.decisions)
	r.wakeAt()
}

// wakeAt lets the core decide again when time alone allows more.
func (r *Runner) wakeAt() {
	if r.timer != nil {
		r.timer.Stop()
		r.timer = nil
	}
	if next, ok := r.core.NextTick(); ok {
		r.timer = time.AfterFunc(max(0, next-time.Since(r.started)), func() { r.post(func() {}) })
	}
}

func (r *Runner) find(id exec.TaskID, attempt uint32) *running {
	if t := r.tasks[id]; t != nil && t.Attempt == attempt {
		return t
	}
	return nil
}

func (t *running) stop() {
	t.canceled = true
	t.cancel()
}

func (t *running) pause() {
	if !t.paused {
		t.paused = true
		t.waits.Store(true)
		t.resumed = make(chan struct{})
	}
}

func (t *running) resume() {
	if t.paused {
		t.paused = false
		t.waits.Store(false)
		close(t.resumed)
	}
}

// launch starts the goroutine of a task.
func (r *Runner) launch(l exec.Launch) {
	src := r.sources[sourceOf(l.Input)]
	if src == nil { // not reached: the core runs nothing of what is done or withdrawn
		r.cfg.Logger.Error("task launched without a source partition", "partition", l.Input.String())
		r.post(func() { r.apply(exec.TaskFailed{Task: l.Task, Attempt: l.Attempt, Fatal: true}) })
		return
	}
	t := &running{Launch: l, src: src}
	r.tasks[l.Task] = t
	wait := r.cfg.Share.request(r.cfg.Core.Stages[l.Stage].Resources, r.expectation(l.Stage))
	t.cancel = r.spawn(func(ctx context.Context) {
		outputs := 0
		err := t.enter(ctx, wait)
		if err == nil {
			outputs, err = r.run(ctx, t)
		}
		r.ask(func() { r.ended(t, outputs, err) })
		t.leave() // after the next task was launched, so that it stands in line for the slots
	})
}

// enter waits for t's share of the node, leave gives it back.
func (t *running) enter(ctx context.Context, wait func(context.Context) (func(), error)) error {
	end, err := wait(ctx)
	t.end = end
	return err
}

func (t *running) leave() {
	if t.end != nil {
		t.end()
		t.end = nil
	}
}

// expectation is the expected output of a task, in bytes.
func (r *Runner) expectation(stage int) int64 {
	return r.core.Snapshot().Stages[stage].MeanBytes
}

// run runs the stage.
func (r *Runner) run(ctx context.Context, t *running) (int, error) {
	t.begun.Store(true)
	began := time.Now()
	defer func() {
		if r.cfg.TaskSeconds != nil {
			r.cfg.TaskSeconds(t.Stage, time.Since(began))
		}
	}()
	return r.protect(ctx, t)
}

// protect turns a panic into an error: one bad task must not end the process with all that it holds.
func (r *Runner) protect(ctx context.Context, t *running) (outputs int, err error) {
	defer func() {
		if p := recover(); p != nil {
			r.cfg.Logger.Error("stage panicked", "stage", r.cfg.Core.Stages[t.Stage].Name, "partition", t.Input.String(), "panic", p, "stack", string(debug.Stack()))
			err = errkind.Errorf(errkind.Internal, "stage %s panicked on partition %s: %v", r.cfg.Core.Stages[t.Stage].Name, t.Input, p)
		}
	}()
	task := Task{Grant: t.src.grant, Stage: t.Stage, Input: t.Input, Skip: t.Skip, Room: func(ctx context.Context) error { return r.room(ctx, t) }}
	return r.cfg.Stages.Run(ctx, task, func(o Output) error { return r.emit(ctx, t, o) })
}

// wanted reports whether anyone waits for what t makes. A source partition that was withdrawn, and maybe offered anew,
// may not have led to the decision to cancel t yet.
func (r *Runner) wanted(t *running) bool {
	return !t.canceled && r.sources[sourceOf(t.Input)] == t.src
}

func (r *Runner) keep(t *running, o Output) {
	o.Keep()
	if t.Stage < len(r.cfg.Core.Stages)-1 {
		t.src.pending++
	}
	r.apply(exec.OutputReady{Task: t.Task, Attempt: t.Attempt, ID: o.ID, Rows: o.Rows, Bytes: o.Bytes})
}

// ended tells the core and the reports how a task ended.
func (r *Runner) ended(t *running, outputs int, err error) {
	if r.find(t.Task, t.Attempt) == t {
		delete(r.tasks, t.Task)
	}
	switch {
	case !r.wanted(t) || r.over():
		r.apply(exec.TaskFailed{Task: t.Task, Attempt: t.Attempt})
		r.closing = r.closing || r.over()
	case err != nil:
		r.apply(exec.TaskFailed{Task: t.Task, Attempt: t.Attempt, Fatal: true})
		delete(r.sources, sourceOf(t.Input))
		r.cfg.Reports.SourceFailed(sourceOf(t.Input), t.src.grant, err)
	default:
		r.apply(exec.TaskDone{Task: t.Task, Attempt: t.Attempt, Outputs: outputs})
		r.finish(t, outputs)
	}
}

func (r *Runner) finish(t *running, outputs int) {
	t.src.pending--
	if t.Stage == len(r.cfg.Core.Stages)-1 {
		t.src.outputs += outputs
	}
	if t.Stage > 0 {
		r.cfg.Reports.InputDone(t.Input, t.src.grant, outputs)
	}
	if t.src.pending == 0 {
		delete(r.sources, sourceOf(t.Input))
		r.cfg.Reports.SourceDone(sourceOf(t.Input), t.src.grant, t.src.outputs)
	}
}

func sourceOf(id lineage.ID) lineage.ID { return lineage.SourceID(id.Epoch, id.Source) }
