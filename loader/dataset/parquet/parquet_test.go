package parquet_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
	pq "github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"go.uber.org/goleak"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/dataset/datasettest"
	"github.com/millrace/millrace/loader/dataset/format"
	"github.com/millrace/millrace/loader/dataset/formattest"
	"github.com/millrace/millrace/loader/dataset/parquet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var schema = arrow.NewSchema([]arrow.Field{
	{Name: "id", Type: arrow.PrimitiveTypes.Int64},
	{Name: "label", Type: arrow.PrimitiveTypes.Int32, Nullable: true},
	{Name: "kind", Type: &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int32, ValueType: arrow.BinaryTypes.String}, Nullable: true},
	{Name: "image", Type: arrow.StructOf(
		arrow.Field{Name: "bytes", Type: arrow.BinaryTypes.Binary, Nullable: true},
		arrow.Field{Name: "path", Type: arrow.BinaryTypes.String, Nullable: true},
	), Nullable: true},
	{Name: "tokens", Type: arrow.ListOf(arrow.PrimitiveTypes.Int32), Nullable: true},
	{Name: "words", Type: arrow.ListOf(arrow.ListOf(arrow.BinaryTypes.String)), Nullable: true},
	{Name: "price", Type: &arrow.Decimal128Type{Precision: 28, Scale: 9}},
	{Name: "small", Type: &arrow.Decimal128Type{Precision: 9, Scale: 2}},
	{Name: "score", Type: arrow.PrimitiveTypes.Float32},
	{Name: "exact", Type: arrow.PrimitiveTypes.Float64},
	{Name: "ok", Type: arrow.FixedWidthTypes.Boolean, Nullable: true},
	{Name: "count", Type: arrow.PrimitiveTypes.Uint64},
	{Name: "user", Type: arrow.StructOf(arrow.Field{Name: "name", Type: arrow.BinaryTypes.LargeString}, arrow.Field{Name: "tags", Type: arrow.MapOf(arrow.BinaryTypes.String, arrow.PrimitiveTypes.Int64)})},
	{Name: "nothing", Type: arrow.Null, Nullable: true},
}, nil)

// as is the builder of a column whose type is known.
func as[T array.Builder](b array.Builder) T {
	t, ok := b.(T)
	if !ok {
		panic(fmt.Sprintf("a column is built by %T", b))
	}
	return t
}

