package dataset

import (
	"cmp"
	"slices"
	"sort"
	"sync"

	"github.com/millrace/millrace/loader/order"
)

// Window is a set of samples that reads ask for soon after each other, most of them once. A read that names its window
// brings whole blocks of it from the store, each once, and keeps them for the reads that follow.
type Window struct {
	// Key tells the windows of a dataset apart. It must be comparable.
	Key any
	// Blocks are the runs of samples that the window consists of.
	Blocks []order.Run
}

// Allocator gives memory for blocks and takes it back.
type Allocator interface {
	Alloc(n int) []byte
	Free(mem []byte)
}

// Blocks keeps blocks of windows in memory until their samples have been read. It may be shared by datasets, whose
// blocks then share its limit.
type Blocks struct {
	limit int64
	alloc Allocator

	mu       sync.Mutex
	reserved int64
	clock    int64 // counts reads
	windows  map[windowKey]*window
}

type windowKey struct {
	dataset *Dataset
	key     any
}

// stale is the number of reads after which a window that none of them touched is given up when its memory is wanted:
// the rest of it went to another worker, or the job has ended.
const stale = 64

// lateShare: a window that found no room at first gets some later only if less than one in so many of its samples has
// been read. Whole blocks would mostly bring what nobody wants any more.
const lateShare = 8

// NewBlocks keeps blocks in up to limit bytes of alloc; nil: of the Go heap.
func NewBlocks(limit int64, alloc Allocator) *Blocks {
	if alloc == nil {
		alloc = heap{}
	}
	return &Blocks{limit: limit, alloc: alloc, windows: map[windowKey]*window{}}
}

type heap struct{}

func (heap) Alloc(n int) []byte { return make([]byte, n) }
func (heap) Free([]byte)        {}

// window is what is kept of one window. All is guarded by Blocks.mu but for what never changes.
type window struct {
	blocks  []order.Run // by rising First
	samples int64

	room    bool // it has reserved memory
	over    bool // all of it was read
	bytes   int64
	used    int64
	direct  int64 // samples that were read beside the blocks
	left    int64 // samples that have not been read
	touched int64
	refs    int
	chunks  map[chunkKey]*chunk
}

// chunkKey names the part of a block that lies in one shard, as it is read for a choice of columns.
type chunkKey struct {
	block, shard int
	columns      string
}

// chunk is such a part. done is closed when mem and runs are there, or failed is set.
type chunk struct {
	done   chan struct{}
	object object
	runs   []stretch
	failed bool

	// Guarded by Blocks.mu.
	mem   []byte
	first int64 // row in the shard
	seen  []bool
	left  int
	refs  int
	gone  bool
}

// stretch is a run of bytes of a chunk's shard, which lies at place at in its memory.
type stretch struct{ off, length, at int64 }

// enter begins a read of n samples of a window of d; nil: there is no room, read them directly. size is asked for what
// the window takes when it is new.
func (b *Blocks) enter(d *Dataset, w *Window, n int64, size func(blocks []order.Run) int64) *window {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.clock++
	k := windowKey{d, w.Key}
	x := b.windows[k]
	if x == nil {
		x = &window{blocks: slices.Clone(w.Blocks), chunks: map[chunkKey]*chunk{}}
		slices.SortFunc(x.blocks, func(a, b order.Run) int { return cmp.Compare(a.First, b.First) })
		for _, r := range x.blocks {
			x.samples += r.NumSamples
		}
		x.left, x.bytes = x.samples, size(x.blocks)
		b.windows[k] = x
	}
	x.touched = b.clock
	if !x.room && !x.over && x.direct*lateShare <= x.samples && b.reserve(x.bytes) {
		x.room = true
	}
	if !x.room {
		x.direct += n
		return nil
	}
	x.refs++
	return x
}

// reserve takes n bytes of the limit, if need be from windows that are stale.
func (b *Blocks) reserve(n int64) bool {
	if b.reserved+n > b.limit {
		for k, x := range b.windows {
			if x.refs > 0 || x.touched+stale >= b.clock {
				continue
			}
			b.drop(x)
			delete(b.windows, k)
		}
	}
	if b.reserved+n > b.limit {
		return false
	}
	b.reserved += n
	return true
}

