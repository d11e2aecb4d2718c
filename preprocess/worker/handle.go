package worker

import (
	"context"
	"math"
	"slices"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/exec/run"
	"github.com/millrace/millrace/preprocess/lineage"
	"github.com/millrace/millrace/preprocess/partition"
	workerv1 "github.com/millrace/millrace/proto/millrace/worker/v1"
)

// handle carries out one message of the dispatcher. It does not wait for tasks.
func (w *Worker) handle(ctx context.Context, m *workerv1.ConnectResponse) {
	var err error
	switch {
	case m.GetPlan() != nil:
		w.begin(ctx, m.GetPlan())
	case m.GetRun() != nil:
		err = w.run(m.GetRun())
	case m.GetFree() != nil:
		var ids []lineage.ID
		if ids, err = idsFromWire(m.GetFree().GetIds()); err == nil {
			w.store.Free(m.GetFree().GetJob(), ids...)
			w.out.freed(m.GetFree().GetJob(), ids...)
		}
	case m.GetNeeded() != nil:
		w.needed(m.GetNeeded())
	case m.GetCancel() != nil:
		err = w.cancel(m.GetCancel())
	case m.GetEndJob() != nil:
		w.end(ctx, m.GetEndJob().GetJob())
	}
	if err != nil {
		w.deps.Logger.Error("message of the dispatcher can't be carried out", "error", err)
	}
}

// begin starts a job. One that can't run here answers each of its tasks with the reason.
func (w *Worker) begin(ctx context.Context, msg *workerv1.JobPlan) {
	spec, err := specFromWire(msg)
	if err == nil {
		if old := w.job(spec.name); old != nil && old.sameAs(spec) {
			return
		}
	}
	w.end(ctx, msg.GetJob())
	var j *job
	if err == nil {
		j, err = w.newJob(ctx, spec)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.deps.Logger.Error("job can't run here", "job", msg.GetJob(), "error", err)
		w.broken[msg.GetJob()] = err
		return
	}
	w.jobs[spec.name] = j
}

// end drops a job and all that belongs to it. Its tasks are cancelled and end in their own time.
func (w *Worker) end(ctx context.Context, name string) {
	w.mu.Lock()
	j := w.jobs[name]
	delete(w.jobs, name)
	delete(w.broken, name)
	w.mu.Unlock()
	if j != nil {
		j.runner.WithdrawBelow(math.MaxUint64) // so that nothing is kept after the next line
	}
	w.store.DropJob(name)
	w.out.forget(name, func(lineage.ID, run.Grant) bool { return true })
	if j == nil {
		return
	}
	over, cancel := context.WithCancel(ctx)
	cancel()
	w.ending.Go(func() { j.close(over, w.deps.Logger) })
}

// run offers source partitions to a job's executor.
func (w *Worker) run(msg *workerv1.Run) error {
	w.mu.Lock()
	j, broken := w.jobs[msg.GetJob()], w.broken[msg.GetJob()]
	w.mu.Unlock()
	offers := make([]run.Offer, 0, len(msg.GetTasks()))
	for _, task := range msg.GetTasks() {
		id, err := partition.IDFromWire(task.GetId())
		if err != nil {
			return err
		}
		skip, err := idsFromWire(task.GetSkip())
		if err != nil {
			return err
		}
		grant := run.Grant{Attempt: task.GetAttempt(), Generation: msg.GetGeneration()}
		if j == nil {
			w.refuse(msg.GetJob(), id, grant, broken)
			continue
		}
		j.quarantine(task.GetQuarantined())
		w.out.granted(j.name, id, grant, len(skip) > 0)
		offers = append(offers, j.offer(id, grant, skip))
	}
	if j != nil {
		j.runner.Offer(offers...)
	}
	return nil
}

// refuse answers a task of a job that can't run here.
func (w *Worker) refuse(job string, id lineage.ID, grant run.Grant, err error) {
	if err == nil {
		err = errkind.Errorf(errkind.Unavailable, "worker %s does not know job %s", w.cfg.Name, job)
	}
	w.metrics.failed(err)
	w.out.put(failedEvent(job, id, grant, err))
}

// cancel drops the tasks and outputs of earlier generations, and those of single source partitions.
func (w *Worker) cancel(m *workerv1.Cancel) error {
	sources, err := idsFromWire(m.GetSources())
	if err != nil {
		return err
	}
	name, below := m.GetJob(), m.GetBelowGeneration()
	if j := w.job(name); j != nil {
		j.runner.WithdrawBelow(below)
		j.runner.Withdraw(sources...)
	}
	w.store.DropBelow(name, below)
	w.store.DropSources(name, sources...)
	w.out.forget(name, func(id lineage.ID, grant run.Grant) bool {
		return grant.Generation < below || slices.Contains(sources, id)
	})
	return nil
}

// needed puts a source partition before all else.
func (w *Worker) needed(m *workerv1.Needed) {
	id, err := partition.IDFromWire(m.GetId())
	if j := w.job(m.GetJob()); j != nil && err == nil {
		j.runner.Needed(id)
	}
}