// build appends row i to b, and is what should be read of it.
func build(b *array.RecordBuilder, i int) formattest.Row {
	row := formattest.Row{"id": fmt.Sprint(i)}
	as[*array.Int64Builder](b.Field(0)).Append(int64(i))
	if i%3 == 0 {
		b.Field(1).AppendNull()
	} else {
		as[*array.Int32Builder](b.Field(1)).Append(int32(i - 10))
		row["label"] = fmt.Sprint(i - 10)
	}
	if i%11 == 0 {
		b.Field(2).AppendNull()
	} else {
		row["kind"] = strings.Repeat("kind ", i%4)
		if err := as[*array.BinaryDictionaryBuilder](b.Field(2)).AppendString(row["kind"]); err != nil {
			panic(err)
		}
	}
	image := as[*array.StructBuilder](b.Field(3))
	if i%13 == 5 {
		image.AppendNull()
	} else {
		image.Append(true)
		row["image"] = strings.Repeat(fmt.Sprintf("\xff\xd8%d\x00", i), i*7%400)
		as[*array.BinaryBuilder](image.FieldBuilder(0)).Append([]byte(row["image"]))
		if i%2 == 0 {
			image.FieldBuilder(1).AppendNull()
		} else {
			row["image.path"] = fmt.Sprintf("%d.jpg", i)
			as[*array.StringBuilder](image.FieldBuilder(1)).Append(row["image.path"])
		}
	}
	tokens := as[*array.ListBuilder](b.Field(4))
	if i%5 == 1 {
		tokens.AppendNull()
	} else {
		tokens.Append(true)
		var parts []string
		for j := range i * 3 % 17 {
			if j%7 == 6 {
				tokens.ValueBuilder().AppendNull()
				parts = append(parts, "null")
				continue
			}
			as[*array.Int32Builder](tokens.ValueBuilder()).Append(int32(i * j))
			parts = append(parts, fmt.Sprint(i*j))
		}
		row["tokens"] = "[" + strings.Join(parts, ",") + "]"
	}
	words := as[*array.ListBuilder](b.Field(5))
	switch i % 4 {
	case 0:
		words.AppendNull()
	case 1:
		words.Append(true)
		row["words"] = "[]"
	default:
		words.Append(true)
		inner := as[*array.ListBuilder](words.ValueBuilder())
		inner.Append(true)
		as[*array.StringBuilder](inner.ValueBuilder()).Append("a\"\n")
		inner.ValueBuilder().AppendNull()
		inner.AppendNull()
		inner.Append(true)
		inner.Append(true)
		as[*array.StringBuilder](inner.ValueBuilder()).Append(fmt.Sprint(i))
		row["words"] = fmt.Sprintf(`[["a\"\u000a",null],null,[],["%d"]]`, i)
	}
	as[*array.Decimal128Builder](b.Field(6)).Append(decimal128.FromI64(int64(i)*-1234567890123 + 5))
	n := int64(i)*1234567890123 - 5
	row["price"] = fmt.Sprintf("-%d.%09d", n/1e9, n%1e9)
	if n < 0 {
		row["price"] = fmt.Sprintf("0.%09d", -n)
	}
	as[*array.Decimal128Builder](b.Field(7)).Append(decimal128.FromI64(int64(i)))
	row["small"] = fmt.Sprintf("%d.%02d", i/100, i%100)
	as[*array.Float32Builder](b.Field(8)).Append(float32(i) / 10)
	row["score"] = fmt.Sprint(float32(i) / 10)
	as[*array.Float64Builder](b.Field(9)).Append(float64(i) / 7)
	row["exact"] = fmt.Sprint(float64(i) / 7)
	if i%6 == 0 {
		b.Field(10).AppendNull()
	} else {
		as[*array.BooleanBuilder](b.Field(10)).Append(i%2 == 0)
		row["ok"] = fmt.Sprint(1 - i%2)
	}
	as[*array.Uint64Builder](b.Field(11)).Append(1<<63 + uint64(i))
	row["count"] = fmt.Sprint(1<<63 + uint64(i))
	user := as[*array.StructBuilder](b.Field(12))
	user.Append(true)
	row["user.name"] = fmt.Sprintf("n%d", i)
	as[*array.LargeStringBuilder](user.FieldBuilder(0)).Append(row["user.name"])
	tags := as[*array.MapBuilder](user.FieldBuilder(1))
	tags.Append(true)
	row["user.tags.key"], row["user.tags.value"] = "[]", "[]"
	if i%2 == 1 {
		as[*array.StringBuilder](tags.KeyBuilder()).Append("k")
		as[*array.Int64Builder](tags.ItemBuilder()).Append(int64(i))
		row["user.tags.key"], row["user.tags.value"] = `["k"]`, fmt.Sprintf("[%d]", i)
	}
	b.Field(13).AppendNull()
	return row
}

