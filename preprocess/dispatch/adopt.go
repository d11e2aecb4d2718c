package dispatch

import (
	"slices"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/exec"
	"github.com/millrace/millrace/preprocess/lineage"
	"github.com/millrace/millrace/preprocess/partition"
	feedv1 "github.com/millrace/millrace/proto/millrace/feed/v1"
	workerv1 "github.com/millrace/millrace/proto/millrace/worker/v1"
)

// resume goes on with a generation that a dispatcher before this one began: every rank has said where it is, and at
// least one sidecar has the generation. Nothing begins anew: what workers hold is taken over, and sidecars keep what they
// have fetched.
func (j *job) resume(generation uint64) error {
	first := *j.ranks[0].want
	for _, r := range j.ranks {
		if w := *r.want; w.Epoch < first.Epoch || (w.Epoch == first.Epoch && w.Step < first.Step) {
			first = w
		}
	}
	if err := j.set(first); err != nil {
		return err
	}
	j.generation = generation
	for _, r := range j.ranks {
		// A rank that asks anew, such as one whose sidecar was lost too, is granted its place in the generation.
		asks := r.wantGeneration == 0
		r.epoch, r.step, r.want = r.want.Epoch, r.want.Step, nil
		if s := r.sidecar; s != nil && (asks || s.generation != generation) {
			s.out.put(&feedv1.AttachResponse{Message: &feedv1.AttachResponse_Started{
				Started: &feedv1.Started{Generation: generation, Position: wirePosition(first)},
			}})
		}
	}
	for _, s := range j.sidecars {
		s.generation = generation
	}
	for _, w := range j.d.sortedWorkers() {
		j.join(w)
	}
	j.d.cfg.Logger.Info("generation goes on", "job", j.name, "generation", generation, "epoch", first.Epoch, "step", first.Step, "row", first.Row)
	j.note(nil)
	j.decide()
	return nil
}

// resumable is the generation with which the ranks can go on; 0 where there is none.
func (j *job) resumable() uint64 {
	var generation uint64
	for _, r := range j.ranks {
		generation = max(generation, r.wantGeneration)
	}
	if generation == 0 || generation < j.generation {
		return 0
	}
	// All must cut the stream in the same places.
	for _, r := range j.ranks {
		for _, o := range j.ranks {
			a, b := *r.want, *o.want
			if a.Epoch == b.Epoch && a.Row-b.Row != (a.Step-b.Step)*j.spec.globalBatch {
				return 0
			}
		}
	}
	return generation
}

// adopt takes over what a worker made or makes for a dispatcher before this one, or before its connection broke. What
// does not fit, such as what was given to another meanwhile, it has to drop.
func (j *job) adopt(w *worker) {
	held := w.held[j.name]
	delete(w.held, j.name)
	if len(held) == 0 {
		return
	}
	j.offer()
	var refused []*workerv1.PartitionID
	adopted := 0
	for _, h := range held {
		if err := j.adoptSource(w, h); err != nil {
			j.d.cfg.Logger.Debug("a source partition is not taken over", "job", j.name, "worker", w.name, "reason", err)
			refused = append(refused, h.GetId())
			continue
		}
		adopted++
	}
	j.d.metrics.adopted.Add(float64(adopted))
	j.d.cfg.Logger.Info("worker came back", "job", j.name, "worker", w.name, "taken_over", adopted, "dropped", len(refused))
	if len(refused) > 0 {
		w.out.put(&workerv1.ConnectResponse{Message: &workerv1.ConnectResponse_Cancel{
			Cancel: &workerv1.Cancel{Job: j.name, BelowGeneration: j.generation, Sources: refused},
		}})
	}
}

func (j *job) adoptSource(w *worker, h *workerv1.SourceHeld) error {
	id, err := partition.IDFromWire(h.GetId())
	if err != nil {
		return err
	}
	if h.GetGeneration() != j.generation || h.GetPartial() || j.failed != nil {
		return errkind.Errorf(errkind.Conflict, "partition %s is of generation %d, or not whole", id, h.GetGeneration())
	}
	if err := j.checkFreed(id, h); err != nil {
		return err
	}
	taskID, err := j.core.Adopt(id, exec.NodeID(w.name), h.GetAttempt())
	if err != nil {
		return err
	}
	t := task{id: taskID, attempt: h.GetAttempt(), worker: w.name}
	j.tasks[id] = t
	for _, o := range h.GetOutputs() {
		output, err := partition.IDFromWire(o.GetId())
		if err != nil {
			return err
		}
		j.output(w, t, output, o)
	}
	for _, done := range h.GetDone() {
		input, err := partition.IDFromWire(done.GetId())
		if err != nil {
			return err
		}
		j.done(t, input, int(done.GetOutputs()))
	}
	return nil
}

// checkFreed refuses a source partition some of whose outputs are gone and needed still.
func (j *job) checkFreed(id lineage.ID, h *workerv1.SourceHeld) error {
	if len(h.GetFreed()) == 0 {
		return nil
	}
	var rows int64
	for i, o := range h.GetOutputs() {
		gone := slices.ContainsFunc(h.GetFreed(), func(f *workerv1.PartitionID) bool { return samePath(f, o.GetId()) })
		switch {
		case gone && i < len(h.GetFreed()):
			rows += o.GetRows()
		case gone:
			return errkind.Errorf(errkind.Conflict, "partition %s has outputs that were freed before earlier ones", id)
		}
	}
	if !j.ledger.Passed(id, rows) {
		return errkind.Errorf(errkind.Conflict, "the first %d rows of partition %s are gone and needed", rows, id)
	}
	return nil
}

func samePath(a, b *workerv1.PartitionID) bool { return slices.Equal(a.GetPath(), b.GetPath()) }
