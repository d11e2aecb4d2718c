package partition

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"pgregory.net/rapid"
)

// column is what a test column holds: values by row, nil for null.
type column struct {
	field  arrow.Field
	values []any
}

// table is the plain form of a record batch, from which it can be built in different ways.
type table []column

func (t table) numRows() int { return len(t[0].values) }

// build makes a record batch of rows from..to.
func (t table) build(mem memory.Allocator, from, to int) arrow.RecordBatch {
	fields := make([]arrow.Field, len(t))
	for i, c := range t {
		fields[i] = c.field
	}
	b := array.NewRecordBuilder(mem, arrow.NewSchema(fields, nil))
	defer b.Release()
	for i, c := range t {
		for _, v := range c.values[from:to] {
			appendValue(b.Field(i), v)
		}
	}
	return b.NewRecordBatch()
}

func appendValue(b array.Builder, v any) {
	if v == nil {
		b.AppendNull()
		return
	}
	switch b := b.(type) {
	case *array.Int64Builder:
		b.Append(as[int64](v))
	case *array.Uint8Builder:
		b.Append(as[uint8](v))
	case *array.BooleanBuilder:
		b.Append(as[bool](v))
	case *array.StringBuilder:
		b.Append(as[string](v))
	case *array.LargeStringBuilder:
		b.Append(as[string](v))
	case *array.BinaryBuilder:
		b.Append([]byte(as[string](v)))
	case *array.ListBuilder:
		b.Append(true)
		for _, e := range as[[]any](v) {
			appendValue(b.ValueBuilder(), e)
		}
	case *array.FixedSizeListBuilder:
		b.Append(true)
		for _, e := range as[[]any](v) {
			appendValue(b.ValueBuilder(), e)
		}
	case *array.StructBuilder:
		b.Append(true)
		for i, e := range as[[]any](v) {
			appendValue(b.FieldBuilder(i), e)
		}
	default:
		panic(fmt.Sprintf("no such builder: %T", b))
	}
}

// as is v, which has to be a T.
func as[T any](v any) T {
	out, ok := v.(T)
	if !ok {
		panic(fmt.Sprintf("%T is no value of the column", v))
	}
	return out
}

var columnTypes = []arrow.DataType{
	arrow.PrimitiveTypes.Int64, arrow.PrimitiveTypes.Uint8, arrow.FixedWidthTypes.Boolean,
	arrow.BinaryTypes.String, arrow.BinaryTypes.LargeString, arrow.BinaryTypes.Binary,
	arrow.ListOf(arrow.PrimitiveTypes.Int64), arrow.FixedSizeListOf(3, arrow.PrimitiveTypes.Uint8),
	arrow.ListOf(arrow.BinaryTypes.String),
	arrow.StructOf(
		arrow.Field{Name: "a", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
		arrow.Field{Name: "b", Type: arrow.FixedSizeListOf(2, arrow.FixedWidthTypes.Boolean), Nullable: true},
	),
}

func drawValue(t *rapid.T, typ arrow.DataType) any {
	if rapid.IntRange(0, 4).Draw(t, "null") == 0 {
		return nil
	}
	switch typ := typ.(type) {
	case *arrow.Int64Type:
		return rapid.Int64().Draw(t, "int64")
	case *arrow.Uint8Type:
		return rapid.Uint8().Draw(t, "uint8")
	case *arrow.BooleanType:
		return rapid.Bool().Draw(t, "bool")
	case *arrow.StringType, *arrow.LargeStringType, *arrow.BinaryType:
		return rapid.StringN(0, 8, -1).Draw(t, "string")
	case *arrow.ListType:
		return drawValues(t, typ.Elem(), rapid.IntRange(0, 3).Draw(t, "length"))
	case *arrow.FixedSizeListType:
		return drawValues(t, typ.Elem(), int(typ.Len()))
	case *arrow.StructType:
		out := make([]any, 0, typ.NumFields())
		for _, f := range typ.Fields() {
			out = append(out, drawValue(t, f.Type))
		}
		return out
	}
	panic("no such type: " + typ.String())
}

func drawValues(t *rapid.T, typ arrow.DataType, n int) []any {
	out := make([]any, 0, n)
	for range n {
		out = append(out, drawValue(t, typ))
	}
	return out
}

func drawTable(t *rapid.T) table {
	rows := rapid.IntRange(0, 70).Draw(t, "rows")
	out := make(table, rapid.IntRange(1, 3).Draw(t, "columns"))
	for i := range out {
		typ := rapid.SampledFrom(columnTypes).Draw(t, "type")
		field := arrow.Field{Name: fmt.Sprint("c", i), Type: typ, Nullable: true}
		out[i] = column{field: field, values: drawValues(t, typ, rows)}
	}
	return out
}

func TestHashAndSizeAreThoseOfTheDataAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mem := memory.NewCheckedAllocator(memory.DefaultAllocator)
		defer mem.AssertSize(t, 0)
		data := drawTable(t)
		n := data.numRows()
		from := rapid.IntRange(0, n).Draw(t, "from")
		to := rapid.IntRange(from, n).Draw(t, "to")

		whole := data.build(mem, 0, n)
		defer whole.Release()
		slice := whole.NewSlice(int64(from), int64(to))
		defer slice.Release()
		alone := data.build(mem, from, to)
		defer alone.Release()
		travelled := throughIPC(t, mem, slice)
		defer travelled.Release()

		want, size := Hash(alone), DataBytes(alone)
		for name, rec := range map[string]arrow.RecordBatch{"slice": slice, "after IPC": travelled} {
			if got := Hash(rec); got != want {
				t.Errorf("%s: hash %x, built alone %x", name, got, want)
			}
			if got := DataBytes(rec); got != size {
				t.Errorf("%s: %d bytes, built alone %d", name, got, size)
			}
		}
	})
}

