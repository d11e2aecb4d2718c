package batch

import (
	"fmt"
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/millrace/millrace/internal/errkind"
)

// Pool is where the buffers of batches come from: it hands out memory of any content, aligned to 64 bytes, and makes
// Arrow buffers of it that return there.
type Pool interface {
	Alloc(n int) []byte
	Buffer(b []byte) *memory.Buffer
}

// Piece is NumRows rows of Record from row First on.
type Piece struct {
	Record         arrow.RecordBatch
	First, NumRows int64
	// Valid is false for rows that only fill the batch.
	Valid bool
}

// Assemble copies the rows of pieces, in order, into one record batch, which the caller releases. Records whose
// columns are not those of the layout, and rows that they do not have, are errors of kind Internal; a column that
// grows beyond what its offsets can address is one of kind Exhausted.
func (l *Layout) Assemble(pool Pool, pieces []Piece) (rec arrow.RecordBatch, err error) {
	total := int64(0)
	for i := range pieces {
		p := &pieces[i]
		if p.First < 0 || p.NumRows < 0 || p.First+p.NumRows > p.Record.NumRows() {
			return nil, errkind.Errorf(errkind.Internal, "rows %d to %d were to be taken from a slice of %d", p.First, p.First+p.NumRows-1, p.Record.NumRows())
		}
		total += p.NumRows
	}
	if total > math.MaxInt32 {
		return nil, errkind.Errorf(errkind.Exhausted, "a batch of %d rows; at most %d are possible", total, math.MaxInt32)
	}
	columns := make([]arrow.Array, 0, len(l.columns)+1)
	defer func() {
		for _, c := range columns {
			c.Release()
		}
	}()
	a := assembler{pool: pool}
	for i, f := range l.columns {
		a.runs = a.runs[:0]
		for j := range pieces {
			p := &pieces[j]
			data, err := column(p.Record, i, f)
			if err != nil {
				return nil, err
			}
			a.runs = append(a.runs, run{data: data, first: data.Offset() + int(p.First), n: int(p.NumRows)})
		}
		data, err := a.values(f.Type, a.runs, int(total))
		if err != nil {
			return nil, fmt.Errorf("column %q: %w", f.Name, err)
		}
		columns = append(columns, array.MakeFromData(data))
		data.Release()
	}
	columns = append(columns, a.valid(pieces, int(total)))
	return array.NewRecordBatch(l.schema, columns, total), nil
}

// column is the data of a record's column of field f, which normally is its column i.
func column(rec arrow.RecordBatch, i int, f arrow.Field) (arrow.ArrayData, error) {
	if i >= int(rec.NumCols()) || rec.ColumnName(i) != f.Name {
		found := rec.Schema().FieldIndices(f.Name)
		if len(found) != 1 {
			return nil, errkind.Errorf(errkind.Internal, "a slice has %d columns %q; it is to have one", len(found), f.Name)
		}
		i = found[0]
	}
	data := rec.Column(i).Data()
	// A reader that does not know an extension type gives its storage, which has the same layout.
	if !arrow.TypeEqual(storage(data.DataType()), storage(f.Type)) {
		return nil, errkind.Errorf(errkind.Internal, "column %q of a slice is %s; it is to be %s", f.Name, data.DataType(), f.Type)
	}
	return data, nil
}

// run is n values of data, the first of them at place first of data's buffers.
type run struct {
	data     arrow.ArrayData
	first, n int
}

// bytes is bytes from..to-1 of buffer i. What came over the network is not taken at its word.
func (r run) bytes(i, from, to int) ([]byte, error) {
	var all []byte
	if i < len(r.data.Buffers()) && r.data.Buffers()[i] != nil {
		all = r.data.Buffers()[i].Bytes()
	}
	if from < 0 || to < from || to > len(all) {
		return nil, errkind.Errorf(errkind.BadData, "bytes %d to %d of a buffer of %d bytes", from, to, len(all))
	}
	return all[from:to:to], nil
}

// bitmap is buffer i, which holds a bit for each value; nil where there is none.
func (r run) bitmap(i int) ([]byte, error) {
	if r.data.Buffers()[i] == nil || r.data.Buffers()[i].Len() == 0 {
		return nil, nil
	}
	return r.bytes(i, 0, int(bitutil.BytesForBits(int64(r.first+r.n))))
}

// child is the values first..first+n-1 of child i, counted as the run's own offsets count.
func (r run) child(i, first, n int) run {
	c := r.data.Children()[i]
	return run{data: c, first: c.Offset() + first, n: n}
}

