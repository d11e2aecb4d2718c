package run

import (
	"context"

	"github.com/millrace/millrace/preprocess/exec"
)

// emit hands an output over, after waiting for room if the task is paused.
func (r *Runner) emit(ctx context.Context, t *running, o Output) error {
	err := r.await(ctx, t, o.Bytes, func() { r.keep(t, o) })
	if err != nil {
		o.Drop()
	}
	return err
}

// room waits for room for the next output of a paused task.
func (r *Runner) room(ctx context.Context, t *running) error {
	if !t.waits.Load() {
		return nil
	}
	return r.await(ctx, t, r.cfg.Core.Stages[t.Stage].MaxOutputBytes, func() {})
}

// await runs then once the task is not paused; until then it waits for room for an output of that size.
func (r *Runner) await(ctx context.Context, t *running, bytes int64, then func()) error {
	for {
		var (
			wait   chan struct{}
			expect int64
			done   bool
		)
		r.ask(func() {
			switch {
			case ctx.Err() != nil || !r.wanted(t):
			case t.paused:
				wait, expect = t.resumed, r.expectation(t.Stage)
				r.apply(exec.OutputBlocked{Task: t.Task, Attempt: t.Attempt, Bytes: bytes})
			default:
				done = true
				then()
			}
		})
		switch {
		case done:
			return nil
		case wait == nil:
			return errUnwanted
		}
		// What waits for room must not keep the slots from other jobs.
		t.leave()
		select {
		case <-wait:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := t.enter(ctx, r.cfg.Share.request(r.cfg.Core.Stages[t.Stage].Resources, expect)); err != nil {
			return err
		}
	}
}
