// Package faultstore makes a store.Bucket fail by rule, the same way each time, for tests of what depends on it.
package faultstore

import (
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"path"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/store"
)

// Op is an operation of a bucket.
type Op uint8

const (
	// AnyOp stands for every operation.
	AnyOp Op = iota
	// ReadRange is store.Bucket's ReadRange, and ReadPinned.
	ReadRange
	// List is store.Bucket's List.
	List
	// Attributes is store.Bucket's Attributes.
	Attributes
	// Open is store.Opener's Open.
	Open
)

// Rule says when something goes wrong, and what. All of its conditions must hold. The first rule that
// matches a call and is due decides; the others only count the call.
type Rule struct {
	// Op is the operation; AnyOp for all.
	Op Op
	// Key is a pattern of path.Match for the key (for the prefix, in List); empty for all.
	Key string
	// Nth picks the n-th matching call, from 1; 0 picks every one.
	Nth int
	// Probability, if not 0, picks each matching call by chance: the same calls for the same seed,
	// whatever the order in which goroutines make them.
	Probability float64
	// Effect is what happens.
	Effect Effect
}

// Effect is what goes wrong. Delay comes first and goes with any of the others.
type Effect struct {
	// Delay is passed to the sleep function of the bucket.
	Delay time.Duration
	// Err, if not Unknown, fails the call with this kind.
	Err errkind.Kind
	// Gone makes the object look deleted; a listing comes out empty.
	Gone bool
	// Short makes the object look cut one byte before the end of the range read; a stream breaks off
	// with io.ErrUnexpectedEOF at its first read.
	Short bool
	// Flip turns over one bit of the bytes read, silently; of streams, in the first byte.
	Flip bool
}

// Bucket is a bucket with faults. It may be used by many goroutines at once.
type Bucket struct {
	inner store.Bucket
	seed  uint64
	rules []Rule
	sleep func(ctx context.Context, d time.Duration) error

	mu    sync.Mutex
	calls []int // of each rule: matching calls so far
	fired []int // of each rule: faults so far
	seen  map[string]int
}

var (
	_ store.Bucket    = (*Bucket)(nil)
	_ store.Opener    = (*Bucket)(nil)
	_ store.PinReader = (*Bucket)(nil)
)

// New wraps inner. sleep is called for delays; it must return the context's error when that ends first.
func New(inner store.Bucket, seed uint64, sleep func(ctx context.Context, d time.Duration) error, rules ...Rule) *Bucket {
	return &Bucket{
		inner: inner, seed: seed, rules: rules, sleep: sleep,
		calls: make([]int, len(rules)), fired: make([]int, len(rules)), seen: map[string]int{},
	}
}

// Fired is how often rule i has struck, by which a test proves that its fault happened.
func (b *Bucket) Fired(i int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fired[i]
}

// decide is the effect for a call, and whether there is one.
func (b *Bucket) decide(op Op, key string, off int64) (Effect, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	call := fmt.Sprintf("%d/%s/%d", op, key, off)
	b.seen[call]++
	chosen := -1
	for i, r := range b.rules {
		if r.Op != AnyOp && r.Op != op {
			continue
		}
		if ok, err := path.Match(r.Key, key); r.Key != "" && (err != nil || !ok) {
			continue
		}
		b.calls[i]++
		due := r.Nth == 0 || r.Nth == b.calls[i]
		if due && r.Probability > 0 {
			due = b.chance(i, call) < r.Probability
		}
		if due && chosen < 0 {
			chosen = i
		}
	}
	if chosen < 0 {
		return Effect{}, false
	}
	b.fired[chosen]++
	return b.rules[chosen].Effect, true
}

// chance is a number in [0, 1) that depends on the seed, the rule, the call and how often that very call was made.
func (b *Bucket) chance(rule int, call string) float64 {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%d/%d/%s/%d", b.seed, rule, call, b.seen[call]) // a hash takes all
	v := h.Sum64()
	// FNV mixes the last bytes poorly into the high bits; the finalizer of SplitMix64 spreads them.
	v = (v ^ v>>30) * 0xbf58476d1ce4e5b9
	v = (v ^ v>>27) * 0x94d049bb133111eb
	return float64((v^v>>31)>>11) / (1 << 53)
}