type assembler struct {
	pool Pool
	runs []run // reused for each column
}

// values joins runs of type t into total values.
func (a *assembler) values(t arrow.DataType, runs []run, total int) (arrow.ArrayData, error) {
	validity, nulls, err := a.validity(runs, total)
	if err != nil {
		return nil, err
	}
	buffers := []*memory.Buffer{validity}
	var children []arrow.ArrayData
	defer func() {
		for _, b := range buffers {
			if b != nil {
				b.Release()
			}
		}
		for _, c := range children {
			c.Release()
		}
	}()
	switch s := storage(t).(type) {
	case *arrow.BooleanType:
		err = a.append(&buffers, func() (*memory.Buffer, error) { return a.bits(runs, 1, total) })
	case *arrow.StringType, *arrow.BinaryType:
		var spans []span
		err = a.append(&buffers, func() (b *memory.Buffer, err error) {
			b, spans, _, err = offsets[int32](a.pool, runs, total)
			return b, err
		}, func() (*memory.Buffer, error) { return a.bytes(runs, spans) })
	case *arrow.LargeStringType, *arrow.LargeBinaryType:
		var spans []span
		err = a.append(&buffers, func() (b *memory.Buffer, err error) {
			b, spans, _, err = offsets[int64](a.pool, runs, total)
			return b, err
		}, func() (*memory.Buffer, error) { return a.bytes(runs, spans) })
	case *arrow.ListType:
		var spans []span
		var n int64
		err = a.append(&buffers, func() (b *memory.Buffer, err error) {
			b, spans, n, err = offsets[int32](a.pool, runs, total)
			return b, err
		})
		if err == nil {
			children, err = a.list(s.Elem(), runs, spans, n)
		}
	case *arrow.LargeListType:
		var spans []span
		var n int64
		err = a.append(&buffers, func() (b *memory.Buffer, err error) {
			b, spans, n, err = offsets[int64](a.pool, runs, total)
			return b, err
		})
		if err == nil {
			children, err = a.list(s.Elem(), runs, spans, n)
		}
	case *arrow.FixedSizeListType:
		width := int(s.Len())
		children, err = a.children(children, s.Elem(), runs, total*width, func(r run) run { return r.child(0, r.first*width, r.n*width) })
	case *arrow.StructType:
		for i, f := range s.Fields() {
			if err == nil {
				children, err = a.children(children, f.Type, runs, total, func(r run) run { return r.child(i, r.first, r.n) })
			}
		}
	default:
		err = a.append(&buffers, func() (*memory.Buffer, error) { return a.fixed(runs, int(fixedBytes(t)), total) })
	}
	if err != nil {
		return nil, err
	}
	return array.NewData(t, total, buffers, children, nulls, 0), nil
}

// append adds buffers until one fails.
func (*assembler) append(to *[]*memory.Buffer, makers ...func() (*memory.Buffer, error)) error {
	for _, make := range makers {
		b, err := make()
		if err != nil {
			return err
		}
		*to = append(*to, b)
	}
	return nil
}

func (a *assembler) children(to []arrow.ArrayData, t arrow.DataType, runs []run, total int, of func(run) run) ([]arrow.ArrayData, error) {
	inner := make([]run, len(runs))
	for i, r := range runs {
		inner[i] = of(r)
	}
	child, err := a.values(t, inner, total)
	if err != nil {
		return to, err
	}
	return append(to, child), nil
}

// span is the elements or bytes that a run's offsets refer to.
type span struct{ from, to int64 }

func (a *assembler) list(elem arrow.DataType, runs []run, spans []span, total int64) ([]arrow.ArrayData, error) {
	inner := make([]run, len(runs))
	for i, r := range runs {
		if spans[i].to > int64(r.data.Children()[0].Len()) {
			return nil, errkind.Errorf(errkind.BadData, "list offsets lead beyond their elements")
		}
		inner[i] = r.child(0, int(spans[i].from), int(spans[i].to-spans[i].from))
	}
	child, err := a.values(elem, inner, int(total))
	if err != nil {
		return nil, err
	}
	return []arrow.ArrayData{child}, nil
}

