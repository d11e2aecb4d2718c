package dispatch

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/order"
	"github.com/millrace/millrace/preprocess/dispatch/ledger"
	"github.com/millrace/millrace/preprocess/exec"
	"github.com/millrace/millrace/preprocess/lineage"
	"github.com/millrace/millrace/preprocess/partition"
	feedv1 "github.com/millrace/millrace/proto/millrace/feed/v1"
	workerv1 "github.com/millrace/millrace/proto/millrace/worker/v1"
)

func wireID(id lineage.ID) *workerv1.PartitionID { return partition.IDToWire(id) }

func wirePosition(p ledger.Position) *feedv1.Position {
	return &feedv1.Position{Epoch: p.Epoch, Step: p.Step, Row: p.Row}
}

func wirePlacement(p ledger.Placement, address string) *feedv1.Placement {
	return &feedv1.Placement{
		Id: wireID(p.ID), FirstRow: p.FirstRow, Rows: p.Rows, Bytes: p.Bytes,
		Attempt: p.Attempt, Worker: p.Worker, Address: address,
	}
}

func sourceTask(l exec.Launch) *workerv1.SourceTask {
	t := &workerv1.SourceTask{Id: wireID(l.Input), Attempt: l.Attempt}
	for _, id := range l.Skip {
		t.Skip = append(t.Skip, wireID(id))
	}
	return t
}

// eventSource is the partition that an event of a worker speaks of, and the attempt.
func eventSource(e *workerv1.Event) (lineage.ID, uint32, error) {
	var wire *workerv1.PartitionID
	var attempt uint32
	switch {
	case e.GetOutput() != nil:
		wire, attempt = e.GetOutput().GetId(), e.GetOutput().GetAttempt()
	case e.GetDone() != nil:
		wire, attempt = e.GetDone().GetId(), e.GetDone().GetAttempt()
	case e.GetFailed() != nil:
		wire, attempt = e.GetFailed().GetId(), e.GetFailed().GetAttempt()
	default:
		return lineage.ID{}, 0, errkind.Errorf(errkind.Invalid, "event without content")
	}
	id, err := partition.IDFromWire(wire)
	if err != nil {
		return lineage.ID{}, 0, fmt.Errorf("event: %w", err)
	}
	return id, attempt, nil
}

func failedMessage(err error, seats []uint32) *feedv1.AttachResponse {
	return &feedv1.AttachResponse{Message: &feedv1.AttachResponse_Failed{Failed: &feedv1.Failed{
		Kind: errkind.Of(err).String(), Text: err.Error(), Seats: slices.Clone(seats),
	}}}
}

func (j *job) wirePlan() *workerv1.JobPlan {
	s := j.spec
	return &workerv1.JobPlan{
		Job: j.name, Recipe: s.wireRecipe, Manifest: s.manifestID[:], Seed: s.seed, PlanDigest: s.pixelsDigest[:], Weight: 1, Layout: WireLayout(s.layout),
		OnError: s.onError.String(),
	}
}

// WireLayout is a layout as workers are told it.
func WireLayout(l order.Layout) *workerv1.Layout {
	return &workerv1.Layout{
		Shuffle: l.Shuffle.String(), NumSamples: l.NumSamples, BlockSamples: l.BlockSamples,
		WindowBlocks: l.WindowBlocks, Lanes: l.Lanes, PartitionSamples: l.PartitionSamples,
	}
}
