package pypool

import (
	"bufio"
	"encoding/binary"
	"math"
	"unicode/utf8"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/op"
)

// maxImageSide bounds the sides of images that come back.
const maxImageSide = 1 << 20

func putNumbers(w *bufio.Writer, c *op.Column, from, to int) {
	for i := from; i < to; i++ {
		if c.Kind == op.KindInt64 {
			putUint64(w, uint64(c.Ints[i])) //nolint:gosec // The bits of an int64.
		} else {
			putUint64(w, math.Float64bits(c.Floats[i]))
		}
	}
}

// errMalformed is a process that does not keep to the protocol, such as one whose memory a function has overwritten.
func errMalformed(what string) error {
	return errkind.Errorf(errkind.BadData, "the Python process gave a malformed answer (%s)", what)
}

// reader takes rows out of the memory that a process has written. Nothing of it is trusted, and all of it is copied.
type reader struct {
	mem   []byte
	rows  int
	alloc func(n int) []byte
}

// part is the bytes of an extent, which must have n of them unless n is negative.
func (r *reader) part(e extent, n int64) ([]byte, error) {
	size := int64(len(r.mem))
	if e[0] < 0 || e[1] < 0 || e[0] > size || e[1] > size-e[0] || e[0]%alignment != 0 || (n >= 0 && e[1] != n) {
		return nil, errMalformed("a buffer that is not there")
	}
	return r.mem[e[0] : e[0]+e[1]], nil
}

// decode takes the rows of an answer to a call whose first row was first.
func decode(c *op.PythonCall, first int, a *answerFrame, mem []byte) (op.PythonRows, error) {
	r := &reader{mem: mem, rows: a.Rows, alloc: c.Alloc}
	var out op.PythonRows
	if a.Rows < 0 || int64(a.Rows) > int64(len(mem)) {
		return out, errMalformed("an impossible number of rows")
	}
	from, err := r.part(a.From, 8*int64(a.Rows))
	if err != nil {
		return out, err
	}
	out.From = make([]int, a.Rows)
	for i := range out.From {
		row := binary.LittleEndian.Uint64(from[8*i:])
		if row >= uint64(c.To-first) { //nolint:gosec // Never negative.
			return out, errMalformed("a row of none that it was given")
		}
		out.From[i] = first + int(row) //nolint:gosec // Checked above.
	}
	for _, f := range c.Out {
		extents, made := a.Columns[f.Name]
		if !made {
			if in := c.Batch.Column(f.Name); in == nil || !in.Field.Equal(f) {
				return out, errMalformed("a field that is missing")
			}
			continue
		}
		column, err := r.column(f, extents)
		if err != nil {
			return out, err
		}
		out.Columns = append(out.Columns, column)
	}
	return out, nil
}

func (r *reader) column(f op.Field, extents []extent) (op.Column, error) {
	c := op.Column{Field: f}
	counts := map[op.Kind]int{op.KindBytes: 2, op.KindText: 2, op.KindInt64: 1, op.KindFloat64: 1, op.KindTensor: 1, op.KindImage: 3}
	if n := counts[f.Kind]; n == 0 || len(extents) != n {
		return c, errMalformed("a column of other buffers")
	}
	switch f.Kind {
	case op.KindBytes, op.KindText:
		var err error
		if c.Bytes, err = r.values(extents); err != nil {
			return c, err
		}
		for _, v := range c.Bytes {
			if f.Kind == op.KindText && !utf8.Valid(v) {
				return c, errMalformed("text that is not UTF-8")
			}
		}
	case op.KindInt64, op.KindFloat64:
		raw, err := r.part(extents[0], 8*int64(r.rows))
		if err != nil {
			return c, err
		}
		for i := range r.rows {
			if bits := binary.LittleEndian.Uint64(raw[8*i:]); f.Kind == op.KindInt64 {
				c.Ints = append(c.Ints, int64(bits)) //nolint:gosec // The bits of an int64.
			} else {
				c.Floats = append(c.Floats, math.Float64frombits(bits))
			}
		}
	case op.KindTensor:
		raw, err := r.part(extents[0], int64(f.RowBytes())*int64(r.rows))
		if err != nil {
			return c, err
		}
		c.Tensor = r.alloc(len(raw))
		copy(c.Tensor, raw)
	case op.KindImage:
		return r.images(c, extents)
	case op.KindInvalid:
	}
	return c, nil
}

// values are values behind their offsets.
func (r *reader) values(extents []extent) ([][]byte, error) {
	offsets, err := r.part(extents[0], 8*int64(r.rows+1))
	if err != nil {
		return nil, err
	}
	raw, err := r.part(extents[1], -1)
	if err != nil {
		return nil, err
	}
	own := r.alloc(len(raw))
	copy(own, raw)
	out := make([][]byte, r.rows)
	for i := range out {
		from, to := binary.LittleEndian.Uint64(offsets[8*i:]), binary.LittleEndian.Uint64(offsets[8*i+8:])
		if from > to || to > uint64(len(own)) {
			return nil, errMalformed("values that overlap")
		}
		out[i] = own[from:to:to]
	}
	return out, nil
}

func (r *reader) images(c op.Column, extents []extent) (op.Column, error) {
	shapes, err := r.part(extents[0], 12*int64(r.rows))
	if err != nil {
		return c, err
	}
	pixels, err := r.values(extents[1:])
	if err != nil {
		return c, err
	}
	c.Images = make([]op.Image, r.rows)
	for i := range c.Images {
		side := func(k int) int64 { return int64(binary.LittleEndian.Uint32(shapes[12*i+4*k:])) }
		h, w, channels := side(0), side(1), side(2)
		if h < 1 || w < 1 || h > maxImageSide || w > maxImageSide || channels != c.Shape[2] || h*w*channels*int64(c.DType.Size()) != int64(len(pixels[i])) {
			return c, errMalformed("an image of another size")
		}
		c.Images[i] = op.Image{H: int(h), W: int(w), C: int(channels), Pix: pixels[i]}
	}
	return c, nil
}
