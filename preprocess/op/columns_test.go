package op

import (
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/internal/errkind"
)

// texts is a batch of one text column.
func texts(name string, kind Kind, values ...string) *Batch {
	b := &Batch{NumRows: len(values), Columns: []Column{{Field: Field{Name: name, Kind: kind}}}}
	for i, v := range values {
		b.Columns[0].Bytes = append(b.Columns[0].Bytes, []byte(v))
		b.Samples = append(b.Samples, uint64(i))
	}
	return b
}

// label reads numbers and text from class files and from JSON by path.
func TestLabel(t *testing.T) {
	const doc = `{"a": {"class": 7, "name": "tench", "soft": [0.25, 1e2], "ok": true}}`
	cases := []struct {
		params map[string]any
		in     string
		want   Column
	}{
		{map[string]any{"from": "in"}, " 12\n", Column{Ints: []int64{12}}},
		{map[string]any{"from": "in"}, "-3.0", Column{Ints: []int64{-3}}},
		{map[string]any{"from": "in", "key": "a.class"}, doc, Column{Ints: []int64{7}}},
		{map[string]any{"from": "in", "key": "a.ok"}, doc, Column{Ints: []int64{1}}},
		{map[string]any{"from": "in", "key": "a.soft.1"}, doc, Column{Ints: []int64{100}}},
		{map[string]any{"from": "in", "key": "a.soft.0", "dtype": "float64"}, doc, Column{Floats: []float64{0.25}}},
		{map[string]any{"from": "in", "key": "a.name", "dtype": "text"}, doc, Column{Bytes: [][]byte{[]byte("tench")}}},
	}
	for _, c := range cases {
		c.params["field"] = "label"
		o, err := Build("label", 0, c.params)
		if err != nil {
			t.Fatal(err)
		}
		out, err := runAll(t, &Env{}, []Operator{o}, texts("in", KindBytes, c.in))
		if err != nil {
			t.Errorf("%v: %v", c.params, err)
			continue
		}
		got := *out.Column("label")
		got.Field = Field{}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%v (-want +got)\n%s", c.params, diff)
		}
	}
}

// A label that can't be read is a SampleError that says what is there.
func TestLabelErrors(t *testing.T) {
	cases := []struct {
		key, in, want string
	}{
		{"", "cat", `sample #0: label: "cat" is not an integer`},
		{"", "1.5", `sample #0: label: "1.5" is not an integer`},
		{"a.clazz", `{"a": {"class": 1}}`, `sample #0: label: JSON at "a.clazz": no member "clazz"; did you mean "class"?`},
		{"a.3", `{"a": [1]}`, `sample #0: label: JSON at "a.3": a list of 1 elements has no element "3"`},
		{"a", `{"a": `, `sample #0: label: JSON at "a": unexpected end of JSON input`},
	}
	for _, c := range cases {
		o, err := Build("label", 0, map[string]any{"field": "in", "key": c.key})
		if err != nil {
			t.Fatal(err)
		}
		_, err = runAll(t, &Env{}, []Operator{o}, texts("in", KindText, c.in))
		if err == nil || err.Error() != c.want || errkind.Of(err) != errkind.BadData {
			t.Errorf("got  %v\nwant %s", err, c.want)
		}
	}
}

// Whatever the document and the path, label gives a label or an error.
func FuzzLabel(f *testing.F) {
	f.Add([]byte(`{"a": {"b": [1, "2", true]}}`), "a.b.1")
	f.Add([]byte(`7`), "")
	f.Add([]byte(`[[[[`), "0.0.0")
	f.Fuzz(func(t *testing.T, doc []byte, key string) {
		o, err := Build("label", 0, map[string]any{"field": "in", "key": key})
		if err != nil {
			t.Fatal(err)
		}
		out, err := runAll(t, &Env{}, []Operator{o}, texts("in", KindBytes, string(doc)))
		if err == nil && len(out.Column("in").Ints) != 1 || err != nil && errkind.Of(err) != errkind.BadData {
			t.Errorf("%+v, %v", out, err)
		}
	})
}

// select keeps and orders, rename renames; both leave the values alone.
func TestSelectAndRename(t *testing.T) {
	b := texts("a", KindText, "x")
	b.Columns = append(b.Columns, Column{Field: Field{Name: "b", Kind: KindInt64, DType: DTypeInt64}, Ints: []int64{1}}, texts("c", KindText, "z").Columns[0])
	pick, err := Build("select", 0, map[string]any{"fields": []any{"b", "a"}})
	if err != nil {
		t.Fatal(err)
	}
	rename, err := Build("rename", 1, map[string]any{"from": "a", "to": "caption"})
	if err != nil {
		t.Fatal(err)
	}
	out, err := runAll(t, &Env{}, []Operator{pick, rename}, b)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"b", "caption"}, out.Schema().Names()); diff != "" || out.Columns[0].Ints[0] != 1 || string(out.Columns[1].Bytes[0]) != "x" {
		t.Errorf("got %+v", out.Columns)
	}
	if _, err := rename.Schema(Schema{{Name: "a"}, {Name: "caption"}}); err == nil {
		t.Error("rename onto a field that is there")
	}
	if _, err := pick.Schema(Schema{{Name: "a"}}); err == nil {
		t.Error("select of a field that isn't there")
	}
}

