package worker

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/sleep"
	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/preprocess/exec/run"
	"github.com/millrace/millrace/preprocess/lineage"
	"github.com/millrace/millrace/preprocess/partition"
	workerv1 "github.com/millrace/millrace/proto/millrace/worker/v1"
)

// Worker makes and holds the partitions that a dispatcher asks for.
type Worker struct {
	cfg     Config
	deps    Deps
	client  workerv1.WorkerServiceClient
	store   *partition.Store
	shares  *run.Shares
	sources *sources
	out     *outbox
	metrics *metrics
	blocks  *partition.Pool // of blocks of shards; nil: none are kept

	made     atomic.Int64 // samples
	drained  atomic.Bool
	stopOnce sync.Once
	stopping chan struct{} // closed by Stop
	ending   sync.WaitGroup

	mu     sync.Mutex
	jobs   map[string]*job
	broken map[string]error // jobs that can't run here, and why
	term   uint64
}

// New makes a worker; [Worker.Run] starts it. Errors are of kind Invalid.
func New(cfg Config, deps Deps) (*Worker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := partition.RegisterTensorType(); err != nil {
		return nil, err
	}
	cfg = cfg.clone()
	if deps.Isolated != nil {
		reserve := deps.Isolated.Reserve()
		if cfg.BudgetBytes -= reserve; cfg.BudgetBytes <= 0 {
			return nil, errkind.Errorf(errkind.Invalid, "worker %s has a budget of %d bytes, of which its isolated decoders may take %d: give more, or fewer slots",
				cfg.Name, cfg.BudgetBytes+reserve, reserve)
		}
	}
	w := &Worker{
		cfg: cfg, deps: deps, client: workerv1.NewWorkerServiceClient(deps.Dispatcher),
		shares: run.NewShares(cfg.Slots, cfg.BudgetBytes), out: newOutbox(), metrics: newMetrics(),
		stopping: make(chan struct{}), jobs: map[string]*job{}, broken: map[string]error{},
	}
	if cfg.BlockBytes > 0 {
		w.blocks = partition.NewPoolWithin(cfg.BlockBytes)
		cfg.Dataset.Blocks = dataset.NewBlocks(cfg.BlockBytes, w.blocks)
	}
	w.sources = &sources{client: w.client, deps: &w.deps, opts: cfg.Dataset, byID: map[[16]byte]*source{}}
	w.store = partition.NewStore(cfg.Name, partition.Hooks{Taken: w.taken, Freed: w.freed})
	return w, nil
}

// Store holds the finished partitions, to be served to sidecars.
func (w *Worker) Store() *partition.Store { return w.store }

// taken and freed tell a job's executor what became of its outputs.
func (w *Worker) taken(name string, id lineage.ID) {
	if j := w.job(name); j != nil {
		j.runner.Taken(id)
	}
}

func (w *Worker) freed(name string, id lineage.ID, bytes int64, replaced bool) {
	j := w.job(name)
	if j == nil {
		return
	}
	j.share.Held(-bytes)
	if !replaced {
		j.runner.Freed(id)
	}
}

func (w *Worker) job(name string) *job {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.jobs[name]
}

// Samples is how many samples the first stage has processed.
func (w *Worker) Samples() int64 { return w.made.Load() }

// Drained reports whether the dispatcher has let the worker go after Stop.
func (w *Worker) Drained() bool { return w.drained.Load() }

// Stop asks the dispatcher to let the worker go: it gets no new work, and Run returns when nothing of it is needed any
// more, or when there is no dispatcher to ask. Stop returns at once and may be called more than once.
func (w *Worker) Stop() { w.stopOnce.Do(func() { close(w.stopping) }) }

// errDrained ends Run after Stop.
var errDrained = errors.New("drained")

// Run serves the dispatcher until ctx ends or, after [Worker.Stop], the dispatcher has let the worker go; both return
// nil. A lost connection is tried again, for ever; that the dispatcher refuses the worker is an error. All partitions
// are dropped when Run returns.
func (w *Worker) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer w.shutDown(ctx)
	defer cancel()
	w.ending.Go(func() { w.trim(ctx) })
	backoff := firstBackoff
	for {
		admitted, err := w.session(ctx)
		switch {
		case errors.Is(err, errDrained):
			w.drained.Store(true)
			return nil
		case ctx.Err() != nil:
			return nil
		case errkind.Of(err) == errkind.Invalid || errkind.Of(err) == errkind.Conflict:
			return fmt.Errorf("worker %s is refused by the dispatcher: %w", w.cfg.Name, err)
		}
		if admitted {
			backoff = firstBackoff
		}
		if peers, ok := w.deps.Dispatcher.(interface{ Leave() }); ok {
			peers.Leave()
		}
		w.deps.Logger.Warn("connection to the dispatcher is lost", "worker", w.cfg.Name, "error", err, "next_try", backoff)
		if !w.pause(ctx, backoff) {
			return nil
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

// pause waits before the next try; it is false if the worker is to end meanwhile.
func (w *Worker) pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-w.stopping:
		return false
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// trim gives idle memory back to the system, until ctx ends: more of it where the process has more than it should.
func (w *Worker) trim(ctx context.Context) {
	above := false
	for sleep.For(ctx, trimEvery) == nil {
		w.trimPools()
		resident := residentBytes()
		if w.cfg.ResidentLimit == 0 || resident <= w.cfg.ResidentLimit {
			above = false
			continue
		}
		w.trimPools() // a second time: what was idle since just now goes too
		debug.FreeOSMemory()
		if !above {
			w.deps.Logger.Warn("the process has more memory than its budget accounts for", "worker", w.cfg.Name,
				"resident_bytes", resident, "limit_bytes", w.cfg.ResidentLimit, "budget_bytes", w.cfg.BudgetBytes, "held_bytes", w.store.Bytes())
		}
		above = true
	}
}

func (w *Worker) trimPools() {
	w.deps.Pool.Trim()
	if w.blocks != nil {
		w.blocks.Trim()
	}
}

// shutDown ends all jobs. ctx has ended.
func (w *Worker) shutDown(ctx context.Context) {
	w.mu.Lock()
	jobs := w.jobs
	w.jobs = map[string]*job{}
	w.mu.Unlock()
	for _, j := range jobs {
		j.close(ctx, w.deps.Logger)
	}
	w.ending.Wait()
	w.store.Close()
	if w.blocks != nil {
		if err := w.blocks.Close(); err != nil {
			w.deps.Logger.Error("giving back the memory of blocks", "worker", w.cfg.Name, "error", err)
		}
	}
}

// load is what the worker is doing.
type load struct {
	jobs, running int
	waiting       map[string]int // by reason
}

func (w *Worker) load() load {
	out := load{waiting: map[string]int{}}
	for _, j := range w.allJobs() {
		out.jobs++
		snapshot, waits := j.runner.Status()
		for _, s := range snapshot.Stages {
			out.running += s.Running
		}
		for _, wait := range waits {
			out.waiting[wait.Reason.String()] += wait.Count
		}
	}
	return out
}

func (w *Worker) allJobs() []*job {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]*job, 0, len(w.jobs))
	for _, j := range w.jobs {
		out = append(out, j)
	}
	return out
}
