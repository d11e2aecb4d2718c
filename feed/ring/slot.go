package ring

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow/memory"
)

// alignment of buffers in a slot.
const alignment = 64

// Pool is where buffers come from that do not fit into a slot.
type Pool interface {
	Alloc(n int) []byte
	Buffer(b []byte) *memory.Buffer
}

// Slot is one slot while a batch is put together in it and kept. Its memory becomes free when all buffers made of it are
// released, [Slot.Done] was called, and no peer has it.
type Slot struct {
	arena      *Arena
	index      int
	generation uint64
	number     int64
	mem        []byte
	used       int
	writing    sync.Mutex   // while the head of what is shared is written
	head       int          // its bytes, then
	live       atomic.Int64 // buffers, and one for who puts the batch together
}

var _ memory.Allocator = (*Slot)(nil)

// Index is its place in the arena.
func (s *Slot) Index() int { return s.index }

// Generation counts the batches that were put into it.
func (s *Slot) Generation() uint64 { return s.generation }

// Arena is what it is part of.
func (s *Slot) Arena() *Arena { return s.arena }

// Reserve keeps the first n bytes free of buffers. It goes before the first Alloc.
func (s *Slot) Reserve(n int) { s.used = n }

// alloc is n bytes of the slot of any content, aligned to 64; nil where they do not fit.
func (s *Slot) alloc(n int) []byte {
	from := (s.used + alignment - 1) / alignment * alignment
	if n > len(s.mem)-from {
		return nil
	}
	s.used = from + n
	s.live.Add(1)
	return s.mem[from : from+n : from+n]
}

// offset is where b begins in the slot; false where it is elsewhere.
func (s *Slot) offset(b []byte) (int, bool) {
	if len(b) == 0 {
		return 0, false
	}
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(unsafe.SliceData(s.mem))) //nolint:gosec // Addresses are only compared.
	if at >= uintptr(len(s.mem)) || uintptr(len(b)) > uintptr(len(s.mem))-at {
		return 0, false
	}
	return int(at), true
}

// Done says that the batch is put together.
func (s *Slot) Done() { s.Free(nil) }

// Allocate is never called: buffers in a slot do not grow.
func (s *Slot) Allocate(n int) []byte { return make([]byte, n) }

// Reallocate is never called: buffers in a slot do not grow.
func (s *Slot) Reallocate(n int, b []byte) []byte { return append(make([]byte, 0, n), b...)[:n] }

// Free counts a buffer that was released.
func (s *Slot) Free([]byte) {
	if s.live.Add(-1) == 0 {
		s.arena.release(s)
	}
}

// Within is a Pool that takes buffers from s as long as they fit, then from rest. It is for one goroutine.
func (s *Slot) Within(rest Pool) Pool { return &within{slot: s, rest: rest} }

type within struct {
	slot *Slot
	rest Pool
}

func (w *within) Alloc(n int) []byte {
	if n <= 0 {
		return []byte{}
	}
	if b := w.slot.alloc(n); b != nil {
		return b
	}
	return w.rest.Alloc(n)
}

func (w *within) Buffer(b []byte) *memory.Buffer {
	if _, ok := w.slot.offset(b); ok {
		return memory.NewBufferWithAllocator(b, w.slot)
	}
	return w.rest.Buffer(b)
}
