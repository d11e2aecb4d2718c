package op

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/internal/errkind"
)

func buildPythonOp(t *testing.T, params map[string]any) *pythonOp {
	t.Helper()
	o, err := Build("python", 3, params)
	if err != nil {
		t.Fatal(err)
	}
	p, ok := o.(*pythonOp)
	if !ok {
		t.Fatalf("it is a %T", o)
	}
	return p
}

func TestPythonParameters(t *testing.T) {
	o := buildPythonOp(t, map[string]any{
		"call": "pkg.mod:f", "mode": "batches", "keeps_rows": false, "batch_size": 8, "timeout": 1.5, "pickle": "abc", "args": map[string]any{"n": 2}, "version": "b",
	})
	want := PythonFunction{
		Call: "pkg.mod:f", Pickle: "abc", Mode: PythonBatches, Format: "numpy", Args: map[string]any{"n": 2}, Timeout: 1500 * time.Millisecond,
		OpenTimeout: 5 * time.Minute, Index: 3,
	}
	if diff := cmp.Diff(want, *PythonFunctionOf(o)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	// What decides no byte is in no digest.
	for _, name := range []string{"timeout", "open_timeout", "pickle"} {
		if _, there := o.Info().Params[name]; there {
			t.Errorf("%s is among the parameters that digests are made of", name)
		}
	}
	for mode, keeps := range map[string]bool{PythonMap: true, PythonFilter: false, PythonFlatMap: false, PythonBatches: true} {
		info := buildPythonOp(t, map[string]any{"call": "m:f", "mode": mode}).Info()
		if info.KeepsRows != keeps || info.ChangesPixelsOnly != keeps || info.Resources[PythonResource] != 1 || info.Params["version"] != int64(1) {
			t.Errorf("%s: %+v", mode, info)
		}
	}
}

func TestPythonMistakes(t *testing.T) {
	for _, c := range []struct {
		params map[string]any
		want   string
	}{
		{map[string]any{}, `python needs the parameter "call"`},
		{map[string]any{"call": "pkg.mod"}, `call "pkg.mod" is no import path; write it as "package.module:function"`},
		{map[string]any{"call": "m:f", "mode": "mapp"}, `can't be "mapp"; did you mean "map"?`},
		{map[string]any{"call": "m:f", "otput": nil}, `unknown parameter "otput" of python; did you mean "output"?`},
		{map[string]any{"call": "m:f", "format": "arrow"}, `unknown parameter "format" of python`},
		{map[string]any{"call": "m:f", "timeout": 0}, `"timeout" of python must be a number from 0.001`},
		{map[string]any{"call": "m:f", "version": 1.5}, `"version" of python must be a whole number or text`},
		{map[string]any{"call": "m:f", "args": []any{1}}, `"args" of python must be a mapping`},
		{map[string]any{"call": "m:f", "mode": "filter", "output": map[string]any{"a": "text"}}, "a filter makes no fields"},
		{map[string]any{"call": "m:f", "output": map[string]any{"a": "string"}}, `field "a" is "string"; it is text, bytes, int64, float64, image, or a tensor`},
		{map[string]any{"call": "m:f", "output": map[string]any{"__key__": "text"}}, "names that begin with __"},
		{map[string]any{"call": "m:f", "output": map[string]any{"a": map[string]any{"dtype": "float33"}}}, `did you mean "float32"?`},
		{map[string]any{"call": "m:f", "output": map[string]any{"a": map[string]any{"dtype": "bfloat16"}}}, "NumPy has no bfloat16"},
		{map[string]any{"call": "m:f", "output": map[string]any{"a": map[string]any{"shape": []any{0}}}}, "a list of sizes of at least 1"},
		{map[string]any{"call": "m:f", "output": map[string]any{"a": map[string]any{"shape": []any{1 << 30, 1 << 30}}}}, "a list of sizes of at least 1"},
		{map[string]any{"call": "m:f", "output": map[string]any{"a": map[string]any{"shape": []any{2}, "layout": "CHW"}}}, "layout CHW goes with a shape of three sizes"},
	} {
		_, err := Build("python", 0, c.params)
		if errkind.Of(err) != errkind.Invalid || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %s", c.params, err, c.want)
		}
	}
}