// drop frees what a window without readers holds.
func (b *Blocks) drop(x *window) {
	for _, c := range x.chunks {
		b.free(c)
	}
	if x.room {
		b.reserved -= x.bytes
	}
	x.room, x.chunks, x.used = false, nil, 0
}

func (b *Blocks) free(c *chunk) {
	if c.mem != nil {
		b.alloc.Free(c.mem)
	}
	c.mem, c.gone = nil, true
}

// leave ends a read. The chunks that it used are let go; their rows are marked as read if all went well.
func (b *Blocks) leave(x *window, uses []use, read bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, u := range uses {
		c := u.chunk
		c.refs--
		if i := u.row - c.first; read && !c.seen[i] {
			c.seen[i] = true
			c.left--
			x.left--
		}
		if c.left == 0 && c.refs == 0 && !c.gone {
			x.used -= int64(len(c.mem))
			b.free(c)
		}
	}
	x.refs--
	if x.left == 0 && x.refs == 0 {
		b.drop(x)
		x.over = true
	}
}

// forget drops all windows of a dataset that is being closed.
func (b *Blocks) forget(d *Dataset) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for k, x := range b.windows {
		if k.dataset == d {
			b.drop(x)
			delete(b.windows, k)
		}
	}
}

// use is one row that a read takes from a chunk.
type use struct {
	chunk *chunk
	row   int64
}

// take is the chunk that holds a row of a shard, whose first sample is start; nil if there is none any more. The caller
// gives it back with leave. A chunk that is claimed is the caller's to read: rows from first on, n of them.
func (b *Blocks) take(x *window, shard int, start, rows, row int64, columns string) (c *chunk, claimed bool, first, n int64) {
	ordinal := start + row
	i := sort.Search(len(x.blocks), func(i int) bool { return x.blocks[i].First+x.blocks[i].NumSamples > ordinal })
	if i == len(x.blocks) || x.blocks[i].First > ordinal {
		return nil, false, 0, 0
	}
	block := x.blocks[i]
	b.mu.Lock()
	defer b.mu.Unlock()
	k := chunkKey{i, shard, columns}
	c = x.chunks[k]
	if c == nil {
		first = max(block.First, start) - start
		n = min(block.First+block.NumSamples, start+rows) - start - first
		c = &chunk{done: make(chan struct{}), first: first, seen: make([]bool, n), left: int(n)}
		x.chunks[k] = c
		claimed = true
	} else if c.gone || c.seen[row-c.first] {
		return nil, false, 0, 0 // A row that is read again is read alone.
	}
	c.refs++
	return c, claimed, first, n
}

// fill gives a claimed chunk its memory; false: there is no room for it, and it has failed.
func (b *Blocks) fill(x *window, c *chunk, runs []run) bool {
	var total int64
	for _, r := range runs {
		c.runs = append(c.runs, stretch{r.off, r.length, total})
		total += r.length
	}
	b.mu.Lock()
	more := x.used + total - x.bytes
	if more > 0 && !b.reserve(more) {
		b.mu.Unlock()
		b.publish(x, c, false)
		return false
	}
	x.bytes += max(0, more)
	x.used += total
	b.mu.Unlock()
	mem := b.alloc.Alloc(int(total))
	b.mu.Lock()
	defer b.mu.Unlock()
	c.mem = mem
	return true
}

// publish ends a claim. Where reading failed, or found no room, rows of the chunk are read alone.
func (b *Blocks) publish(x *window, c *chunk, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.failed = !ok; c.failed {
		x.used -= int64(len(c.mem))
		b.free(c)
	}
	close(c.done)
}

// at is where n bytes at off of the shard lie; nil if the chunk does not hold them.
func (c *chunk) at(off, n int64) []byte {
	i := sort.Search(len(c.runs), func(i int) bool { return c.runs[i].off+c.runs[i].length >= off+n })
	if i == len(c.runs) || c.runs[i].off > off {
		return nil
	}
	from := c.runs[i].at + off - c.runs[i].off
	return c.mem[from : from+n : from+n]
}