// The output has the declared fields in the declared order, layout and type.
func TestOutput(t *testing.T) {
	names, files := readable(t)
	b := encoded(files...)
	b.Columns = append(b.Columns, texts("label", KindBytes, strings.Split(strings.Repeat("7,", len(names)-1)+"8", ",")...).Columns[0])
	ops := chain(t, decode, rrc, flip)
	schema := b.Schema()
	for _, o := range ops {
		var err error
		if schema, err = o.Schema(schema); err != nil {
			t.Fatal(err)
		}
	}
	output, err := NewOutput(schema, []OutputField{{Name: "label", DType: DTypeInt64}, {Name: "image", Layout: "CHW", DType: DTypeBfloat16}})
	if err != nil {
		t.Fatal(err)
	}
	ops = append(ops, output)
	want, err := runAll(t, &Env{}, ops, b)
	if err != nil {
		t.Fatal(err)
	}
	fused := Fuse(ops)
	if len(fused) != 2 {
		t.Errorf("%d operators after fusing", len(fused))
	}
	got, err := runAll(t, &Env{}, fused, b)
	if err != nil {
		t.Fatal(err)
	}
	sameImages(t, names, want, got)
	if diff := cmp.Diff(Schema{
		{Name: "label", Kind: KindInt64, DType: DTypeInt64},
		{Name: "image", Kind: KindTensor, DType: DTypeBfloat16, Shape: []int64{3, 32, 32}, DimNames: []string{"C", "H", "W"}},
	}, got.Schema()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if labels := got.Column("label").Ints; labels[0] != 7 || labels[len(labels)-1] != 8 {
		t.Errorf("labels %v", labels)
	}
}

// Numbers convert between the scalar types; what doesn't fit is a SampleError.
func TestOutputScalars(t *testing.T) {
	cases := []struct {
		dtype DType
		in    string
		want  []byte
		err   string
	}{
		{DTypeInt32, "-7", binary.LittleEndian.AppendUint32(nil, uint32(math.MaxUint32-6)), ""},
		{DTypeUint8, "255", []byte{255}, ""},
		{DTypeUint8, "256", nil, `sample #0: output: field "x": 256 does not fit in uint8`},
		{DTypeBool, "1", []byte{1}, ""},
		{DTypeFloat32, "0.5", binary.LittleEndian.AppendUint32(nil, math.Float32bits(0.5)), ""},
		{DTypeFloat32, "zebra", nil, `sample #0: output: field "x": "zebra" is not a number`},
	}
	for _, c := range cases {
		b := texts("x", KindText, c.in)
		output, err := NewOutput(b.Schema(), []OutputField{{Name: "x", DType: c.dtype}})
		if err != nil {
			t.Fatal(err)
		}
		out, err := runAll(t, &Env{}, []Operator{output}, b)
		if c.err != "" {
			if err == nil || err.Error() != c.err {
				t.Errorf("got %v, want %s", err, c.err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, out.Column("x").Tensor); diff != "" {
			t.Errorf("%v of %q (-want +got)\n%s", c.dtype, c.in, diff)
		}
	}
}

// Declarations that can't be met are refused with advice.
func TestOutputErrors(t *testing.T) {
	schema := Schema{{Name: "image", Kind: KindImage, DType: DTypeUint8, Shape: []int64{-1, -1, 3}}, {Name: "label", Kind: KindText}}
	cases := []struct {
		field OutputField
		want  string
	}{
		{OutputField{Name: "lable"}, `output: no field "lable"; did you mean "label"?`},
		{OutputField{Name: "image", Layout: "CHW"}, `output: images of field "image" differ in size; bring them to one size before it (resize with [height, width], center_crop or random_resized_crop)`},
		{OutputField{Name: "label", Layout: "CHW"}, `output: field "label" is text and has no layout CHW`},
		{OutputField{Name: "image", Layout: "NCHW"}, `output: layout "NCHW" of field "image"; it is one of CHW, HWC`},
		{OutputField{Name: "label", DType: DTypeFloat16}, `output: field "label" is text and can't become float16; use int64, int32, uint8, bool, float32 or float64`},
	}
	for _, c := range cases {
		if _, err := NewOutput(schema, []OutputField{c.field}); err == nil || err.Error() != c.want || errkind.Of(err) != errkind.Invalid {
			t.Errorf("got  %v\nwant %s", err, c.want)
		}
	}
}