func TestPythonSchema(t *testing.T) {
	in := Schema{{Name: "image", Kind: KindImage, DType: DTypeUint8, Shape: []int64{-1, -1, 3}, DimNames: dimsHWC}, {Name: "text", Kind: KindText}}
	o := buildPythonOp(t, map[string]any{"call": "m:f", "output": map[string]any{
		"z": "int64", "a": map[string]any{"dtype": "float16", "shape": []any{3, 8, 8}, "layout": "CHW"}, "text": "bytes", "scalar": map[string]any{},
	}})
	got, err := o.Schema(in)
	if err != nil {
		t.Fatal(err)
	}
	want := Schema{
		in[0],
		{Name: "text", Kind: KindBytes},
		{Name: "a", Kind: KindTensor, DType: DTypeFloat16, Shape: []int64{3, 8, 8}, DimNames: []string{"C", "H", "W"}},
		{Name: "scalar", Kind: KindTensor, DType: DTypeFloat32, Shape: []int64{}},
		{Name: "z", Kind: KindInt64, DType: DTypeInt64},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	_, err = buildPythonOp(t, map[string]any{"call": "m:f", "input": []any{"imag"}}).Schema(in)
	if errkind.Of(err) != errkind.Invalid || !strings.Contains(err.Error(), `no field "imag"; did you mean "image"?`) {
		t.Errorf("%v", err)
	}
	_, err = buildPythonOp(t, map[string]any{"call": "m:f", "mode": "batches", "format": "arrow"}).Schema(in)
	if errkind.Of(err) != errkind.Invalid || !strings.Contains(err.Error(), "images of differing sizes") {
		t.Errorf("%v", err)
	}
}

// fakePython answers calls as the test says.
type fakePython func(c *PythonCall, emit func(PythonRows) error) error

func (f fakePython) Call(_ context.Context, c *PythonCall, emit func(PythonRows) error) error {
	return f(c, emit)
}

// Fields that the function did not make are those of the row that each one was made from.
func TestPythonRowsAreJoinedWithTheirSources(t *testing.T) {
	in := &Batch{NumRows: 3, Samples: []uint64{7, 8, 9}, Keys: []string{"a", "b", "c"}, Columns: []Column{
		{Field: Field{Name: "text", Kind: KindText}, Bytes: [][]byte{[]byte("t0"), []byte("t1"), []byte("t2")}},
		{Field: Field{Name: "n", Kind: KindInt64, DType: DTypeInt64}, Ints: []int64{0, 1, 2}},
		{Field: Field{Name: "f", Kind: KindFloat64, DType: DTypeFloat64}, Floats: []float64{0, 0.5, 1}},
		{Field: Field{Name: "tensor", Kind: KindTensor, DType: DTypeUint8, Shape: []int64{2}}, Tensor: []byte{0, 1, 2, 3, 4, 5}},
		{Field: Field{Name: "image", Kind: KindImage, DType: DTypeUint8, Shape: []int64{-1, -1, 1}}, Images: []Image{{H: 1}, {H: 2}, {H: 3}}},
	}}
	in.Origin = func(i int) Origin { return Origin{URI: in.Keys[i]} }
	o := buildPythonOp(t, map[string]any{"call": "m:f", "mode": "flat_map"})
	env := &Env{Python: fakePython(func(_ *PythonCall, emit func(PythonRows) error) error {
		return emit(PythonRows{From: []int{2, 2, 0}, Columns: []Column{{Field: in.Columns[1].Field, Ints: []int64{20, 21, 22}}}})
	})}
	var got *Batch
	if err := o.Apply(t.Context(), env, in, func(b *Batch) error { got = b; return b.Check() }); err != nil {
		t.Fatal(err)
	}
	want := &Batch{NumRows: 3, Samples: []uint64{9, 9, 7}, Keys: []string{"c", "c", "a"}, Columns: []Column{
		{Field: in.Columns[0].Field, Bytes: [][]byte{[]byte("t2"), []byte("t2"), []byte("t0")}},
		{Field: in.Columns[1].Field, Ints: []int64{20, 21, 22}},
		{Field: in.Columns[2].Field, Floats: []float64{1, 1, 0}},
		{Field: in.Columns[3].Field, Tensor: []byte{4, 5, 4, 5, 0, 1}},
		{Field: in.Columns[4].Field, Images: []Image{{H: 3}, {H: 3}, {H: 1}}},
	}}
	if got.Origin(0).URI != "c" || got.Origin(2).URI != "a" {
		t.Error("rows have another origin than what they were made from")
	}
	got.Origin = nil
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestPythonCallsAreOfSoManyRows(t *testing.T) {
	o := buildPythonOp(t, map[string]any{"call": "m:f", "mode": "batches", "batch_size": 3})
	var calls [][2]int
	env := &Env{Python: fakePython(func(c *PythonCall, _ func(PythonRows) error) error {
		calls = append(calls, [2]int{c.From, c.To})
		if c.From == 6 {
			return &PythonError{First: 6, Last: 7, Err: errors.New("no")}
		}
		return nil
	})}
	in := texts("text", KindText, "0", "1", "2", "3", "4", "5", "6", "7")
	in.Keys = []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	err := o.Apply(t.Context(), env, in, func(*Batch) error { return nil })
	if diff := cmp.Diff([][2]int{{0, 3}, {3, 6}, {6, 8}}, calls); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	sample, ok := errors.AsType[*SampleError](err)
	if !ok || sample.Row != 6 || errkind.Of(err) != errkind.BadData || !strings.Contains(err.Error(), "sample g: python m:f: in a batch of 2 rows, the last of which is h: no") {
		t.Errorf("%v", err)
	}
	err = o.Apply(t.Context(), &Env{}, in, func(*Batch) error { return nil })
	if errkind.Of(err) != errkind.Invalid || !strings.Contains(err.Error(), "m:f can't be called here") {
		t.Errorf("without Python: %v", err)
	}
}

func TestPythonPolicies(t *testing.T) {
	imported, shipped := &PythonFunction{Call: "m:f"}, &PythonFunction{Call: "m:g", Pickle: "x"}
	for _, c := range []struct {
		policy    string
		functions []*PythonFunction
		want      string
	}{
		{"", nil, ""},
		{AllowNone, nil, ""},
		{AllowImports, []*PythonFunction{imported}, ""},
		{AllowShipped, []*PythonFunction{imported, shipped}, ""},
		{"", []*PythonFunction{imported}, "function m:f is in Python, and such are not run here; start workers with --allow-python imports"},
		{AllowNone, []*PythonFunction{shipped}, "function m:g is shipped with the recipe, and functions in Python are not run here; start workers with --allow-python shipped"},
		{AllowImports, []*PythonFunction{imported, shipped}, "function m:g is shipped with the recipe, and only installed ones are run here; install it, or start workers with --allow-python shipped"},
	} {
		err := PythonAllowed(c.policy, c.functions)
		if (err == nil) != (c.want == "") || err != nil && (err.Error() != c.want || errkind.Of(err) != errkind.Invalid) {
			t.Errorf("%q: %v, want %s", c.policy, err, c.want)
		}
	}
}
