// Package ranged reads ranges of objects over a network that fails: it is what stores of HTTP servers have in common.
//
// A [Reader] asks a [Source] for one range at a time and makes a reliable read of it. A body that is cut goes on where
// it stopped, by a range of the same version; a connection that says nothing is given up; throttled prefixes are asked
// less ([limit]); a reply that blocks its caller and is later than nearly all others is asked for a second time
// ([hedge]). How much is in flight is bounded by requests and by bytes.
package ranged

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/millrace/millrace/loader/store"
	"github.com/millrace/millrace/loader/store/hedge"
	"github.com/millrace/millrace/loader/store/limit"
)

// Source makes single requests. Errors that are worth another try are a [*Failure]; others are returned as they are.
type Source interface {
	// Fetch asks for n > 0 bytes of key at off, of the version etag unless that is empty.
	Fetch(ctx context.Context, key, etag string, off, n int64) (*Reply, error)
	// Head asks for the size and the version of key.
	Head(ctx context.Context, key string) (store.Attributes, error)
}

// Reply is an answer whose body has begun.
type Reply struct {
	Body io.ReadCloser
	// Off and Length say which bytes of the object Body holds.
	Off, Length int64
	// Size is the size of the object; -1 where it is not known.
	Size int64
	// ETag is the version of the object; empty where it has none.
	ETag string
}

// Options bound a Reader. A zero value stands for the default.
type Options struct {
	// Name is how errors name an object; default: by its key.
	Name func(key string) string
	// InFlight is the number of requests at a time for each prefix; default 128.
	InFlight int
	// Bytes bounds what is being read at a time, and may be shared by readers; default 256 MiB for this one.
	Bytes *semaphore.Weighted
	// BytesLimit is the size of Bytes, where that is given.
	BytesLimit int64
	// PartBytes is the size from which a range is read by several requests; default 8 MiB.
	PartBytes int
	// Silence is how long a connection may bring nothing; default 10 s.
	Silence time.Duration
	// RetryFor is how long a request that makes no progress is tried; default 60 s.
	RetryFor time.Duration
	// FirstRetryFor is RetryFor as long as the store has never answered, which mostly is a wrong address; default 10 s.
	FirstRetryFor time.Duration
	// HedgeShare is the share of requests that may be made twice; default 0.05, negative: none.
	HedgeShare float64
}

const defaultBytes = 256 << 20

func (o Options) withDefaults() Options {
	if o.Name == nil {
		o.Name = func(key string) string { return key }
	}
	if o.InFlight <= 0 {
		o.InFlight = 128
	}
	if o.Bytes == nil || o.BytesLimit <= 0 {
		o.Bytes, o.BytesLimit = semaphore.NewWeighted(defaultBytes), defaultBytes
	}
	if o.PartBytes <= 0 {
		o.PartBytes = 8 << 20
	}
	if o.Silence <= 0 {
		o.Silence = 10 * time.Second
	}
	if o.RetryFor <= 0 {
		o.RetryFor = time.Minute
	}
	if o.FirstRetryFor <= 0 {
		o.FirstRetryFor = 10 * time.Second
	}
	if o.HedgeShare == 0 {
		o.HedgeShare = 0.05
	}
	o.HedgeShare = max(0, o.HedgeShare)
	return o
}

// Reader makes reliable reads of a Source, and is what a [store.Bucket] over it needs but for listing and closing. It may
// be used by many goroutines at once.
type Reader struct {
	source Source
	opts   Options
	limits *limit.Limiter
	hedges *hedge.Policy
	// answered says that the store has answered anything at all.
	answered atomic.Bool
	stats    counters
}

// New is a Reader of source.
func New(source Source, o Options) *Reader {
	o = o.withDefaults()
	return &Reader{source: source, opts: o, limits: limit.New(o.InFlight), hedges: hedge.New(o.HedgeShare)}
}

var (
	_ store.Opener       = (*Reader)(nil)
	_ store.PinReader    = (*Reader)(nil)
	_ store.RangesReader = (*Reader)(nil)
)

// ReadRange reads len(dst) bytes of key at off.
func (r *Reader) ReadRange(ctx context.Context, key string, off int64, dst []byte) error {
	return r.ReadPinned(ctx, key, "", off, dst)
}

// ReadPinned reads len(dst) bytes of key at off, of the version pin unless that is empty.
func (r *Reader) ReadPinned(ctx context.Context, key, pin string, off int64, dst []byte) error {
	if err := store.CheckRange(key, off, dst); err != nil {
		return err
	}
	if len(dst) > 0 {
		return r.ReadRanges(ctx, []store.Range{{Key: key, Pin: pin, Off: off, Dst: dst}})
	}
	a, err := r.Attributes(ctx, key)
	if err == nil && off > a.Size {
		err = store.ShortRead(r.opts.Name(key), off, 0, a.Size)
	}
	return err
}

