package partition

import (
	"math"
	"math/bits"
	"sync"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/millrace/millrace/internal/errkind"
)

const (
	alignment = 64
	// minPooled is the smallest buffer that is kept when it is freed; for smaller ones the Go heap is as good.
	minPooled = 4 << 10
	// minMapped is the smallest buffer that is mapped from the system instead of taken from the Go heap. Such a
	// buffer leaves the process when it is unmapped, and the garbage collector never waits for it.
	minMapped = 1 << 20
)

// Pool hands out buffers aligned to 64 bytes, for operators and for Arrow, and takes them back. Buffers of 1 MiB and
// more lie outside the Go heap. Buffers that came back are kept for reuse up to a bound, and returned to the system
// by [Pool.Trim] when they stay idle. A Pool is a memory.Allocator and safe for concurrent use.
type Pool struct {
	maxIdle, maxTotal int64

	mu    sync.Mutex
	live  map[*byte]block // by first byte
	idle  map[int][]block // by size, the last freed at the end
	stats PoolStats
	turn  uint64 // counts calls of Trim
}

// PoolStats is what a Pool holds, in bytes of whole buffers.
type PoolStats struct {
	// LiveBytes are handed out, in LiveBuffers buffers.
	LiveBytes, LiveBuffers int64
	// IdleBytes are kept for reuse.
	IdleBytes int64
}

// block is one buffer with its full length.
type block struct {
	mem    []byte
	mapped bool
	turn   uint64 // when it became idle
}

var _ memory.Allocator = (*Pool)(nil)

// NewPool returns a Pool that keeps at most maxIdle bytes for reuse.
func NewPool(maxIdle int64) *Pool {
	return &Pool{maxIdle: maxIdle, maxTotal: math.MaxInt64, live: map[*byte]block{}, idle: map[int][]block{}}
}

// NewPoolWithin returns a Pool whose idle buffers never take it above total bytes: it keeps what came back while there
// is room beside the buffers in use, and gives it up for them. So where those stay within a budget, all of its buffers do.
func NewPoolWithin(total int64) *Pool {
	return &Pool{maxIdle: total, maxTotal: total, live: map[*byte]block{}, idle: map[int][]block{}}
}

// Alloc returns n bytes of any content, aligned to 64. They belong to the caller until [Pool.Free].
func (p *Pool) Alloc(n int) []byte {
	if n <= 0 {
		return []byte{}
	}
	size := sizeClass(n)
	b, found, old := p.reuse(size)
	for _, o := range old {
		o.discard()
	}
	if !found {
		b = newBlock(size)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.live[firstByte(b.mem)] = b
	return b.mem[:n]
}

// reuse counts a buffer as handed out. It is an idle one, if there is one of the right size; else old are those that
// have to go before another is made.
func (p *Pool) reuse(size int) (b block, found bool, old []block) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.LiveBytes += int64(size)
	p.stats.LiveBuffers++
	if list := p.idle[size]; len(list) > 0 {
		b = list[len(list)-1]
		list[len(list)-1] = block{}
		p.idle[size] = list[:len(list)-1]
		p.stats.IdleBytes -= int64(size)
		return b, true, nil
	}
	if p.stats.IdleBytes > 0 && p.stats.LiveBytes > p.maxTotal-p.stats.IdleBytes {
		old = p.takeIdle(func(block) bool { return p.stats.LiveBytes > p.maxTotal-p.stats.IdleBytes })
	}
	return block{}, false, old
}

// Allocate is [Pool.Alloc] with the bytes set to zero, as Arrow's builders expect them.
func (p *Pool) Allocate(n int) []byte {
	b := p.Alloc(n)
	clear(b)
	return b
}

// Reallocate returns n bytes that begin with those of b, which no longer belongs to the caller.
func (p *Pool) Reallocate(n int, b []byte) []byte {
	if cap(b) == 0 {
		return p.Allocate(n)
	}
	if n <= 0 {
		p.Free(b)
		return []byte{}
	}
	if whole := p.whole(b); sizeClass(n) == len(whole) {
		clear(whole[min(len(b), n):n])
		return whole[:n]
	}
	out := p.Alloc(n)
	clear(out[copy(out, b):])
	p.Free(b)
	return out
}