// fixed joins values of width bytes.
func (a *assembler) fixed(runs []run, width, total int) (*memory.Buffer, error) {
	out := a.pool.Buffer(a.pool.Alloc(total * width))
	at := 0
	for _, r := range runs {
		in, err := r.bytes(1, r.first*width, (r.first+r.n)*width)
		if err != nil {
			out.Release()
			return nil, err
		}
		at += copy(out.Bytes()[at:], in)
	}
	return out, nil
}

// bytes joins what spans are of buffer 2 of runs.
func (a *assembler) bytes(runs []run, spans []span) (*memory.Buffer, error) {
	total := int64(0)
	for _, s := range spans {
		total += s.to - s.from
	}
	out := a.pool.Buffer(a.pool.Alloc(int(total)))
	at := 0
	for i, r := range runs {
		if r.n == 0 {
			continue
		}
		in, err := r.bytes(2, int(spans[i].from), int(spans[i].to))
		if err != nil {
			out.Release()
			return nil, err
		}
		at += copy(out.Bytes()[at:], in)
	}
	return out, nil
}

// offsets joins the offsets of runs, counted from 0, and gives what each run refers to, and how much that is in all.
func offsets[T int32 | int64](pool Pool, runs []run, total int) (*memory.Buffer, []span, int64, error) {
	size, limit := 4, int64(math.MaxInt32)
	if _, ok := any(T(0)).(int64); ok {
		size, limit = 8, math.MaxInt64
	}
	buffer := pool.Buffer(pool.Alloc((total + 1) * size))
	out := arrow.GetData[T](buffer.Bytes())
	spans := make([]span, len(runs))
	at, sum := 0, int64(0)
	out[0] = 0
	for i, r := range runs {
		if r.n == 0 {
			continue
		}
		raw, err := r.bytes(1, r.first*size, (r.first+r.n+1)*size)
		if err != nil {
			buffer.Release()
			return nil, nil, 0, err
		}
		in := arrow.GetData[T](raw)
		from, to := int64(in[0]), int64(in[r.n])
		if to < from || from < 0 {
			buffer.Release()
			return nil, nil, 0, errkind.Errorf(errkind.BadData, "offsets of a slice run backwards")
		}
		if to-from > limit-sum {
			buffer.Release()
			return nil, nil, 0, errkind.Errorf(errkind.Exhausted, "the values of a batch take more than %d bytes; make the batch smaller", limit)
		}
		for j := range r.n {
			at++
			out[at] = T(sum + int64(in[j+1]) - from)
		}
		spans[i] = span{from, to}
		sum += to - from
	}
	return buffer, spans, sum, nil
}

// validity joins the validity bitmaps of runs; nil where no value is null.
func (a *assembler) validity(runs []run, total int) (*memory.Buffer, int, error) {
	valid := 0
	for _, r := range runs {
		bitmap, err := r.bitmap(0)
		if err != nil {
			return nil, 0, err
		}
		if bitmap == nil || r.data.NullN() == 0 {
			valid += r.n
			continue
		}
		valid += bitutil.CountSetBits(bitmap, r.first, r.n)
	}
	if valid == total {
		return nil, 0, nil
	}
	out, err := a.bits(runs, 0, total)
	return out, total - valid, err
}

// bits joins the bits of buffer i of runs; those of a run without one are set.
func (a *assembler) bits(runs []run, i, total int) (*memory.Buffer, error) {
	out := a.pool.Buffer(a.pool.Alloc(int(bitutil.BytesForBits(int64(total)))))
	clear(out.Bytes())
	at := 0
	for _, r := range runs {
		bitmap, err := r.bitmap(i)
		if err != nil {
			out.Release()
			return nil, err
		}
		if bitmap == nil {
			bitutil.SetBitsTo(out.Bytes(), int64(at), int64(r.n), true)
		} else {
			bitutil.CopyBitmap(bitmap, r.first, r.n, out.Bytes(), at)
		}
		at += r.n
	}
	return out, nil
}

// valid is the column that marks rows which count.
func (a *assembler) valid(pieces []Piece, total int) arrow.Array {
	out := a.pool.Alloc(int(bitutil.BytesForBits(int64(total))))
	clear(out)
	at := int64(0)
	for i := range pieces {
		if pieces[i].Valid {
			bitutil.SetBitsTo(out, at, pieces[i].NumRows, true)
		}
		at += pieces[i].NumRows
	}
	values := a.pool.Buffer(out)
	defer values.Release()
	data := array.NewData(arrow.FixedWidthTypes.Boolean, total, []*memory.Buffer{nil, values}, nil, 0, 0)
	defer data.Release()
	return array.MakeFromData(data)
}
