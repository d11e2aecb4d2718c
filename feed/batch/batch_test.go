package batch_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/feed/batch"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/partition"
)

func tensor(t *testing.T) arrow.DataType {
	t.Helper()
	typ, err := partition.NewTensorType(arrow.PrimitiveTypes.Uint8, []int64{2, 3}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return typ
}

// schema has a column of every kind that can be batched.
func schema(t *testing.T) *arrow.Schema {
	t.Helper()
	return arrow.NewSchema([]arrow.Field{
		{Name: "image", Type: tensor(t)},
		{Name: "label", Type: arrow.PrimitiveTypes.Int64},
		{Name: "half", Type: arrow.FixedWidthTypes.Float16},
		{Name: "flag", Type: arrow.FixedWidthTypes.Boolean, Nullable: true},
		{Name: "text", Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "blob", Type: arrow.BinaryTypes.LargeBinary},
		{Name: "digest", Type: &arrow.FixedSizeBinaryType{ByteWidth: 5}},
		{Name: "ragged", Type: arrow.StructOf(
			arrow.Field{Name: "data", Type: arrow.ListOf(arrow.PrimitiveTypes.Float32)},
			arrow.Field{Name: "shape", Type: arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Int32)},
		)},
		{Name: "words", Type: arrow.LargeListOf(arrow.BinaryTypes.String)},
		{Name: "pairs", Type: arrow.FixedSizeListOf(2, arrow.FixedWidthTypes.Boolean)},
		{Name: batch.KeyColumn, Type: arrow.BinaryTypes.String},
		{Name: batch.SampleColumn, Type: arrow.PrimitiveTypes.Int64},
	}, nil)
}

// fill appends a random value to a builder.
func fill(rng *rand.Rand, b array.Builder, nullable bool) {
	if nullable && rng.IntN(4) == 0 {
		b.AppendNull()
		return
	}
	word := func() string { return strings.Repeat("é", rng.IntN(4)) }
	switch b := b.(type) {
	case *array.ExtensionBuilder:
		fill(rng, b.StorageBuilder(), false)
	case *array.FixedSizeListBuilder:
		b.Append(true)
		for range as[*arrow.FixedSizeListType](b.Type()).Len() {
			fill(rng, b.ValueBuilder(), false)
		}
	case *array.ListBuilder:
		b.Append(true)
		for range rng.IntN(4) {
			fill(rng, b.ValueBuilder(), false)
		}
	case *array.LargeListBuilder:
		b.Append(true)
		for range rng.IntN(4) {
			fill(rng, b.ValueBuilder(), false)
		}
	case *array.StructBuilder:
		b.Append(true)
		for i := range b.NumField() {
			fill(rng, b.FieldBuilder(i), false)
		}
	case *array.Uint8Builder:
		b.Append(uint8(rng.Uint32()))
	case *array.Int32Builder:
		b.Append(rng.Int32())
	case *array.Int64Builder:
		b.Append(rng.Int64())
	case *array.Float16Builder:
		b.AppendNull()
	case *array.Float32Builder:
		b.Append(rng.Float32())
	case *array.BooleanBuilder:
		b.Append(rng.IntN(2) == 0)
	case *array.StringBuilder:
		b.Append(word())
	case *array.BinaryBuilder:
		b.Append([]byte(word()))
	case *array.FixedSizeBinaryBuilder:
		b.Append([]byte{1, 2, byte(rng.Uint32()), 4, 5})
	default:
		panic("no value for " + b.Type().String())
	}
}

func record(rng *rand.Rand, mem memory.Allocator, s *arrow.Schema, n int) arrow.RecordBatch {
	b := array.NewRecordBuilder(mem, s)
	defer b.Release()
	for i, f := range s.Fields() {
		for range n {
			fill(rng, b.Field(i), f.Nullable)
		}
	}
	return b.NewRecordBatch()
}

