package arrowipc_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/float16"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"go.uber.org/goleak"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/dataset/arrowipc"
	"github.com/millrace/millrace/loader/dataset/datasettest"
	"github.com/millrace/millrace/loader/dataset/format"
	"github.com/millrace/millrace/loader/dataset/formattest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var schema = arrow.NewSchema([]arrow.Field{
	{Name: "id", Type: arrow.PrimitiveTypes.Int64},
	{Name: "label", Type: arrow.PrimitiveTypes.Int8, Nullable: true},
	{Name: "kind", Type: &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Uint8, ValueType: arrow.BinaryTypes.String}, Nullable: true},
	{Name: "image", Type: arrow.StructOf(
		arrow.Field{Name: "bytes", Type: arrow.BinaryTypes.Binary, Nullable: true},
		arrow.Field{Name: "path", Type: arrow.BinaryTypes.LargeString, Nullable: true},
	), Nullable: true},
	{Name: "tokens", Type: arrow.LargeListOf(arrow.PrimitiveTypes.Uint16), Nullable: true},
	{Name: "boxes", Type: arrow.ListOf(arrow.StructOf(
		arrow.Field{Name: "name", Type: arrow.BinaryTypes.String, Nullable: true},
		arrow.Field{Name: "at", Type: arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Float32)},
		arrow.Field{Name: "mask", Type: arrow.BinaryTypes.LargeBinary, Nullable: true},
		arrow.Field{Name: "hard", Type: arrow.FixedWidthTypes.Boolean, Nullable: true},
	)), Nullable: true},
	{Name: "price", Type: &arrow.Decimal128Type{Precision: 28, Scale: 9}},
	{Name: "score", Type: arrow.PrimitiveTypes.Float32},
	{Name: "half", Type: arrow.FixedWidthTypes.Float16},
	{Name: "exact", Type: arrow.PrimitiveTypes.Float64},
	{Name: "ok", Type: arrow.FixedWidthTypes.Boolean, Nullable: true},
	{Name: "count", Type: arrow.PrimitiveTypes.Uint64},
	{Name: "day", Type: arrow.FixedWidthTypes.Date32},
	{Name: "digest", Type: &arrow.FixedSizeBinaryType{ByteWidth: 4}},
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
		as[*array.Int8Builder](b.Field(1)).Append(int8(i%100 - 50))
		row["label"] = fmt.Sprint(i%100 - 50)
	}
	if i%11 == 0 {
		b.Field(2).AppendNull()
	} else {
		row["kind"] = strings.Repeat("kind ", i%4)
		if err := as[*array.BinaryDictionaryBuilder](b.Field(2)).AppendString(row["kind"]); err != nil {
			panic(err)
		}
	}
	buildImage(as[*array.StructBuilder](b.Field(3)), i, row)
	tokens := as[*array.LargeListBuilder](b.Field(4))
	if i%5 == 4 {
		tokens.AppendNull()
	} else {
		tokens.Append(true)
		var text []string
		for k := range i % 7 {
			as[*array.Uint16Builder](tokens.ValueBuilder()).Append(uint16(60_000 + k))
			text = append(text, fmt.Sprint(60_000+k))
		}
		row["tokens"] = "[" + strings.Join(text, ",") + "]"
	}
	buildBoxes(as[*array.ListBuilder](b.Field(5)), i, row)
	as[*array.Decimal128Builder](b.Field(6)).Append(decimal128.FromI64(int64(i)*-1234567890123 + 5))
	n := int64(i)*1234567890123 - 5
	row["price"] = fmt.Sprintf("-%d.%09d", n/1e9, n%1e9)
	if n < 0 {
		row["price"] = fmt.Sprintf("0.%09d", -n)
	}
	as[*array.Float32Builder](b.Field(7)).Append(float32(i) / 10)
	row["score"] = fmt.Sprint(float32(i) / 10)
	as[*array.Float16Builder](b.Field(8)).Append(float16.New(float32(i) / 4))
	row["half"] = fmt.Sprint(float32(i) / 4)
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
	as[*array.Date32Builder](b.Field(12)).Append(arrow.Date32(-i))
	row["day"] = fmt.Sprint(-i)
	row["digest"] = fmt.Sprintf("%04d", i)
	as[*array.FixedSizeBinaryBuilder](b.Field(13)).Append([]byte(row["digest"]))
	b.Field(14).AppendNull()
	return row
}

