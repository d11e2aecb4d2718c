package service

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Group runs parts that live and end together. When one ends with an error, or Stop is called, all are cancelled.
type Group struct {
	ctx    context.Context //nolint:containedctx // The group is the owner of its parts' lifetime.
	cancel context.CancelCauseFunc
	parts  sync.WaitGroup
}

// errStopped is the cause of a group that was stopped on purpose.
var errStopped = errors.New("stopped")

// NewGroup makes a group whose parts end with ctx.
func NewGroup(ctx context.Context) *Group {
	g := &Group{}
	g.ctx, g.cancel = context.WithCancelCause(ctx)
	return g
}

// Go runs a part. Its error ends the group; nil only ends the part.
func (g *Group) Go(run func(context.Context) error) {
	g.parts.Go(func() {
		if err := run(g.ctx); err != nil {
			g.cancel(err)
		}
	})
}

// Stop ends the group without an error.
func (g *Group) Stop() { g.cancel(errStopped) }

// Wait returns when all parts have ended: the first error of a part, nil when the group was stopped or its context
// ended. Parts get at most grace after the end of the group.
func (g *Group) Wait(grace time.Duration) error {
	done := make(chan struct{})
	go func() {
		g.parts.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-g.ctx.Done():
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-done:
		case <-timer.C:
			return errors.Join(g.err(), errors.New("some parts did not stop in time"))
		}
	}
	g.cancel(errStopped)
	return g.err()
}

// err is why the group ended, nil if on purpose.
func (g *Group) err() error {
	cause := context.Cause(g.ctx)
	if cause == nil || errors.Is(cause, errStopped) || errors.Is(cause, context.Canceled) {
		return nil
	}
	return cause
}
