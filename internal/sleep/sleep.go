// Package sleep waits for a time or the end of a context, whatever is first.
package sleep

import (
	"context"
	"time"
)

// For waits for d, and not at all where d is not positive. It returns the cause of ctx's end if that came first.
func For(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return context.Cause(ctx)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