func TestHashTellsDifferentDataApart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		data := drawTable(t)
		if data.numRows() == 0 {
			return
		}
		before := data.build(memory.DefaultAllocator, 0, data.numRows())
		c := &data[rapid.IntRange(0, len(data)-1).Draw(t, "column")]
		row := rapid.IntRange(0, len(c.values)-1).Draw(t, "row")
		value := drawValue(t, c.field.Type)
		if fmt.Sprintf("%#v", value) == fmt.Sprintf("%#v", c.values[row]) {
			return
		}
		c.values[row] = value
		after := data.build(memory.DefaultAllocator, 0, data.numRows())
		if Hash(before) == Hash(after) {
			t.Fatalf("row %d of %s became %#v, and the hash is the same", row, c.field, value)
		}
	})
}

func TestHashSeesNameTypeAndDType(t *testing.T) {
	values := []any{uint8(1), uint8(2)}
	field := arrow.Field{Name: "x", Type: arrow.PrimitiveTypes.Uint8}
	base := table{{field: field, values: values}}.build(memory.DefaultAllocator, 0, 2)
	renamed, nullable, tagged := field, field, field
	renamed.Name = "y"
	nullable.Nullable = true
	tagged.Metadata = arrow.MetadataFrom(map[string]string{DTypeKey: "bfloat16"})
	seen := map[[16]byte]string{Hash(base): "base"}
	for name, f := range map[string]arrow.Field{"renamed": renamed, "nullable": nullable, "tagged": tagged} {
		h := Hash(table{{field: f, values: values}}.build(memory.DefaultAllocator, 0, 2))
		if other, dup := seen[h]; dup {
			t.Errorf("%s and %s have the same hash", name, other)
		}
		seen[h] = name
	}
}

// TestHashIsFixed pins the hash of one batch: it is stored in job logs and compared between releases.
func TestHashIsFixed(t *testing.T) {
	rec := table{
		{field: arrow.Field{Name: "label", Type: arrow.PrimitiveTypes.Int64}, values: []any{int64(7), int64(-1)}},
		{field: arrow.Field{Name: "text", Type: arrow.BinaryTypes.String, Nullable: true}, values: []any{"a", nil}},
	}.build(memory.DefaultAllocator, 0, 2)
	const want = "90189ae7d245927260dd6d5ce2e8e5a4"
	if got := fmt.Sprintf("%x", Hash(rec)); got != want {
		t.Errorf("hash is %s, was %s: raise hashVersion only in a release that says so", got, want)
	}
}

// throughIPC is rec after writing and reading it as an IPC stream.
func throughIPC(t interface {
	Fatal(args ...any)
}, mem memory.Allocator, rec arrow.RecordBatch,
) arrow.RecordBatch {
	var buf bytes.Buffer
	w := ipc.NewWriter(&buf, ipc.WithSchema(rec.Schema()), ipc.WithAllocator(mem))
	if err := w.Write(rec); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := ipc.NewReader(&buf, ipc.WithAllocator(mem))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	if !r.Next() {
		t.Fatal("no record batch came back", r.Err())
	}
	out := r.RecordBatch()
	out.Retain()
	return out
}