// A batch holds exactly the rows of its pieces, in order, for every type of column, from sliced records too; and all
// its buffers go back to the pool.
func TestAssembleJoinsRows(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		mem := memory.NewCheckedAllocator(memory.DefaultAllocator)
		pool := partition.NewPool(1 << 20)
		defer func() {
			mem.AssertSize(t, 0)
			if err := pool.Close(); err != nil {
				rt.Fatal(err)
			}
		}()
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		s := schema(t)
		layout, err := batch.NewLayout(s)
		if err != nil {
			rt.Fatal(err)
		}
		var pieces []batch.Piece
		for range rapid.IntRange(0, 5).Draw(rt, "pieces") {
			whole := record(rng, mem, s, 1+rng.IntN(20))
			from := rng.Int64N(whole.NumRows())
			part := whole.NewSlice(from, whole.NumRows())
			whole.Release()
			defer part.Release()
			first := rng.Int64N(part.NumRows() + 1)
			pieces = append(pieces, batch.Piece{Record: part, First: first, NumRows: rng.Int64N(part.NumRows() - first + 1), Valid: rng.IntN(2) == 0})
		}
		got, err := layout.Assemble(pool, pieces)
		if err != nil {
			rt.Fatal(err)
		}
		defer got.Release()
		check(rt, got, pieces)
	})
}

// check compares a batch with its pieces, value by value.
func check(t *rapid.T, got arrow.RecordBatch, pieces []batch.Piece) {
	valid := as[*array.Boolean](got.Column(int(got.NumCols()) - 1))
	at := int64(0)
	for _, p := range pieces {
		if p.NumRows == 0 {
			continue
		}
		for i, c := range p.Record.Columns() {
			if !array.SliceEqual(got.Column(i), at, at+p.NumRows, c, p.First, p.First+p.NumRows) {
				t.Fatalf("column %s differs in rows %d to %d", got.ColumnName(i), at, at+p.NumRows-1)
			}
		}
		for i := at; i < at+p.NumRows; i++ {
			if valid.Value(int(i)) != p.Valid {
				t.Fatalf("row %d is marked %v", i, valid.Value(int(i)))
			}
		}
		at += p.NumRows
	}
	if got.NumRows() != at {
		t.Fatalf("batch has %d rows, want %d", got.NumRows(), at)
	}
}

// The columns of a batch are the output, in the order of the recipe, then key, sample and valid, wherever the
// partitions have them.
func TestColumnsAreFoundByName(t *testing.T) {
	pool := partition.NewPool(0)
	s := arrow.NewSchema([]arrow.Field{
		{Name: batch.SampleColumn, Type: arrow.PrimitiveTypes.Int64},
		{Name: "label", Type: arrow.PrimitiveTypes.Int64},
		{Name: batch.KeyColumn, Type: arrow.BinaryTypes.String},
	}, nil)
	rec := record(rand.New(rand.NewPCG(1, 1)), memory.DefaultAllocator, s, 3)
	defer rec.Release()
	layout, err := batch.NewLayout(s)
	if err != nil {
		t.Fatal(err)
	}
	if n := layout.RowBytes(); n != 1+8+4+8 {
		t.Errorf("a row takes %d bytes", n)
	}
	got, err := layout.Assemble(pool, []batch.Piece{{Record: rec, NumRows: 3, Valid: true}})
	if err != nil {
		t.Fatal(err)
	}
	defer got.Release()
	for i, name := range []string{"label", batch.KeyColumn, batch.SampleColumn, batch.ValidColumn} {
		if got.ColumnName(i) != name {
			t.Errorf("column %d is %q, want %q", i, got.ColumnName(i), name)
		}
	}
	if !array.Equal(got.Column(2), rec.Column(0)) {
		t.Error("the sample column is another one")
	}
}

