package arrowipc

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"math/big"
	"slices"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow/float16"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset/format"
)

// unpack decompresses a buffer of want bytes, beside padding. It begins with its size; -1: it is not compressed.
func unpack(codec int64, b []byte, want int64) ([]byte, error) {
	if want == 0 {
		return nil, nil
	}
	if len(b) < 8 {
		return nil, format.Damaged("a compressed buffer has %d bytes", len(b))
	}
	size := int64(binary.LittleEndian.Uint64(b)) //nolint:gosec // that is how it is stored
	b = b[8:]
	if size == -1 {
		size = int64(len(b))
	} else {
		var r io.Reader = lz4.NewReader(bytes.NewReader(b))
		if codec == codecZstd {
			z, err := zstd.NewReader(bytes.NewReader(b), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true))
			if err != nil {
				return nil, format.Damaged("a compressed buffer can't be read: %w", err)
			}
			defer z.Close()
			r = z
		}
		// Room is made as the bytes come: sizes may lie.
		out, err := io.ReadAll(io.LimitReader(r, want))
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, format.Damaged("a compressed buffer can't be read: %w", err)
		}
		b = out
	}
	if size < want || int64(len(b)) < want {
		return nil, format.Damaged("a compressed buffer has %d bytes, %d are needed", len(b), want)
	}
	return b[:want:want], nil
}

// view is the values [from, …) of a node, of which the bytes are there.
type view struct {
	n      *node
	p      *part
	values []byte
	base   int64 // the offset of values in the buffer: bytes, for bits bytes too
	parts  []*view
	dict   *view // nil: there is none
	rows   int64 // of a dictionary
}

// viewer makes views, from bytes in the order of batch.ranges.
type viewer struct {
	bytes [][]byte
	copy  bool
	limit int64
	used  int64
}

func (v *viewer) take(b *batch, n *node, g format.Range, from int64) (values []byte, base int64, err error) {
	if g.Len == 0 {
		return []byte{}, from, nil
	}
	if len(v.bytes) == 0 || int64(len(v.bytes[0])) != g.Len {
		return nil, 0, format.Damaged("a unit was given other bytes than it asked for")
	}
	values, v.bytes = v.bytes[0], v.bytes[1:]
	if b.codec != codecNone {
		want := b.parts[n.place].size(n)
		if v.used += want; v.used > v.limit {
			return nil, 0, v.tooMuch()
		}
		values, err = unpack(b.codec, values, want)
		return values, 0, err
	}
	if v.copy {
		if v.used += g.Len; v.used > v.limit {
			return nil, 0, v.tooMuch()
		}
		values = slices.Clone(values)
	}
	return values, from, nil
}

func (v *viewer) tooMuch() error {
	return errkind.Errorf(errkind.Exhausted, "decoding takes more than the %d bytes that are left for one read; ask for fewer samples at once", v.limit)
}

// size is the number of bytes of all values of a node.
func (p *part) size(n *node) int64 {
	switch n.kind {
	case kindBool:
		return (p.length + 7) / 8
	case kindFixed:
		return p.length * n.width
	}
	return offsetAt(p.offsets, n.width, p.length)
}

func (v *viewer) view(b *batch, n *node, from, to int64) (*view, error) {
	w := &view{n: n, p: &b.parts[n.place]}
	switch n.kind {
	case kindNull:
		return w, nil
	case kindBool:
		from, to = from/8, (to+7)/8
	case kindFixed, kindFixedList:
		from, to = from*n.width, to*n.width
	case kindVariable, kindList:
		from, to = offsetAt(w.p.offsets, n.width, from), offsetAt(w.p.offsets, n.width, to)
	}
	if n.kind == kindList || n.kind == kindFixedList || n.kind == kindStruct {
		for _, c := range n.children {
			part, err := v.view(b, c, from, to)
			if err != nil {
				return nil, err
			}
			w.parts = append(w.parts, part)
		}
		return w, nil
	}
	g := format.Range{Off: w.p.values.Off + from, Len: to - from}
	if b.codec != codecNone {
		if g = w.p.values; to == from {
			g.Len = 0
		}
	}
	var err error
	if w.values, w.base, err = v.take(b, n, g, from); err != nil || n.dict == nil {
		return w, err
	}
	if d := b.dicts[n.dict.number]; d != nil {
		w.rows = d.rows
		w.dict, err = v.view(d, n.dict.values, 0, d.rows)
	}
	return w, err
}