// before applies what happens ahead of the call itself.
func (b *Bucket) before(ctx context.Context, e Effect, key string) error {
	if e.Delay > 0 {
		if err := b.sleep(ctx, e.Delay); err != nil {
			return fmt.Errorf("%s: delayed: %w", key, err)
		}
	}
	if e.Err != errkind.Unknown {
		return errkind.Errorf(e.Err, "%s: injected fault", key)
	}
	if e.Gone {
		return errkind.Errorf(errkind.NotFound, "%s: no such object", key)
	}
	return nil
}

// ReadRange implements store.Bucket.
func (b *Bucket) ReadRange(ctx context.Context, key string, off int64, dst []byte) error {
	return b.read(ctx, key, off, dst, func() error { return b.inner.ReadRange(ctx, key, off, dst) })
}

// ReadPinned implements store.PinReader. Over a bucket that can't check pins it compares the attributes.
func (b *Bucket) ReadPinned(ctx context.Context, key, pin string, off int64, dst []byte) error {
	return b.read(ctx, key, off, dst, func() error {
		if p, ok := b.inner.(store.PinReader); ok {
			return p.ReadPinned(ctx, key, pin, off, dst)
		}
		a, err := b.inner.Attributes(ctx, key)
		if err != nil {
			return err
		}
		if pin != "" && a.Pin != pin {
			return store.Changed(key, pin, a.Pin)
		}
		return b.inner.ReadRange(ctx, key, off, dst)
	})
}

func (b *Bucket) read(ctx context.Context, key string, off int64, dst []byte, inner func() error) error {
	e, faulty := b.decide(ReadRange, key, off)
	if err := b.before(ctx, e, key); err != nil {
		return err
	}
	if err := inner(); err != nil || !faulty {
		return err
	}
	if e.Short && len(dst) > 0 {
		return store.ShortRead(key, off, int64(len(dst)), off+int64(len(dst))-1)
	}
	if e.Flip && len(dst) > 0 {
		dst[len(dst)/2] ^= 1
	}
	return nil
}

// List implements store.Bucket.
func (b *Bucket) List(ctx context.Context, prefix string, fn func(store.Attributes) error) error {
	e, _ := b.decide(List, prefix, 0)
	gone := e.Gone
	e.Gone = false
	if err := b.before(ctx, e, prefix); err != nil || gone {
		return err
	}
	return b.inner.List(ctx, prefix, fn)
}

// Attributes implements store.Bucket.
func (b *Bucket) Attributes(ctx context.Context, key string) (store.Attributes, error) {
	e, _ := b.decide(Attributes, key, 0)
	if err := b.before(ctx, e, key); err != nil {
		return store.Attributes{}, err
	}
	return b.inner.Attributes(ctx, key)
}

// Open implements store.Opener, over a bucket that can't stream by ranges.
func (b *Bucket) Open(ctx context.Context, key string, off int64) (io.ReadCloser, error) {
	e, faulty := b.decide(Open, key, off)
	if err := b.before(ctx, e, key); err != nil {
		return nil, err
	}
	a, err := b.inner.Attributes(ctx, key)
	if err != nil {
		return nil, err
	}
	r, err := store.OpenStream(ctx, b.inner, key, off, a.Size)
	if err != nil || !faulty {
		return r, err
	}
	return &stream{ReadCloser: r, effect: e}, nil
}

// Close implements store.Bucket.
func (b *Bucket) Close() error { return b.inner.Close() }

type stream struct {
	io.ReadCloser

	effect Effect
}

func (s *stream) Read(p []byte) (int, error) {
	if s.effect.Short {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := s.ReadCloser.Read(p)
	if s.effect.Flip && n > 0 {
		p[0] ^= 1
		s.effect.Flip = false
	}
	return n, err
}