// write is a file of rows [from, to), in record batches of perGroup rows, each a row group.
func write(tb testing.TB, from, to, perGroup int, opts ...pq.WriterProperty) ([]byte, []formattest.Row) {
	tb.Helper()
	var buf bytes.Buffer
	w, err := pqarrow.NewFileWriter(schema, &buf, pq.NewWriterProperties(opts...), pqarrow.DefaultWriterProps())
	if err != nil {
		tb.Fatal(err)
	}
	var rows []formattest.Row
	for at := from; at < to; at += perGroup {
		b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
		for i := at; i < min(to, at+perGroup); i++ {
			rows = append(rows, build(b, i))
		}
		if err := w.Write(b.NewRecordBatch()); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return buf.Bytes(), rows
}

func TestLawsForEveryWayOfWriting(t *testing.T) {
	for _, c := range []struct {
		name     string
		perGroup int
		opts     []pq.WriterProperty
	}{
		{"tiny row groups", 9, []pq.WriterProperty{pq.WithCompression(compress.Codecs.Snappy)}},
		{"one row group of many pages", 1000, []pq.WriterProperty{pq.WithDataPageSize(300), pq.WithBatchSize(4), pq.WithCompression(compress.Codecs.Zstd)}},
		{"pages of version 2", 150, []pq.WriterProperty{pq.WithDataPageVersion(pq.DataPageV2), pq.WithDataPageSize(300), pq.WithBatchSize(4), pq.WithCompression(compress.Codecs.Gzip)}},
		{"with a page index", 200, []pq.WriterProperty{pq.WithPageIndexEnabled(true), pq.WithDataPageSize(300), pq.WithBatchSize(4), pq.WithDictionaryDefault(false)}},
		{"brotli and no dictionary", 500, []pq.WriterProperty{pq.WithCompression(compress.Codecs.Brotli), pq.WithDictionaryDefault(false)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, first := write(t, 0, 70, c.perGroup, c.opts...)
			empty, _ := write(t, 0, 0, 1, c.opts...)
			b, second := write(t, 70, 110, c.perGroup, c.opts...)
			formattest.Check(t, os.Getenv("MILLRACE_S3_SERVERS"), formattest.Set{
				Files:  map[string][]byte{"train-0.parquet": a, "train-1.parquet": empty, "train-2.parquet": b, "_metadata": {1}},
				Format: "parquet", Rows: append(first, second...),
			})
		})
	}
}

func TestColumnsAreNamedByTheirLeavesAndTyped(t *testing.T) {
	data, _ := write(t, 0, 1, 1)
	x, err := parquet.Format{}.Index(t.Context(), formattest.Bytes(data), nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := parquet.Format{}.Open(x.Raw)
	if err != nil {
		t.Fatal(err)
	}
	want := "[{id int64} {label int64} {kind text} {image bytes} {image.path text} {tokens json} {words json} {price float64} {small float64} " +
		"{score float64} {exact float64} {ok int64} {count int64} {user.name text} {user.tags.key json} {user.tags.value json} {nothing int64}]"
	if got := fmt.Sprint(s.Columns()); got != want {
		t.Errorf("columns\n%s, want\n%s", got, want)
	}
}

// counting says which bytes were asked for.
type counting struct {
	formattest.Bytes
	requests int
	bytes    int64
}

func (c *counting) ReadAt(ctx context.Context, off int64, dst []byte) error {
	c.requests++
	c.bytes += int64(len(dst))
	return c.Bytes.ReadAt(ctx, off, dst)
}

func TestIndexingReadsNoPages(t *testing.T) {
	for _, index := range []bool{true, false} {
		data, _ := write(t, 0, 6_000, 2_000, pq.WithPageIndexEnabled(index), pq.WithDictionaryDefault(false))
		o := &counting{Bytes: data}
		if _, err := (parquet.Format{}).Index(t.Context(), o, nil); err != nil {
			t.Fatal(err)
		}
		if o.bytes > int64(len(data))/5 {
			t.Errorf("page index %v: %d requests read %d of %d bytes", index, o.requests, o.bytes, len(data))
		}
	}
}

func TestOnlyWantedColumnsAndPagesAreRead(t *testing.T) {
	data, _ := write(t, 0, 5000, 5000, pq.WithDataPageSize(20_000), pq.WithBatchSize(20), pq.WithDictionaryDefault(false))
	dir := t.TempDir()
	path := datasettest.WriteFile(t, dir, "a.parquet", data)
	r := datasettest.Resolver(t, nil)
	m, err := dataset.Build(t.Context(), r, []string{path}, nil, dataset.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d := datasettest.Open(t, m, r, nil, dataset.OpenOptions{})
	_, release, err := d.Read(t.Context(), []int64{3000, 3001, 3002}, func(f string) bool { return f == "image" })
	defer release()
	if s := d.Stats(); err != nil || s.BytesRead > 70_000 {
		t.Errorf("3 of 5000 images took %d of %d bytes (%v)", s.BytesRead, len(data), err)
	}
	before := d.Stats()
	_, release, err = d.Read(t.Context(), []int64{3003, 2999, 3000}, func(f string) bool { return f == "image" })
	defer release()
	if after := d.Stats(); err != nil || after.Requests-before.Requests > 1 {
		t.Errorf("neighbours took %d more requests (%v)", after.Requests-before.Requests, err)
	}
}

func TestALittleFileCannotUnfoldWithoutLimit(t *testing.T) {
	s := arrow.NewSchema([]arrow.Field{{Name: "text", Type: arrow.BinaryTypes.String}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, s)
	long := strings.Repeat("x", 1<<16)
	for range 600 { // A dictionary of one text: 40 MB from 70 KB.
		as[*array.StringBuilder](b.Field(0)).Append(long)
	}
	var buf bytes.Buffer
	w, err := pqarrow.NewFileWriter(s, &buf, pq.NewWriterProperties(), pqarrow.DefaultWriterProps())
	if err == nil {
		err = w.Write(b.NewRecordBatch())
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	path := datasettest.WriteFile(t, t.TempDir(), "bomb.parquet", buf.Bytes())
	r := datasettest.Resolver(t, nil)
	m, err := dataset.Build(t.Context(), r, []string{path}, nil, dataset.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d := datasettest.Open(t, m, r, nil, dataset.OpenOptions{ReadBytes: 16 << 20})
	_, release, err := d.Read(t.Context(), []int64{0}, nil)
	defer release()
	if errkind.Of(err) != errkind.Exhausted || !strings.Contains(err.Error(), "bomb.parquet") {
		t.Errorf("a page of 40 MB under a limit of 16 MiB: %v", err)
	}
}

func TestDamageNamesTheFile(t *testing.T) {
	data, _ := write(t, 0, 50, 50)
	r := datasettest.Resolver(t, nil)
	for _, c := range []struct {
		name, want string
		data       []byte
	}{
		{"cut", "it does not end as a Parquet file does", data[:len(data)-100]},
		{"none", "it has 3 bytes and is no Parquet file", []byte("abc")},
		{"footer", "its footer", append(bytes.Clone(data[:len(data)-8]), "\xff\xff\xff\x0fPAR1"...)},
		{"encrypted", "it is encrypted", append(bytes.Clone(data[:len(data)-4]), "PARE"...)},
	} {
		path := datasettest.WriteFile(t, t.TempDir(), c.name+".parquet", c.data)
		_, err := dataset.Build(t.Context(), r, []string{path}, nil, dataset.BuildOptions{})
		if kind := errkind.Of(err); kind != errkind.BadData && kind != errkind.Invalid || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func FuzzSurvive(f *testing.F) {
	for _, opts := range [][]pq.WriterProperty{{pq.WithPageIndexEnabled(true)}, {pq.WithCompression(compress.Codecs.Zstd), pq.WithDataPageVersion(pq.DataPageV2)}} {
		data, _ := write(f, 0, 20, 7, opts...)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) { formattest.Survive(t, parquet.Format{}, data) })
}

func FuzzOpen(f *testing.F) {
	data, _ := write(f, 0, 20, 7)
	x, err := parquet.Format{}.Index(f.Context(), formattest.Bytes(data), nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(x.Raw)
	f.Fuzz(func(t *testing.T, raw []byte) {
		head, body, err := format.Unseal(raw, 1)
		if err == nil {
			raw = format.Seal(1, head, body)
		}
		if _, err := (parquet.Format{}).Open(raw); err != nil && errkind.Of(err) != errkind.BadData {
			t.Errorf("%v of kind %v", err, errkind.Of(err))
		}
	})
}