// block is the values of one column.
type block struct {
	column int
	first  int64
	values [][]byte // nil: null
	errs   map[int64]error
	memory int64
}

// Values implements format.Block.
func (b *block) Values(row int64, fn func(column int, data []byte)) error {
	if err := b.errs[row]; err != nil {
		return err
	}
	if v := b.values[row-b.first]; v != nil {
		fn(b.column, v)
	}
	return nil
}

// MemoryBytes implements format.Block.
func (b *block) MemoryBytes() int64 { return b.memory }

// Decode implements format.Shard.
func (s *shard) Decode(_ context.Context, u format.Unit, _ []bool, bytes [][]byte, limit int64) (format.Block, error) {
	column, b, err := s.find(u)
	if err != nil {
		return nil, err
	}
	l := s.leaves[column]
	from := u.First - b.first
	to := from + u.Count
	if to > b.rows {
		return nil, format.Damaged("there are no rows %d to %d", u.First, u.First+u.Count-1)
	}
	v := &viewer{bytes: bytes, copy: u.Count > 1, limit: limit, used: u.Count * 24}
	if v.used > limit {
		return nil, v.tooMuch()
	}
	w, err := v.view(b, l.node, from, to)
	if err != nil {
		return nil, err
	}
	out := &block{column: column, first: u.First, values: make([][]byte, u.Count)}
	ends := make([]int, u.Count)
	var made []byte
	for i := from; i < to; i++ {
		if !l.valid(b, i) {
			continue
		}
		data, whole, err := w.raw(i)
		if err == nil && !whole {
			ends[i-from] = len(made) + 1
			if made, err = w.append(made, i, false); int64(len(made)) > limit-v.used {
				return nil, v.tooMuch()
			}
		}
		if err != nil {
			if out.errs == nil {
				out.errs = map[int64]error{}
			}
			out.errs[b.first+i] = err
			continue
		}
		out.values[i-from] = data
	}
	end := len(made)
	for i, begin := range slices.Backward(ends) {
		if begin > 0 {
			if out.errs[u.First+int64(i)] == nil {
				out.values[i] = made[begin-1 : end : end]
			}
			end = begin - 1
		}
	}
	out.memory = v.used + int64(cap(made))
	return out, nil
}

// valid says whether a row has a value of a leaf: neither it nor a struct that it is in is null.
func (l *leaf) valid(b *batch, i int64) bool {
	for _, n := range l.above {
		if !b.parts[n.place].valid(i) {
			return false
		}
	}
	return l.node.kind != kindNull && b.parts[l.node.place].valid(i)
}

// raw is value i where it stands in the file as it is wanted. A number whose entry is null gives nil.
func (w *view) raw(i int64) (data []byte, whole bool, err error) {
	if w.n.dict != nil {
		k, err := w.entry(i)
		if err != nil || !w.dict.there(k) {
			return nil, true, err
		}
		return w.dict.raw(k)
	}
	switch {
	case w.n.kind == kindVariable:
		from, to := w.span(i)
		return w.values[from:to:to], true, nil
	case w.n.kind == kindFixed && w.n.sense == opaque:
		at := i*w.n.width - w.base
		return w.values[at : at+w.n.width : at+w.n.width], true, nil
	}
	return nil, false, nil
}

// there says whether value i is not null.
func (w *view) there(i int64) bool { return w.n.kind != kindNull && w.p.valid(i) }

// span is where value i of variable size is among the values.
func (w *view) span(i int64) (from, to int64) {
	return offsetAt(w.p.offsets, w.n.width, i) - w.base, offsetAt(w.p.offsets, w.n.width, i+1) - w.base
}

// entry is the number of the entry that value i stands for.
func (w *view) entry(i int64) (int64, error) {
	k := w.integer(i)
	if w.dict == nil || k < 0 || k >= w.rows {
		return 0, format.Damaged("value %d is entry %d of a dictionary of %d", i, k, w.rows)
	}
	return k, nil
}

