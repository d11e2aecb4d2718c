package ranged

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/millrace/millrace/loader/store"
	"github.com/millrace/millrace/loader/store/limit"
)

const (
	// maxHedges is how often one request is doubled.
	maxHedges = 2
	// lastFew is how many requests may be missing of a batch so that each of them counts as what it waits for, and
	// lastShare the share.
	lastFew, lastShare = 4, 10
)

// batch is the ranges of one read. The caller waits for all of them, so only the first that is missing, or the last
// few, are worth asking for twice.
type batch struct {
	reader *Reader
	slots  []*slot

	mu   sync.Mutex
	head int // the first slot that is not finished
	left int
}

// slot is one of them.
type slot struct {
	batch *batch
	place int
	q     store.Range
	// The rest is guarded by batch.mu.
	begun    time.Time
	late     bool
	finished bool
	timer    *time.Timer
	doubles  []*double
	double   func() // starts a double
}

// double is a second request for what a slot wants, into memory of its own.
type double struct {
	dst    []byte
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

func newBatch(r *Reader, parts []store.Range) *batch {
	b := &batch{reader: r, left: len(parts), slots: make([]*slot, len(parts))}
	for i, q := range parts {
		b.slots[i] = &slot{batch: b, place: i, q: q}
	}
	return b
}

// errDoubled ends a request whose double was faster.
var errDoubled = errors.New("a second request was faster")

// run reads the slot's range by one request and, should that be late, by doubles of it; the first that succeeds counts.
func (s *slot) run(ctx context.Context) error {
	r := s.batch.reader
	mine, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.double = func() { s.startDouble(ctx, cancel) }
	err := r.fetch(mine, s.q, s.start)
	doubles := s.finish()
	if err != nil {
		for _, d := range doubles {
			<-d.done
			if d.err == nil { // Nothing else writes to Dst any more.
				copy(s.q.Dst, d.dst)
				r.stats.hedgeWins.Add(1)
				err = nil
				break
			}
		}
	}
	for _, d := range doubles {
		d.cancel()
		<-d.done
	}
	return err
}

// start is called at each request; the first one starts the clock.
func (s *slot) start() {
	b := s.batch
	b.mu.Lock()
	defer b.mu.Unlock()
	if !s.begun.IsZero() {
		return
	}
	s.begun = time.Now()
	if threshold, known := b.reader.hedges.Threshold(int64(len(s.q.Dst))); known {
		s.timer = time.AfterFunc(threshold, s.isLate)
	}
}

func (s *slot) isLate() {
	b := s.batch
	b.mu.Lock()
	defer b.mu.Unlock()
	s.late = true
	b.consider()
}

// finish ends the slot's own request and returns its doubles.
func (s *slot) finish() []*double {
	b := s.batch
	b.mu.Lock()
	defer b.mu.Unlock()
	s.finished = true
	if s.timer != nil {
		s.timer.Stop()
	}
	if !s.begun.IsZero() {
		b.reader.hedges.Observe(int64(len(s.q.Dst)), time.Since(s.begun))
	}
	b.left--
	for b.head < len(b.slots) && b.slots[b.head].finished {
		b.head++
	}
	b.consider()
	return s.doubles
}

// consider doubles late requests that hold up the batch, as far as budget and limits allow.
func (b *batch) consider() {
	if b.left > max(lastFew, len(b.slots)/lastShare) {
		if b.head < len(b.slots) {
			b.slots[b.head].considerDouble()
		}
		return
	}
	for _, s := range b.slots[b.head:] {
		s.considerDouble()
	}
}

func (s *slot) considerDouble() {
	if s.finished || !s.late || len(s.doubles) == maxHedges {
		return
	}
	s.double()
}

// startDouble starts a second request. cancel ends the slot's own.
func (s *slot) startDouble(ctx context.Context, cancel context.CancelCauseFunc) {
	r := s.batch.reader
	w := r.limits.Window(s.q.Key)
	s.late = false
	if threshold, known := r.hedges.Threshold(int64(len(s.q.Dst))); known {
		s.timer = time.AfterFunc(threshold, s.isLate) // for the next double, or for a try when there is budget again
	}
	turn, ok := w.TryAcquire()
	if !ok {
		return
	}
	if !r.hedges.Take() {
		w.Release(turn, limit.Other)
		return
	}
	r.stats.hedges.Add(1)
	q := s.q
	q.Dst = make([]byte, len(s.q.Dst))
	ctx, stop := context.WithCancel(ctx)
	d := &double{dst: q.Dst, cancel: stop, done: make(chan struct{})}
	s.doubles = append(s.doubles, d)
	go func() {
		defer close(d.done)
		_, _, d.err = r.attempt(ctx, q)
		w.Release(turn, r.outcome(d.err))
		if d.err == nil {
			cancel(errDoubled)
		}
	}()
}
