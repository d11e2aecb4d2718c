package ranged

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/sleep"
)

// Fault is the kind of a Failure.
type Fault uint8

const (
	// Broken is an answer that broke off, made no sense, or said that the server has a problem.
	Broken Fault = iota
	// Throttled is an answer that asks to slow down.
	Throttled
	// Unreachable is a connection that could not be made.
	Unreachable
	// Wrong is an answer to another question, such as another range.
	Wrong
	// Expired is a refusal of credentials that have been renewed since.
	Expired
)

// Failure is an error that is worth another try.
type Failure struct {
	Fault Fault
	// After is how long the server asks to wait; 0: it does not say.
	After time.Duration
	Err   error
}

// Error implements error.
func (f *Failure) Error() string { return f.Err.Error() }

// Unwrap gives the cause.
func (f *Failure) Unwrap() error { return f.Err }

var errSilent = errors.New("the connection is silent")

const (
	firstPause = 25 * time.Millisecond
	mostPause  = 4 * time.Second
	// mostWrong is how often an answer to another question is put up with.
	mostWrong = 4
	// progress is what a try must bring to count as one that came forward; a server that cuts after some bytes
	// each time would otherwise be asked for ever.
	progress = 64 << 10
)

// tries decides about further tries of one read.
type tries struct {
	reader *Reader
	since  time.Time // the last time something came
	// failed counts tries since then; wrong and expired count faults of those kinds over the whole read.
	failed, total, wrong, expired int
}

func newTries(r *Reader) *tries { return &tries{reader: r, since: time.Now()} }

// next waits until the next try after cause, which brought so many bytes; or says why there is none.
func (t *tries) next(ctx context.Context, key string, cause error, bytes int) error {
	f, ok := errors.AsType[*Failure](cause)
	if !ok || ctx.Err() != nil {
		return cause
	}
	t.total++
	name := t.reader.opts.Name(key)
	if bytes >= progress {
		t.failed, t.since = 0, time.Now()
	} else {
		t.failed++
	}
	switch f.Fault {
	case Wrong:
		if t.wrong++; t.wrong >= mostWrong {
			return errkind.Errorf(errkind.BadData, "%s: %w (%d times)", name, f.Err, t.wrong)
		}
	case Expired:
		if t.expired++; t.expired > 1 {
			return errkind.Errorf(errkind.Unavailable, "%s: %w, and new ones are refused too", name, f.Err)
		}
		return nil
	case Broken, Throttled, Unreachable:
	}
	patience := t.reader.opts.RetryFor
	if !t.reader.answered.Load() {
		patience = t.reader.opts.FirstRetryFor
	}
	pause := max(f.After, t.pause())
	if spent := time.Since(t.since); spent+pause > patience {
		return errkind.Errorf(errkind.Unavailable, "%s: gave up after %d tries in %v: %w", name, t.total, spent.Round(100*time.Millisecond), f.Err)
	}
	t.reader.stats.retries.Add(1)
	return sleep.For(ctx, pause)
}

// pause doubles from try to try, and is drawn from its upper half so that those who failed together do not come back
// together. The first try after a cut body follows at once.
func (t *tries) pause() time.Duration {
	if t.failed == 0 {
		return 0
	}
	p := min(mostPause, firstPause<<min(t.failed-1, 16))
	return p/2 + rand.N(p/2)
}