// integer is a number of up to 8 bytes.
func (w *view) integer(i int64) int64 {
	b := w.values[i*w.n.width-w.base:]
	switch w.n.width {
	case 1:
		if w.n.sense == signed {
			return int64(int8(b[0])) //nolint:gosec // that is how it is stored
		}
		return int64(b[0])
	case 2:
		v := binary.LittleEndian.Uint16(b)
		if w.n.sense == signed {
			return int64(int16(v)) //nolint:gosec // that is how it is stored
		}
		return int64(v)
	case 4:
		v := binary.LittleEndian.Uint32(b)
		if w.n.sense == signed {
			return int64(int32(v)) //nolint:gosec // that is how it is stored
		}
		return int64(v)
	}
	return int64(binary.LittleEndian.Uint64(b)) //nolint:gosec // that is how it is stored
}

// append appends value i, which is not null, as text; quoted as it stands in JSON.
func (w *view) append(b []byte, i int64, quoted bool) ([]byte, error) {
	if w.n.dict != nil {
		k, err := w.entry(i)
		switch {
		case err != nil:
			return b, err
		case !w.dict.there(k):
			return append(b, "null"...), nil
		}
		return w.dict.append(b, k, quoted)
	}
	switch w.n.kind {
	case kindBool:
		v := w.values[i/8-w.base]>>(i%8)&1 != 0
		if quoted {
			return strconv.AppendBool(b, v), nil
		}
		return format.AppendBool(b, v), nil
	case kindList:
		return w.list(b, offsetAt(w.p.offsets, w.n.width, i), offsetAt(w.p.offsets, w.n.width, i+1))
	case kindFixedList:
		return w.list(b, i*w.n.width, (i+1)*w.n.width)
	case kindStruct:
		return w.object(b, i)
	case kindVariable:
		from, to := w.span(i)
		return w.bytes(b, w.values[from:to], quoted), nil
	}
	switch w.n.sense {
	case signed:
		return strconv.AppendInt(b, w.integer(i), 10), nil
	case unsigned:
		return strconv.AppendUint(b, uint64(w.integer(i)), 10), nil //nolint:gosec // that is how it is stored
	case float:
		return w.float(b, i, quoted), nil
	}
	at := i*w.n.width - w.base
	v := w.values[at : at+w.n.width]
	if w.n.sense == decimal {
		return appendDecimal(b, v, int(w.n.scale)), nil
	}
	return w.bytes(b, v, quoted), nil
}

func (w *view) bytes(b, v []byte, quoted bool) []byte {
	switch {
	case !quoted:
		return append(b, v...)
	case w.n.sense == text:
		return format.AppendJSONText(b, v)
	}
	return append(base64.StdEncoding.AppendEncode(append(b, '"'), v), '"')
}

func (w *view) float(b []byte, i int64, quoted bool) []byte {
	bits := w.integer(i)
	v, size := math.Float64frombits(uint64(bits)), 64 //nolint:gosec // that is how it is stored
	switch w.n.width {
	case 2:
		v, size = float64(float16.FromBits(uint16(bits)).Float32()), 32 //nolint:gosec // that is how it is stored
	case 4:
		v, size = float64(math.Float32frombits(uint32(bits))), 32 //nolint:gosec // that is how it is stored
	}
	if quoted {
		return format.AppendJSONFloat(b, v, size)
	}
	return format.AppendFloat(b, v, size)
}

// item appends value i of a part, or null.
func (w *view) item(b []byte, i int64) ([]byte, error) {
	if !w.there(i) {
		return append(b, "null"...), nil
	}
	return w.append(b, i, true)
}

func (w *view) list(b []byte, from, to int64) (_ []byte, err error) {
	b = append(b, '[')
	for i := from; i < to; i++ {
		if i > from {
			b = append(b, ',')
		}
		if b, err = w.parts[0].item(b, i); err != nil {
			return b, err
		}
	}
	return append(b, ']'), nil
}

func (w *view) object(b []byte, i int64) (_ []byte, err error) {
	b = append(b, '{')
	for k, p := range w.parts {
		if k > 0 {
			b = append(b, ',')
		}
		b = append(format.AppendJSONText(b, []byte(p.n.name)), ':')
		if b, err = p.item(b, i); err != nil {
			return b, err
		}
	}
	return append(b, '}'), nil
}

// appendDecimal appends a number of two's complement, little endian, with scale decimals.
func appendDecimal(b, v []byte, scale int) []byte {
	be := slices.Clone(v)
	slices.Reverse(be)
	n := new(big.Int).SetBytes(be)
	if len(be) > 0 && be[0]&0x80 != 0 {
		n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(len(be))*8))
	}
	return format.AppendDecimal(b, n, scale)
}