func buildImage(image *array.StructBuilder, i int, row formattest.Row) {
	if i%13 == 5 {
		image.AppendNull()
		return
	}
	image.Append(true)
	row["image"] = strings.Repeat(fmt.Sprintf("<%d>", i), i%50)
	as[*array.BinaryBuilder](image.FieldBuilder(0)).Append([]byte(row["image"]))
	if i%2 == 0 {
		image.FieldBuilder(1).AppendNull()
	} else {
		row["image.path"] = fmt.Sprintf("dir/%d.png", i)
		as[*array.LargeStringBuilder](image.FieldBuilder(1)).Append(row["image.path"])
	}
}

func buildBoxes(boxes *array.ListBuilder, i int, row formattest.Row) {
	if i%9 == 1 {
		boxes.AppendNull()
		return
	}
	boxes.Append(true)
	box := as[*array.StructBuilder](boxes.ValueBuilder())
	var text []string
	for k := range i % 4 {
		if k == 2 {
			box.AppendNull()
			text = append(text, "null")
			continue
		}
		box.Append(true)
		as[*array.StringBuilder](box.FieldBuilder(0)).Append(fmt.Sprintf("b\"%d", k))
		at := as[*array.FixedSizeListBuilder](box.FieldBuilder(1))
		at.Append(true)
		as[*array.Float32Builder](at.ValueBuilder()).AppendValues([]float32{float32(i) + 0.5, -1}, nil)
		mask := fmt.Sprintf("\x00m%d", i)
		as[*array.BinaryBuilder](box.FieldBuilder(2)).Append([]byte(mask))
		hard := "null"
		if k == 0 {
			hard = fmt.Sprint(i%2 == 0)
			as[*array.BooleanBuilder](box.FieldBuilder(3)).Append(i%2 == 0)
		} else {
			box.FieldBuilder(3).AppendNull()
		}
		text = append(text, fmt.Sprintf(`{"name":"b\"%d","at":[%v,-1],"mask":"%s","hard":%s}`, k, float32(i)+0.5, base64.StdEncoding.EncodeToString([]byte(mask)), hard))
	}
	row["boxes"] = "[" + strings.Join(text, ",") + "]"
}

type writer interface {
	Write(rec arrow.RecordBatch) error
	Close() error
}

// write is a file, or a stream, of rows [from, to) in record batches of perBatch rows.
func write(tb testing.TB, file bool, from, to, perBatch int, opts ...ipc.Option) ([]byte, []formattest.Row) {
	tb.Helper()
	var buf bytes.Buffer
	opts = append(opts, ipc.WithSchema(schema), ipc.WithDictionaryDeltas(false))
	var w writer = ipc.NewWriter(&buf, opts...)
	if file {
		f, err := ipc.NewFileWriter(&buf, opts...)
		if err != nil {
			tb.Fatal(err)
		}
		w = f
	}
	var rows []formattest.Row
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	if file { // A file has one dictionary for all its batches.
		for i := range 4 {
			if err := as[*array.BinaryDictionaryBuilder](b.Field(2)).AppendString(strings.Repeat("kind ", i)); err != nil {
				tb.Fatal(err)
			}
		}
		as[*array.BinaryDictionaryBuilder](b.Field(2)).NewArray()
	}
	for at := from; at < to; at += perBatch {
		for i := at; i < min(to, at+perBatch); i++ {
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
		file     bool
		perBatch int
		opts     []ipc.Option
	}{
		{"stream of small batches", false, 9, nil},
		{"file of one large batch", true, 1000, nil},
		{"stream compressed by Zstandard", false, 50, []ipc.Option{ipc.WithZstd()}},
		{"file compressed by LZ4", true, 1000, []ipc.Option{ipc.WithLZ4()}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, first := write(t, c.file, 0, 170, c.perBatch, c.opts...)
			empty, _ := write(t, c.file, 0, 0, 1, c.opts...)
			b, second := write(t, c.file, 170, 210, c.perBatch, c.opts...)
			formattest.Check(t, os.Getenv("MILLRACE_S3_SERVERS"), formattest.Set{
				Files:  map[string][]byte{"data-00000-of-00003.arrow": a, "data-00001-of-00003.arrow": empty, "data-00002-of-00003.arrow": b, "dataset_info.json": []byte("{}")},
				Format: "arrow", Rows: append(first, second...),
			})
		})
	}
}

