package sleep_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/internal/sleep"
)

func TestForWaitsForTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, d := range []time.Duration{-time.Second, 0, time.Nanosecond, time.Hour} {
			start := time.Now()
			if err := sleep.For(t.Context(), d); err != nil {
				t.Errorf("waiting for %v: %v", d, err)
			}
			if waited := time.Since(start); waited != max(d, 0) {
				t.Errorf("waited %v instead of %v", waited, d)
			}
		}
	})
}

func TestForEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("it is late")
		time.AfterFunc(time.Minute, func() { cancel(why) })
		start := time.Now()
		if err := sleep.For(ctx, time.Hour); !errors.Is(err, why) || time.Since(start) != time.Minute {
			t.Errorf("ended with %v after %v", err, time.Since(start))
		}
		for _, d := range []time.Duration{0, time.Hour} {
			if err := sleep.For(ctx, d); !errors.Is(err, why) {
				t.Errorf("waiting for %v in a context that has ended: %v", d, err)
			}
		}
	})
}