// whole is the full length of the live buffer that begins where b does.
func (p *Pool) whole(b []byte) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	found, ok := p.live[firstByte(b)]
	if !ok {
		panic("partition: a buffer was given back that the pool does not know, or twice")
	}
	return found.mem
}

// Free takes b back, of which only the first byte's place counts. Giving back a buffer twice, or one of another
// origin, panics: going on would hand the same memory to two owners.
func (p *Pool) Free(b []byte) {
	if cap(b) == 0 {
		return
	}
	first := firstByte(b)
	p.mu.Lock()
	found, ok := p.live[first]
	if !ok {
		p.mu.Unlock()
		panic("partition: a buffer was given back that the pool does not know, or twice")
	}
	delete(p.live, first)
	size := len(found.mem)
	p.stats.LiveBytes -= int64(size)
	p.stats.LiveBuffers--
	keep := size >= minPooled && p.stats.IdleBytes+int64(size) <= min(p.maxIdle, p.maxTotal-p.stats.LiveBytes)
	if keep {
		found.turn = p.turn
		p.idle[size] = append(p.idle[size], found)
		p.stats.IdleBytes += int64(size)
	}
	p.mu.Unlock()
	if !keep {
		found.discard()
	}
}

// Owns says whether b begins where a live buffer of the pool does.
func (p *Pool) Owns(b []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.live[firstByte(b)]
	return ok && cap(b) > 0
}

// Buffer makes an Arrow buffer of b, which came from Alloc, without copying. b returns to the pool when the buffer is
// released.
func (p *Pool) Buffer(b []byte) *memory.Buffer { return memory.NewBufferWithAllocator(b, p) }

// Trim returns buffers to the system that were idle since the last call already. Call it at a steady, slow pace.
func (p *Pool) Trim() {
	p.mu.Lock()
	old := p.takeIdle(func(b block) bool { return b.turn < p.turn })
	p.turn++
	p.mu.Unlock()
	for _, b := range old {
		b.discard()
	}
}

// takeIdle removes the idle buffers that match.
func (p *Pool) takeIdle(match func(block) bool) []block {
	var taken []block
	for size, list := range p.idle {
		kept := list[:0]
		for _, b := range list {
			if match(b) {
				taken = append(taken, b)
				p.stats.IdleBytes -= int64(size)
			} else {
				kept = append(kept, b)
			}
		}
		clear(list[len(kept):])
		p.idle[size] = kept
		if len(kept) == 0 {
			delete(p.idle, size)
		}
	}
	return taken
}

// Stats is what the pool holds now.
func (p *Pool) Stats() PoolStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats
}

// Close returns all idle buffers to the system. It is an error of kind Internal if buffers are still handed out.
func (p *Pool) Close() error {
	p.mu.Lock()
	idle := p.takeIdle(func(block) bool { return true })
	stats := p.stats
	p.mu.Unlock()
	for _, b := range idle {
		b.discard()
	}
	if stats.LiveBuffers != 0 {
		return errkind.Errorf(errkind.Internal, "buffer pool closed with %d buffers of %d bytes never given back", stats.LiveBuffers, stats.LiveBytes)
	}
	return nil
}

// sizeClass is the length of the buffer that serves n > 0 bytes: n rounded up by at most an eighth above minPooled.
func sizeClass(n int) int {
	step := alignment
	if n > minPooled {
		step = 1 << (bits.Len(uint(n-1)) - 4)
	}
	return (n + step - 1) / step * step
}

// firstByte is the address by which a buffer is known, whatever part of it a slice shows.
func firstByte(b []byte) *byte { return unsafe.SliceData(b) } //nolint:gosec // The address is a key and never read through.

func newBlock(size int) block {
	if size >= minMapped {
		if mem, err := mapMemory(size); err == nil {
			return block{mem: mem, mapped: true}
		}
	}
	mem := make([]byte, size+alignment-1)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(mem))) & (alignment - 1)) //nolint:gosec // The address is only used for alignment.
	return block{mem: mem[skip : skip+size : skip+size]}
}

func (b block) discard() {
	if b.mapped {
		unmapMemory(b.mem)
	}
}