func TestColumnsAreNamedByTheirLeavesAndTyped(t *testing.T) {
	data, _ := write(t, true, 0, 1, 1)
	x, err := arrowipc.Format{}.Index(t.Context(), formattest.Bytes(data), nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := arrowipc.Format{}.Open(x.Raw)
	if err != nil {
		t.Fatal(err)
	}
	want := "[{id int64} {label int64} {kind text} {image bytes} {image.path text} {tokens json} {boxes json} {price float64} {score float64} " +
		"{half float64} {exact float64} {ok int64} {count int64} {day int64} {digest bytes} {nothing int64}]"
	if got := fmt.Sprint(s.Columns()); got != want {
		t.Errorf("columns\n%s, want\n%s", got, want)
	}
}

// images is a stream of one batch of images of size bytes each.
func images(tb testing.TB, rows, size int, opts ...ipc.Option) []byte {
	tb.Helper()
	s := arrow.NewSchema([]arrow.Field{{Name: "image", Type: arrow.BinaryTypes.Binary}, {Name: "label", Type: arrow.PrimitiveTypes.Int64}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, s)
	for i := range rows {
		as[*array.BinaryBuilder](b.Field(0)).Append(bytes.Repeat([]byte{byte(i)}, size))
		as[*array.Int64Builder](b.Field(1)).Append(int64(i))
	}
	var buf bytes.Buffer
	w := ipc.NewWriter(&buf, append(opts, ipc.WithSchema(s))...)
	if err := w.Write(b.NewRecordBatch()); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return buf.Bytes()
}

// counting says how many bytes were asked for.
type counting struct {
	formattest.Bytes
	bytes int64
}

func (c *counting) ReadAt(ctx context.Context, off int64, dst []byte) error {
	c.bytes += int64(len(dst))
	return c.Bytes.ReadAt(ctx, off, dst)
}

// A batch of a thousand images, as Hugging Face writes them, is neither read to be indexed nor to read one of them.
func TestOnlyWhatIsWantedIsRead(t *testing.T) {
	data := images(t, 1000, 40_000)
	o := &counting{Bytes: data}
	if _, err := (arrowipc.Format{}).Index(t.Context(), o, nil); err != nil || o.bytes > 200_000 {
		t.Errorf("indexing read %d of %d bytes (%v)", o.bytes, len(data), err)
	}
	path := datasettest.WriteFile(t, t.TempDir(), "a.arrow", data)
	r := datasettest.Resolver(t, nil)
	m, err := dataset.Build(t.Context(), r, []string{path}, nil, dataset.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d := datasettest.Open(t, m, r, nil, dataset.OpenOptions{})
	samples, release, err := d.Read(t.Context(), []int64{500, 501}, func(f string) bool { return f == "image" })
	defer release()
	if s := d.Stats(); err != nil || s.BytesRead != 80_000 || samples[1].Fields[0].Data[0] != 501%256 {
		t.Errorf("2 images of 40,000 bytes took %d bytes (%v)", s.BytesRead, err)
	}
}

func TestALittleFileCannotUnfoldWithoutLimit(t *testing.T) {
	path := datasettest.WriteFile(t, t.TempDir(), "bomb.arrow", images(t, 600, 1<<16, ipc.WithZstd()))
	r := datasettest.Resolver(t, nil)
	m, err := dataset.Build(t.Context(), r, []string{path}, nil, dataset.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d := datasettest.Open(t, m, r, nil, dataset.OpenOptions{ReadBytes: 16 << 20})
	_, release, err := d.Read(t.Context(), []int64{0}, nil)
	defer release()
	if errkind.Of(err) != errkind.Exhausted || !strings.Contains(err.Error(), "bomb.arrow") {
		t.Errorf("a column of 40 MB under a limit of 16 MiB: %v", err)
	}
}

func TestDamageNamesTheFile(t *testing.T) {
	file, _ := write(t, true, 0, 50, 50)
	stream, _ := write(t, false, 0, 50, 10)
	r := datasettest.Resolver(t, nil)
	for _, c := range []struct {
		name, want string
		data       []byte
	}{
		{"cut", "does not end as an Arrow file does", file[:len(file)-100]},
		{"short", "it is cut off in the message", stream[:len(stream)/2]},
		{"none", "it is no Arrow file or stream", []byte("a text of some length, nothing more")},
		{"empty", "it is no Arrow file or stream", nil},
		{"old", "Feather of version 1", []byte("FEA1 and more bytes")},
	} {
		path := datasettest.WriteFile(t, t.TempDir(), c.name+".arrow", c.data)
		_, err := dataset.Build(t.Context(), r, []string{path}, nil, dataset.BuildOptions{})
		if kind := errkind.Of(err); kind != errkind.BadData && kind != errkind.Invalid || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	path := datasettest.WriteFile(t, t.TempDir(), "cut.arrow", stream[:len(stream)-1000])
	m, err := dataset.Build(t.Context(), r, []string{path}, nil, dataset.BuildOptions{TolerateDamaged: true})
	if err != nil || m.NumSamples() != 40 || len(m.Damaged) != 1 {
		t.Errorf("%v; a stream that is cut in its fifth batch has 40 rows before it, if that is tolerated", err)
	}
}

func TestAColumnThatIsNotSupportedIsNamed(t *testing.T) {
	s := arrow.NewSchema([]arrow.Field{{Name: "view", Type: arrow.BinaryTypes.StringView}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, s)
	as[*array.StringViewBuilder](b.Field(0)).Append("x")
	var buf bytes.Buffer
	w := ipc.NewWriter(&buf, ipc.WithSchema(s))
	if err := w.Write(b.NewRecordBatch()); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := arrowipc.Format{}.Index(t.Context(), formattest.Bytes(buf.Bytes()), nil)
	if errkind.Of(err) != errkind.Invalid || !strings.Contains(err.Error(), `column "view"`) {
		t.Errorf("%v, want that the column is named", err)
	}
}

func FuzzSurvive(f *testing.F) {
	for _, opts := range [][]ipc.Option{nil, {ipc.WithZstd()}, {ipc.WithLZ4()}} {
		for _, file := range []bool{true, false} {
			data, _ := write(f, file, 0, 20, 7, opts...)
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) { formattest.Survive(t, arrowipc.Format{}, data) })
}

func FuzzOpen(f *testing.F) {
	data, _ := write(f, false, 0, 20, 7)
	x, err := arrowipc.Format{}.Index(f.Context(), formattest.Bytes(data), nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(x.Raw)
	f.Fuzz(func(t *testing.T, raw []byte) {
		head, body, err := format.Unseal(raw, 1)
		if err == nil {
			raw = format.Seal(1, head, body)
		}
		if _, err := (arrowipc.Format{}).Open(raw); err != nil && errkind.Of(err) != errkind.BadData && errkind.Of(err) != errkind.Invalid {
			t.Errorf("%v of kind %v", err, errkind.Of(err))
		}
	})
}
