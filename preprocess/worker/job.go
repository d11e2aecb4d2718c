package worker

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/order"
	"github.com/millrace/millrace/preprocess/exec"
	"github.com/millrace/millrace/preprocess/exec/run"
	"github.com/millrace/millrace/preprocess/isolate"
	"github.com/millrace/millrace/preprocess/lineage"
	"github.com/millrace/millrace/preprocess/op"
	"github.com/millrace/millrace/preprocess/partition"
	"github.com/millrace/millrace/preprocess/plan"
	"github.com/millrace/millrace/preprocess/pypool"
)

// job is one job on this worker: its plan, its executor and what its stages hold.
type job struct {
	jobSpec

	store   *partition.Store
	pool    *partition.Pool
	out     *outbox
	metrics *metrics
	made    *atomic.Int64 // samples of all jobs
	source  *source
	scalar  bool
	share   *run.Share
	runner  *run.Runner
	python  *pypool.Session  // nil where functions of users are not run
	outside *isolate.Session // nil where all is decoded in this process

	mu      sync.Mutex
	between map[lineage.ID]*between
	bad     map[lineage.ID]bad // found in inputs whose end was not reported yet
	// quarantined samples, and why.
	quarantined map[uint64]string
}

// jobSpec is what the dispatcher says of a job.
type jobSpec struct {
	name     string
	plan     *plan.Plan
	schema   *arrow.Schema
	layout   order.Layout
	manifest [16]byte
	digest   [16]byte
	seed     uint64
	weight   uint32
	onError  plan.OnError
}

// sameAs reports whether both make the same partitions, with the same functions.
func (s *jobSpec) sameAs(o *jobSpec) bool {
	return s.digest == o.digest && s.plan.Shipped() == o.plan.Shipped() && s.manifest == o.manifest && s.seed == o.seed && s.layout == o.layout && s.onError == o.onError
}

// newJob starts a job on w. Its tasks end with ctx.
func (w *Worker) newJob(ctx context.Context, spec *jobSpec) (*job, error) {
	if err := op.PythonAllowed(w.cfg.AllowPython, spec.plan.PythonFunctions()); err != nil {
		return nil, fmt.Errorf("worker %s: %w", w.cfg.Name, err)
	}
	for i := range spec.plan.Stages {
		for name, n := range spec.plan.Stages[i].Resources {
			if n > w.cfg.Slots[name] {
				return nil, errkind.Errorf(errkind.Unavailable, "stage %s takes %d slots of %s, and worker %s has %d", spec.plan.Stages[i].Name, n, name, w.cfg.Name, w.cfg.Slots[name])
			}
		}
	}
	j := &job{
		jobSpec: *spec, store: w.store, pool: w.deps.Pool, out: w.out, metrics: w.metrics, made: &w.made, scalar: w.cfg.Scalar,
		share: w.shares.Join(spec.weight), source: w.sources.join(spec.manifest), between: map[lineage.ID]*between{},
		bad: map[lineage.ID]bad{}, quarantined: map[uint64]string{},
	}
	if w.deps.Python != nil {
		j.python = w.deps.Python.Join(j.share.Held)
	}
	if w.deps.Isolated != nil {
		j.outside = w.deps.Isolated.Join(j.share.Held)
	}
	var err error
	j.runner, err = run.New(ctx, run.Config{
		Core: exec.Config{Policy: w.cfg.Policy, Stages: stageSpecs(spec.plan, spec.layout.PartitionSamples)}, Slots: w.cfg.Slots, BudgetBytes: w.cfg.BudgetBytes,
		Share: j.share, Stages: j, Reports: j, Logger: w.deps.Logger.With("job", j.name),
		TaskSeconds: func(stage int, d time.Duration) { w.metrics.task(spec.plan.Stages[stage].Name, d) },
	})
	if err != nil {
		j.closePython()
		j.share.Leave()
		_ = j.source.leave() // nothing was opened
		return nil, fmt.Errorf("starting job %s: %w", j.name, err)
	}
	return j, nil
}

// rowOverhead is the size of a row's key and sample number, roughly: it widens what the executor charges.
const rowOverhead = 64

// stageSpecs are the stages of p as the executor takes them, for source partitions of that many samples.
func stageSpecs(p *plan.Plan, samples int64) []exec.StageSpec {
	specs := make([]exec.StageSpec, len(p.Stages))
	rows := samples // of an input, 0 where they are not known
	for i := range p.Stages {
		s := &p.Stages[i]
		if !keepsRows(s) {
			rows = 0
		}
		if whole := int64(rowsPerOutput(s, p.TargetBytes)); whole > 0 && (rows == 0 || whole < rows) {
			rows = whole
		} else if whole == 0 {
			rows = 0
		}
		largest := max(p.TargetBytes, s.RowBytes)
		if rows > 0 {
			largest = min(largest, rows*s.RowBytes)
		}
		largest += rowOverhead * max(1, rows)
		specs[i] = exec.StageSpec{Name: fmt.Sprintf("%d:%s", i, s.Name), Resources: s.Resources, MaxOutputBytes: largest}
	}
	return specs
}

