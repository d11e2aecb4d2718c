package pypool

import (
	"bufio"
	"encoding/binary"
	"io"

	"github.com/millrace/millrace/preprocess/op"
)

// alignment is that of each buffer in shared memory.
const alignment = 64

func aligned(n int64) int64 { return (n + alignment - 1) &^ (alignment - 1) }

// layout is where the rows of a call go.
type layout struct {
	call  *op.PythonCall
	rows  int
	frame callFrame
	size  int64
	write []func(w *bufio.Writer) // of each extent, in order
	at    []extent
}

// newLayout plans rows from on of a call.
func newLayout(c *op.PythonCall, from int) *layout {
	l := &layout{call: c, rows: c.To - from}
	b := c.Batch
	l.frame = callFrame{Type: "call", Rows: l.rows, Seed: c.Seed, Epoch: c.Epoch}
	l.frame.Samples = l.put(8*int64(l.rows), func(w *bufio.Writer) {
		for _, s := range b.Samples[from:c.To] {
			putUint64(w, s)
		}
	})
	l.frame.Keys = l.values(func(i int) int { return len(b.Keys[from+i]) }, func(w *bufio.Writer, i int) { _, _ = w.WriteString(b.Keys[from+i]) })
	l.frame.Columns = [][]extent{}
	for _, at := range c.Inputs {
		l.frame.Columns = append(l.frame.Columns, l.column(&b.Columns[at], from, c.To))
	}
	l.frame.Size = l.size
	return l
}

// put reserves n bytes that write fills.
func (l *layout) put(n int64, write func(w *bufio.Writer)) extent {
	e := extent{l.size, n}
	l.size = aligned(l.size + n)
	l.write, l.at = append(l.write, write), append(l.at, e)
	return e
}

// values reserves the offsets of values, and the values.
func (l *layout) values(size func(i int) int, write func(w *bufio.Writer, i int)) []extent {
	total := int64(0)
	for i := range l.rows {
		total += int64(size(i))
	}
	offsets := l.put(8*int64(l.rows+1), func(w *bufio.Writer) {
		at := uint64(0)
		putUint64(w, at)
		for i := range l.rows {
			at += uint64(size(i)) //nolint:gosec // Never negative.
			putUint64(w, at)
		}
	})
	return []extent{offsets, l.put(total, func(w *bufio.Writer) {
		for i := range l.rows {
			write(w, i)
		}
	})}
}

func (l *layout) column(c *op.Column, from, to int) []extent {
	switch c.Kind {
	case op.KindBytes, op.KindText:
		values := c.Bytes[from:to]
		return l.values(func(i int) int { return len(values[i]) }, func(w *bufio.Writer, i int) { _, _ = w.Write(values[i]) })
	case op.KindInt64, op.KindFloat64:
		return []extent{l.put(8*int64(l.rows), func(w *bufio.Writer) { putNumbers(w, c, from, to) })}
	case op.KindTensor:
		n := c.RowBytes()
		return []extent{l.put(int64(n*l.rows), func(w *bufio.Writer) { _, _ = w.Write(c.Tensor[from*n : to*n]) })}
	case op.KindImage:
		images := c.Images[from:to]
		shapes := l.put(12*int64(l.rows), func(w *bufio.Writer) {
			for i := range images {
				for _, n := range [...]int{images[i].H, images[i].W, images[i].C} {
					var b [4]byte
					binary.LittleEndian.PutUint32(b[:], uint32(n)) //nolint:gosec // Sides of images are bounded.
					_, _ = w.Write(b[:])
				}
			}
		})
		pixels := l.values(func(i int) int { return len(images[i].Pix) }, func(w *bufio.Writer, i int) { _, _ = w.Write(images[i].Pix) })
		return append([]extent{shapes}, pixels...)
	case op.KindInvalid:
	}
	return []extent{}
}

// writeTo fills the memory. A bufio.Writer passes large values on as they are, and keeps its first error.
func (l *layout) writeTo(w io.WriterAt) error {
	buffered := bufio.NewWriterSize(nil, 64<<10)
	for i, write := range l.write {
		buffered.Reset(io.NewOffsetWriter(w, l.at[i][0]))
		write(buffered)
		if err := buffered.Flush(); err != nil {
			return err
		}
	}
	return nil
}

func putUint64(w *bufio.Writer, v uint64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], v)
	_, _ = w.Write(b[:])
}
