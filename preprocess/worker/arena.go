package worker

import (
	"slices"

	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/millrace/millrace/preprocess/op"
	"github.com/millrace/millrace/preprocess/partition"
)

// arena is the memory that operators asked for while they worked on one chunk of rows. Buffers of it either become
// part of an output or go back to the pool together. It belongs to one goroutine.
type arena struct {
	pool *partition.Pool
	bufs [][]byte
}

func (a *arena) alloc(n int) []byte {
	b := a.pool.Alloc(n)
	if len(b) > 0 {
		a.bufs = append(a.bufs, b)
	}
	return b
}

// take gives b's buffer away if it begins one of the arena, which then no longer owns it.
func (a *arena) take(b []byte) bool {
	i := slices.IndexFunc(a.bufs, func(own []byte) bool { return len(b) > 0 && &own[0] == &b[0] })
	if i < 0 {
		return false
	}
	a.bufs[i] = a.bufs[len(a.bufs)-1]
	a.bufs = a.bufs[:len(a.bufs)-1]
	return true
}

// buffer makes an Arrow buffer of b: without copying where b is the arena's.
func (a *arena) buffer(b []byte) *memory.Buffer {
	if !a.take(b) {
		own := a.pool.Alloc(len(b))
		copy(own, b)
		b = own
	}
	return a.pool.Buffer(b)
}

// own returns bytes that are those of b and belong to to.
func (a *arena) own(b []byte, to *arena) []byte {
	if a.take(b) {
		to.bufs = append(to.bufs, b)
		return b
	}
	out := to.alloc(len(b))
	copy(out, b)
	return out
}

// moveTo gives the buffers that begin a value of b to to; all else of a stays.
func (a *arena) moveTo(to *arena, b *op.Batch) {
	move := func(value []byte) {
		if len(a.bufs) > 0 && a.take(value) {
			to.bufs = append(to.bufs, value)
		}
	}
	for i := range b.Columns {
		c := &b.Columns[i]
		switch c.Kind {
		case op.KindBytes, op.KindText:
			for _, value := range c.Bytes {
				move(value)
			}
		case op.KindImage:
			for j := range c.Images {
				move(c.Images[j].Pix)
			}
		case op.KindTensor:
			move(c.Tensor)
		case op.KindInt64, op.KindFloat64, op.KindInvalid:
		}
	}
}

// shrink gives back all buffers but the first n.
func (a *arena) shrink(n int) {
	for _, b := range a.bufs[n:] {
		a.pool.Free(b)
	}
	clear(a.bufs[n:])
	a.bufs = a.bufs[:n]
}

func (a *arena) release() {
	for _, b := range a.bufs {
		a.pool.Free(b)
	}
	a.bufs = nil
}