// Slices that are not what the layout says end in an error that says so, and nothing is kept.
func TestWrongSlicesAreErrors(t *testing.T) {
	pool := partition.NewPool(0)
	field := func(name string, typ arrow.DataType) arrow.Field { return arrow.Field{Name: name, Type: typ} }
	key, sample := field(batch.KeyColumn, arrow.BinaryTypes.String), field(batch.SampleColumn, arrow.PrimitiveTypes.Int64)
	layout, err := batch.NewLayout(arrow.NewSchema([]arrow.Field{field("label", arrow.PrimitiveTypes.Int64)}, nil))
	if err != nil {
		t.Fatal(err)
	}
	make3 := func(fields ...arrow.Field) arrow.RecordBatch {
		return record(rand.New(rand.NewPCG(1, 1)), memory.DefaultAllocator, arrow.NewSchema(fields, nil), 3)
	}
	truncated := func() arrow.RecordBatch {
		data := array.NewData(arrow.BinaryTypes.String, 3, []*memory.Buffer{
			nil, memory.NewBufferBytes(arrow.GetBytes([]int32{0, 1, 2, 1000})), memory.NewBufferBytes([]byte("abc")),
		}, nil, 0, 0)
		whole := make3(field("label", arrow.PrimitiveTypes.Int64), key, sample)
		columns := []arrow.Array{whole.Column(0), stringArray{whole.Column(1), data}, whole.Column(2)}
		return array.NewRecordBatch(whole.Schema(), columns, 3)
	}
	for name, c := range map[string]struct {
		rec  arrow.RecordBatch
		rows int64
		kind errkind.Kind
	}{
		"missing column":   {make3(key, sample), 3, errkind.Internal},
		"other type":       {make3(field("label", arrow.PrimitiveTypes.Int32), key, sample), 3, errkind.Internal},
		"too few rows":     {make3(field("label", arrow.PrimitiveTypes.Int64), key, sample), 4, errkind.Internal},
		"truncated buffer": {truncated(), 3, errkind.BadData},
	} {
		if _, err := layout.Assemble(pool, []batch.Piece{{Record: c.rec, NumRows: c.rows}}); errkind.Of(err) != c.kind {
			t.Errorf("%s: got %v, want an error of kind %s", name, err, c.kind)
		}
	}
	if err := pool.Close(); err != nil {
		t.Error(err)
	}
}

// stringArray is an array with other data than its constructor would let pass.
type stringArray struct {
	arrow.Array

	data arrow.ArrayData
}

func (a stringArray) Data() arrow.ArrayData { return a.data }

// Types whose values cannot be cut out row by row are refused when the job is opened.
func TestTypesAreChecked(t *testing.T) {
	deep := arrow.PrimitiveTypes.Int8
	for range 20 {
		deep = arrow.ListOf(deep)
	}
	for _, typ := range []arrow.DataType{
		deep, arrow.Null, arrow.BinaryTypes.StringView,
		&arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String},
	} {
		_, err := batch.NewLayout(arrow.NewSchema([]arrow.Field{{Name: "x", Type: typ}}, nil))
		if errkind.Of(err) != errkind.Invalid || !strings.Contains(err.Error(), `"x"`) {
			t.Errorf("%.40s: got %v, want an error of kind invalid that names the column", typ, err)
		}
	}
	_, err := batch.NewLayout(arrow.NewSchema([]arrow.Field{{Name: "x", Type: arrow.FixedWidthTypes.Boolean}, {Name: "x", Type: deep}}, nil))
	if errkind.Of(err) != errkind.Invalid {
		t.Errorf("two columns of one name: got %v", err)
	}
}

// A stream of batches makes next to no garbage: their buffers are used again.
func TestBuffersAreReused(t *testing.T) {
	pool := partition.NewPool(64 << 20)
	s := schema(t)
	rec := record(rand.New(rand.NewPCG(1, 2)), memory.DefaultAllocator, s, 4000)
	defer rec.Release()
	layout, err := batch.NewLayout(s)
	if err != nil {
		t.Fatal(err)
	}
	assemble := func() int64 {
		got, err := layout.Assemble(pool, []batch.Piece{{Record: rec, NumRows: 4000, Valid: true}, {Record: rec, NumRows: 4000}})
		if err != nil {
			t.Fatal(err)
		}
		defer got.Release()
		return partition.DataBytes(got)
	}
	bytes := assemble()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const n = 50
	for range n {
		assemble()
	}
	runtime.ReadMemStats(&after)
	if perBatch := int64(after.TotalAlloc-before.TotalAlloc) / n; perBatch > bytes/10 {
		t.Errorf("a batch of %d bytes makes %d bytes of garbage", bytes, perBatch)
	}
	if stats := pool.Stats(); stats.IdleBytes > 2*bytes {
		t.Errorf("%d bytes are kept for batches of %d", stats.IdleBytes, bytes)
	}
	if err := pool.Close(); err != nil {
		t.Error(err)
	}
}

// as is v, which is known to be a T.
func as[T any](v any) T {
	t, ok := v.(T)
	if !ok {
		panic(fmt.Sprintf("%T is no %T", v, t))
	}
	return t
}
