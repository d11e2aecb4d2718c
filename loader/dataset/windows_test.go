package dataset_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/dataset/datasettest"
	"github.com/millrace/millrace/loader/order"
	"github.com/millrace/millrace/loader/store"
)

// remote is a bucket that takes many ranges at a time, as those over a network do. fail, if not nil, is asked before each read.
type remote struct {
	store.Bucket
	ranges, bytes atomic.Int64
	fail          func() error
}

func (r *remote) ReadRanges(ctx context.Context, ranges []store.Range) error {
	for _, q := range ranges {
		if r.fail != nil {
			if err := r.fail(); err != nil {
				return err
			}
		}
		r.ranges.Add(1)
		r.bytes.Add(int64(len(q.Dst)))
		if err := r.ReadRange(ctx, q.Key, q.Off, q.Dst); err != nil {
			return err
		}
	}
	return nil
}

// counted is an allocator that knows what is out.
type counted struct {
	mu        sync.Mutex
	live, top int64
}

func (c *counted) Alloc(n int) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.live += int64(n)
	c.top = max(c.top, c.live)
	return make([]byte, n)
}

func (c *counted) Free(mem []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.live -= int64(len(mem))
	clear(mem) // Whoever still reads it shall notice.
}

type windowSet struct {
	*datasettest.Set
	bucket *remote
	layout order.Layout
}

func newWindowSet(t *testing.T) *windowSet {
	t.Helper()
	set := datasettest.Synthetic(t, 960, 77)
	s := &windowSet{Set: set, bucket: &remote{Bucket: set.Store}}
	s.layout = order.Layout{Shuffle: order.ShuffleBlock, NumSamples: 960, BlockSamples: 10, WindowBlocks: 12, Lanes: 4, PartitionSamples: 8}
	return s
}

func (s *windowSet) open(t *testing.T, blocks *dataset.Blocks) *dataset.Dataset {
	t.Helper()
	return datasettest.Open(t, s.Build(t), resolverOf(t, s.bucket), nil, dataset.OpenOptions{Blocks: blocks})
}

// readPartition reads a partition of an epoch and checks its bytes.
func (s *windowSet) readPartition(ctx context.Context, tb testing.TB, d *dataset.Dataset, epoch uint64, p int64) error {
	tb.Helper()
	e := s.layout.Epoch(1, epoch)
	w := e.Partition(p).Window
	ordinals := e.Samples(p, nil)
	samples, release, err := d.ReadWindow(ctx, &dataset.Window{Key: [2]int64{int64(epoch), w}, Blocks: e.WindowBlocks(w)}, ordinals, nil)
	defer release()
	if err == nil {
		datasettest.Check(tb, samples, ordinals, s.Samples)
	}
	return err
}

// Blocks are read once each where there is room for the open windows, and what they took is given back.
func TestWindowsReadEachBlockOnce(t *testing.T) {
	s, memory := newWindowSet(t), &counted{}
	d := s.open(t, dataset.NewBlocks(4<<20, memory))
	s.bucket.bytes.Store(0)
	s.bucket.ranges.Store(0) // Indexing is over.
	for epoch := range uint64(2) {
		for p := range s.layout.Epoch(1, epoch).NumPartitions() {
			if err := s.readPartition(t.Context(), t, d, epoch, p); err != nil {
				t.Fatal(err)
			}
		}
	}
	stats := d.Stats()
	// Blocks that cross a shard's end are two ranges.
	if most := int64(2 * (96 + 12)); s.bucket.ranges.Load() > most || stats.Requests != s.bucket.ranges.Load() {
		t.Errorf("%d requests, counted as %d, for 2 epochs of 96 blocks in 13 shards, want at most %d", s.bucket.ranges.Load(), stats.Requests, most)
	}
	if a := float64(stats.BytesRead) / float64(stats.BytesWanted); a > 3 { // members of tens of bytes, with headers of 512
		t.Errorf("%.2f bytes read for each that was wanted", a)
	}
	if memory.live != 0 || memory.top == 0 {
		t.Errorf("%d bytes of blocks are left, of %d at most", memory.live, memory.top)
	}
}

// Whatever room there is, whoever fails, leaves or reads again: the samples are those that were written, and memory keeps to its limit.
func TestWindowsGiveTheWrittenBytes(t *testing.T) {
	s := newWindowSet(t)
	rapid.Check(t, func(r *rapid.T) {
		memory, limit := &counted{}, rapid.SampledFrom([]int64{1, 100_000, 400_000, 4 << 20}).Draw(r, "limit")
		d := s.open(t, dataset.NewBlocks(limit, memory))
		broken := errors.New("the store fails")
		every := rapid.SampledFrom([]int64{0, 3, 40}).Draw(r, "fails")
		var calls atomic.Int64
		s.bucket.fail = func() error {
			if every > 0 && calls.Add(1)%every == 0 {
				return broken
			}
			return nil
		}
		defer func() { s.bucket.fail = nil }()
		seed := rapid.Uint64().Draw(r, "seed")
		from := rapid.Int64Range(0, s.layout.NumSamples/8-40).Draw(r, "from")
		var g errgroup.Group
		for lane := range 4 {
			random := rand.New(rand.NewPCG(seed, uint64(lane)))
			g.Go(func() error {
				for p := from; p < from+40; p++ {
					if random.IntN(4) > 0 { // each partition is read by none, one, or several
						continue
					}
					if err := s.readPartition(t.Context(), t, d, seed%3, p); err != nil && !errors.Is(err, broken) {
						return err
					}
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			r.Fatal(err)
		}
		if memory.top > limit {
			r.Fatalf("blocks took %d bytes, the limit is %d", memory.top, limit)
		}
		if err := d.Close(); err != nil || memory.live != 0 {
			r.Fatalf("%d bytes are left after the end (%v)", memory.live, err)
		}
	})
}

// A read that was given up leaves its blocks to others.
func TestAReadThatIsGivenUpHoldsNobodyUp(t *testing.T) {
	s := newWindowSet(t)
	d := s.open(t, dataset.NewBlocks(4<<20, nil))
	ctx, cancel := context.WithCancel(t.Context())
	s.bucket.fail = func() error { cancel(); return fmt.Errorf("cut: %w", ctx.Err()) }
	if err := s.readPartition(ctx, t, d, 0, 0); err == nil {
		t.Fatal("no error")
	}
	s.bucket.fail = nil
	for p := range int64(8) {
		if err := s.readPartition(t.Context(), t, d, 0, p); err != nil {
			t.Fatal(err)
		}
	}
}
