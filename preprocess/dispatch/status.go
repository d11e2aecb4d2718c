package dispatch

import (
	"context"
	"slices"
	"strings"

	statusv1 "github.com/millrace/millrace/proto/millrace/status/v1"
)

type statusService struct {
	statusv1.UnimplementedStatusServiceServer
	d *Dispatcher
}

// GetStatus is a snapshot of jobs, ranks and workers.
func (s *statusService) GetStatus(context.Context, *statusv1.GetStatusRequest) (*statusv1.GetStatusResponse, error) {
	return s.d.Status(), nil
}

// Status is a snapshot of jobs, ranks and workers.
func (d *Dispatcher) Status() *statusv1.GetStatusResponse {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := &statusv1.GetStatusResponse{Version: d.cfg.Version, Term: d.term}
	for _, j := range d.sortedJobs() {
		out.Jobs = append(out.Jobs, j.status())
	}
	for _, w := range d.sortedWorkers() {
		out.Workers = append(out.Workers, w.status())
	}
	return out
}

func (w *worker) status() *statusv1.Worker {
	state := "ready"
	if w.draining {
		state = "draining"
	}
	return &statusv1.Worker{
		Name: w.name, Address: w.address, Slots: statusSlots(w.slots), BudgetBytes: w.budget,
		HeldBytes: w.beat.GetHeldBytes(), ResidentBytes: w.beat.GetResidentBytes(),
		Running: w.beat.GetRunning(), Samples: w.beat.GetSamples(), State: state, Version: w.version,
	}
}

func (j *job) status() *statusv1.Job {
	slowest := j.slowest()
	out := &statusv1.Job{
		Name: j.name, State: j.state(), Source: strings.Join(j.spec.recipe.Source, ", "), Generation: j.generation,
		Epoch: slowest.epoch, Step: slowest.step, Steps: j.spec.steps(), GlobalBatch: j.spec.globalBatch,
		Outstanding: int64(len(j.tasks)), Waiting: j.cause(), WorldSize: uint32(j.spec.world), Peers: uint32(j.spec.peers), //nolint:gosec // Bounded by newSpec.
	}
	out.BadSamples, out.Bad = j.bad.total, slices.Clone(j.bad.last)
	if j.ledger != nil {
		out.HeldBytes = j.ledger.HeldBytes()
	}
	if j.failed != nil {
		out.Error = j.failed.Error()
	}
	for _, r := range j.ranks {
		rank := &statusv1.Rank{Rank: uint32(r.index / j.spec.peers), Peer: uint32(r.index % j.spec.peers), State: "gone", Epoch: r.epoch, Step: r.step} //nolint:gosec // As above.
		switch {
		case r.sidecar != nil:
			rank.State, rank.Sidecar = "streaming", r.sidecar.name
		case r.joined:
			rank.State = "joined"
		}
		out.Ranks = append(out.Ranks, rank)
	}
	return out
}

func (j *job) state() string {
	switch {
	case j.failed != nil:
		return "failed"
	case j.core != nil:
		return "running"
	case j.hasRanks():
		return "waiting"
	}
	return "idle"
}