// Attributes is the size and the version of an object.
func (r *Reader) Attributes(ctx context.Context, key string) (a store.Attributes, err error) {
	err = r.Do(ctx, key, func(ctx context.Context) error {
		a, err = r.source.Head(ctx, key)
		return err
	})
	return a, err
}

// ReadRanges reads all ranges, at the same time as far as the bounds allow, the first ones first. Empty ranges are not asked for.
func (r *Reader) ReadRanges(ctx context.Context, ranges []store.Range) error {
	parts, err := r.parts(ranges)
	if err != nil || len(parts) == 0 {
		return err
	}
	b := newBatch(r, parts)
	if len(parts) == 1 {
		return r.slot(ctx, b.slots[0])
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(r.opts.InFlight)
	for _, s := range b.slots {
		g.Go(func() error {
			if gctx.Err() != nil {
				return context.Cause(gctx)
			}
			return r.slot(gctx, s)
		})
	}
	return g.Wait()
}

// parts checks ranges and cuts the large ones.
func (r *Reader) parts(ranges []store.Range) ([]store.Range, error) {
	parts := make([]store.Range, 0, len(ranges))
	for _, q := range ranges {
		if err := store.CheckRange(q.Key, q.Off, q.Dst); err != nil {
			return nil, err
		}
		for len(q.Dst) > 0 {
			n := min(len(q.Dst), r.opts.PartBytes)
			parts = append(parts, store.Range{Key: q.Key, Pin: q.Pin, Off: q.Off, Dst: q.Dst[:n:n]})
			q.Off, q.Dst = q.Off+int64(n), q.Dst[n:]
		}
	}
	return parts, nil
}

// slot reads one part within the bound of bytes.
func (r *Reader) slot(ctx context.Context, s *slot) error {
	weight := min(int64(len(s.q.Dst)), r.opts.BytesLimit)
	if err := r.opts.Bytes.Acquire(ctx, weight); err != nil {
		return fmt.Errorf("waiting to read %s: %w", r.opts.Name(s.q.Key), err)
	}
	defer r.opts.Bytes.Release(weight)
	r.stats.wanted.Add(int64(len(s.q.Dst)))
	return s.run(ctx)
}

// Do makes a request that is no read, such as a listing, as often as it takes.
func (r *Reader) Do(ctx context.Context, key string, request func(context.Context) error) error {
	w, t := r.limits.Window(key), newTries(r)
	for {
		turn, err := w.Acquire(ctx)
		if err != nil {
			return err
		}
		err = r.once(ctx, request)
		w.Release(turn, r.outcome(err))
		if err == nil {
			return nil
		}
		if err := t.next(ctx, key, err, 0); err != nil {
			return err
		}
	}
}

func (r *Reader) once(ctx context.Context, request func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, r.opts.Silence, errSilent)
	defer cancel()
	r.stats.requests.Add(1)
	return r.silenced(ctx, request(ctx))
}

// silenced makes a Failure of an error that is the work of the watchdog.
func (r *Reader) silenced(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), errSilent) {
		return &Failure{Err: fmt.Errorf("nothing came for %v", r.opts.Silence)}
	}
	return err
}

// outcome is what an answer says about the load; it also notes that there was one.
func (r *Reader) outcome(err error) limit.Outcome {
	f, failed := errors.AsType[*Failure](err)
	switch {
	case err == nil:
		r.answered.Store(true)
		return limit.OK
	case failed && f.Fault == Throttled:
		r.answered.Store(true)
		r.stats.throttled.Add(1)
		return limit.Throttled
	case failed && f.Fault != Unreachable:
		r.answered.Store(true)
	}
	return limit.Other
}

// counters count what all reads have cost.
type counters struct {
	requests, retries, throttled, hedges, hedgeWins, received, wanted atomic.Int64
}

// Stats is what a Reader has cost so far.
type Stats struct {
	// Requests counts all requests, those of which Retries were made after a failure and Hedges because one was late.
	Requests, Retries, Hedges int64
	// HedgeWins counts hedges that were faster than the request they doubled, Throttled answers that asked to slow down.
	HedgeWins, Throttled int64
	// Received counts the bytes of bodies, Wanted those that callers asked for.
	Received, Wanted int64
}

// Stats is what reads have cost so far.
func (r *Reader) Stats() Stats {
	s := &r.stats
	return Stats{
		Requests: s.requests.Load(), Retries: s.retries.Load(), Hedges: s.hedges.Load(), HedgeWins: s.hedgeWins.Load(),
		Throttled: s.throttled.Load(), Received: s.received.Load(), Wanted: s.wanted.Load(),
	}
}
