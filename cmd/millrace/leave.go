package main

import (
	"context"
	"time"

	"github.com/millrace/millrace/internal/service"
)

// leaveWithin has the first request to end call stop, which leads to the end of the group's work; after limit, all ends at
// once. A limit of 0 leaves that to every request.
func (a *app) leaveWithin(limit time.Duration, g *service.Group, stop func()) {
	if limit <= 0 {
		return
	}
	leave := func() {
		stop()
		timer := time.AfterFunc(limit, g.Stop)
		g.Go(func(ctx context.Context) error { <-ctx.Done(); timer.Stop(); return nil })
	}
	a.leave.Store(&leave)
}
