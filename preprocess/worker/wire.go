package worker

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/order"
	"github.com/millrace/millrace/preprocess/exec/run"
	"github.com/millrace/millrace/preprocess/lineage"
	"github.com/millrace/millrace/preprocess/op"
	"github.com/millrace/millrace/preprocess/partition"
	"github.com/millrace/millrace/preprocess/plan"
	"github.com/millrace/millrace/preprocess/recipe"
	workerv1 "github.com/millrace/millrace/proto/millrace/worker/v1"
)

// specFromWire reads a job. Its errors say what is wrong with it.
func specFromWire(msg *workerv1.JobPlan) (*jobSpec, error) {
	spec := &jobSpec{name: msg.GetJob(), seed: msg.GetSeed(), weight: msg.GetWeight()}
	if spec.name == "" || len(spec.name) > partition.MaxJobName {
		return nil, errkind.Errorf(errkind.Invalid, "job name of %d bytes; it has to be 1 to %d", len(spec.name), partition.MaxJobName)
	}
	if n := copy(spec.manifest[:], msg.GetManifest()); n != len(spec.manifest) || len(msg.GetManifest()) != n {
		return nil, errkind.Errorf(errkind.Invalid, "job %s: manifest id of %d bytes, not 16", spec.name, len(msg.GetManifest()))
	}
	copy(spec.digest[:], msg.GetPlanDigest())
	var err error
	if spec.onError, err = plan.ParseOnError(cmp.Or(msg.GetOnError(), plan.Raise.String())); err != nil {
		return nil, fmt.Errorf("job %s: %w", spec.name, err)
	}
	if spec.layout, err = layoutFromWire(msg.GetLayout()); err != nil {
		return nil, fmt.Errorf("job %s: %w", spec.name, err)
	}
	r, err := recipe.FromProto(msg.GetRecipe())
	if err != nil {
		return nil, fmt.Errorf("job %s: %w", spec.name, err)
	}
	if spec.plan, err = plan.New(r); err != nil {
		return nil, fmt.Errorf("job %s: %w", spec.name, err)
	}
	if spec.schema, err = plan.ArrowSchema(spec.plan.Schema); err != nil {
		return nil, fmt.Errorf("job %s: %w", spec.name, err)
	}
	return spec, nil
}

func layoutFromWire(msg *workerv1.Layout) (order.Layout, error) {
	shuffle, err := order.ParseShuffle(msg.GetShuffle())
	if err != nil {
		return order.Layout{}, err
	}
	l := order.Layout{
		Shuffle: shuffle, NumSamples: msg.GetNumSamples(), BlockSamples: msg.GetBlockSamples(),
		WindowBlocks: msg.GetWindowBlocks(), Lanes: msg.GetLanes(), PartitionSamples: msg.GetPartitionSamples(),
	}
	return l, l.Validate()
}

func idsFromWire(msgs []*workerv1.PartitionID) ([]lineage.ID, error) {
	ids := make([]lineage.ID, len(msgs))
	for i, msg := range msgs {
		id, err := partition.IDFromWire(msg)
		if err != nil {
			return nil, err
		}
		ids[i] = id
	}
	return ids, nil
}

func outputToWire(h partition.Held) *workerv1.OutputReady {
	return &workerv1.OutputReady{Id: partition.IDToWire(h.ID), Attempt: h.Attempt, Rows: h.Rows, Bytes: h.Bytes, ContentHash: h.Hash[:]}
}

func outputEvent(job string, grant run.Grant, h partition.Held) *workerv1.Event {
	return &workerv1.Event{Job: job, Generation: grant.Generation, Event: &workerv1.Event_Output{Output: outputToWire(h)}}
}

func doneEvent(job string, id lineage.ID, grant run.Grant, outputs int, found bad) *workerv1.Event {
	return &workerv1.Event{Job: job, Generation: grant.Generation, Event: &workerv1.Event_Done{Done: &workerv1.PartitionDone{
		Id: partition.IDToWire(id), Attempt: grant.Attempt, Outputs: uint32(outputs), Bad: found.toWire(), //nolint:gosec // At most the rows of a partition.
	}}}
}

func failedEvent(job string, id lineage.ID, grant run.Grant, err error) *workerv1.Event {
	return &workerv1.Event{Job: job, Generation: grant.Generation, Event: &workerv1.Event_Failed{Failed: &workerv1.SourceFailed{
		Id: partition.IDToWire(id), Attempt: grant.Attempt, Kind: errkind.Of(err).String(), Text: err.Error(), Retry: worthRetrying(err),
	}}}
}

// worthRetrying reports whether another try, maybe on another worker, may help.
func worthRetrying(err error) bool {
	if _, ok := errors.AsType[*op.SampleError](err); ok {
		return false
	}
	switch errkind.Of(err) {
	case errkind.BadData, errkind.Invalid:
		return false
	}
	return true
}

func (w *Worker) registerToWire() *workerv1.Register {
	msg := &workerv1.Register{
		Worker: w.cfg.Name, DataAddress: w.cfg.DataAddress, Slots: map[string]uint32{}, BudgetBytes: w.cfg.BudgetBytes,
		Fingerprint: w.cfg.Fingerprint, Version: w.cfg.Version, Python: w.cfg.AllowPython,
	}
	for name, n := range w.cfg.Slots {
		msg.Slots[name] = uint32(n) //nolint:gosec // Checked by Validate.
	}
	w.mu.Lock()
	msg.Term = w.term
	w.mu.Unlock()
	msg.Sources = w.out.register()
	return msg
}