// offer is a source partition as the executor takes it.
func (j *job) offer(id lineage.ID, grant run.Grant, skip []lineage.ID) run.Offer {
	rows := min(j.layout.PartitionSamples, j.layout.NumSamples-int64(id.Source)*j.layout.PartitionSamples) //nolint:gosec // Checked by ordinals.
	o := run.Offer{Grant: grant, Offered: exec.Offered{ID: id, Rows: max(0, rows), Skip: skip}}
	o.ExpectBytes = expectedBytes(&j.plan.Stages[0], o.Rows)
	return o
}

// expectedBytes is what a stage whose rows have one size makes of some rows; 0 where their number depends on the data.
func expectedBytes(s *plan.Stage, rows int64) int64 {
	for _, o := range s.Ops {
		fanout := o.Info().Fanout
		switch {
		case o.Info().KeepsRows:
		case fanout == 0 || rows > exec.Unlimited/fanout:
			return 0
		default:
			rows *= fanout
		}
	}
	if row := s.RowBytes + rowOverhead; s.RowBytes > 0 && rows > 0 && row < exec.Unlimited/rows {
		return rows * row
	}
	return 0
}

// ordinals are the manifest ordinals of a source partition's samples, in stream order.
func (j *job) ordinals(id lineage.ID) ([]int64, error) {
	e := j.layout.Epoch(j.seed, id.Epoch)
	if n := e.NumPartitions(); id.Source >= uint64(n) { //nolint:gosec // Never negative.
		return nil, errkind.Errorf(errkind.Invalid, "job %s has no source partition %d; an epoch has %d", j.name, id.Source, n)
	}
	return e.Samples(int64(id.Source), nil), nil //nolint:gosec // Checked above.
}

// windowKey names a window among all that read the same dataset.
type windowKey struct {
	layout      order.Layout
	seed, epoch uint64
	window      int64
}

// window is the window whose blocks a task shares with the tasks after it; nil for one that is made again: its window
// mostly is another worker's, and of the blocks it would use just a few rows.
func (j *job) window(t run.Task) *dataset.Window {
	if t.Grant.Attempt > 0 || j.layout.Shuffle != order.ShuffleBlock {
		return nil
	}
	e := j.layout.Epoch(j.seed, t.Input.Epoch)
	n := e.Partition(int64(t.Input.Source)).Window //nolint:gosec // ordinals has checked it
	return &dataset.Window{Key: windowKey{j.layout, j.seed, t.Input.Epoch, n}, Blocks: e.WindowBlocks(n)}
}

// keep puts a final output into the store and reports it.
func (j *job) keep(p *partition.Partition, grant run.Grant) {
	report := outputEvent(j.name, grant, partition.Held{
		ID: p.ID(), Attempt: p.Attempt(), Rows: p.NumRows(), Bytes: p.Bytes(), Hash: p.Hash(),
	})
	j.metrics.rows.Add(float64(p.NumRows()))
	j.share.Held(p.Bytes())
	j.store.Put(j.name, grant.Generation, p)
	j.out.put(report)
}

// SourceDone reports the end of a source partition.
func (j *job) SourceDone(id lineage.ID, grant run.Grant, outputs int) {
	j.out.put(doneEvent(j.name, id, grant, outputs, j.takeBad(id)))
}

// InputDone reports the end of an input of a stage after the first.
func (j *job) InputDone(id lineage.ID, grant run.Grant, outputs int) {
	j.out.put(doneEvent(j.name, id, grant, outputs, j.takeBad(id)))
}

// SourceFailed reports that a source partition can't be made.
func (j *job) SourceFailed(id lineage.ID, grant run.Grant, err error) {
	j.metrics.failed(err)
	j.out.put(failedEvent(j.name, id, grant, err))
}

// closePython ends the processes of the job.
func (j *job) closePython() {
	if j.python != nil {
		j.python.Close()
	}
}

// close ends the job's tasks, which may finish until ctx ends, and gives up what its stages hold.
func (j *job) close(ctx context.Context, log *slog.Logger) {
	j.runner.Close(ctx)
	j.closePython()
	j.freeBetween()
	j.share.Leave()
	if err := j.source.leave(); err != nil {
		log.Error("ending a job", "job", j.name, "error", err)
	}
}
