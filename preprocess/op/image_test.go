package op

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/op/imagekernel"
	"github.com/millrace/millrace/preprocess/op/optest"
)

// step is an operator of a test recipe.
type step struct {
	name   string
	params map[string]any
}

// chain builds steps on the field image.
func chain(tb testing.TB, steps ...step) []Operator {
	tb.Helper()
	ops := make([]Operator, len(steps))
	for i, s := range steps {
		params := maps.Clone(s.params)
		if params == nil {
			params = map[string]any{}
		}
		if params["field"] == nil {
			params["field"] = "image"
		}
		var err error
		if ops[i], err = Build(s.name, i, params); err != nil {
			tb.Fatal(err)
		}
	}
	return ops
}

// encoded is a batch of files. Sample ordinals are 10, 11 and so on.
func encoded(files ...[]byte) *Batch {
	b := &Batch{NumRows: len(files), Columns: []Column{{Field: Field{Name: "image", Kind: KindBytes}, Bytes: files}}}
	for i := range files {
		b.Samples = append(b.Samples, uint64(10+i))
		b.Keys = append(b.Keys, fmt.Sprintf("a.tar!%d.jpg", i))
	}
	return b
}

// runAll sends b through ops and checks each operator's schema against its output.
func runAll(tb testing.TB, env *Env, ops []Operator, b *Batch) (*Batch, error) {
	tb.Helper()
	for _, o := range ops {
		want, err := o.Schema(b.Schema())
		if err != nil {
			return nil, err
		}
		var out *Batch
		if err := o.Apply(tb.Context(), env, b, func(next *Batch) error {
			out = next
			return nil
		}); err != nil {
			return nil, err
		}
		if diff := cmp.Diff(want, out.Schema()); diff != "" {
			tb.Fatalf("%s: schema (-promised +got)\n%s", o.Info().Name, diff)
		}
		if err := out.Check(); err != nil {
			tb.Fatalf("%s: %v", o.Info().Name, err)
		}
		b = out
	}
	return b, nil
}

// readable are the test images that this build decodes, in order of name.
func readable(tb testing.TB) (names []string, files [][]byte) {
	tb.Helper()
	images, err := optest.Images("optest/testdata")
	if err != nil {
		tb.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(images)) {
		if !imagekernel.Exact && strings.HasPrefix(name, "extra") {
			continue // Kinds of JPEG that image/jpeg can't read.
		}
		names, files = append(names, name), append(files, images[name])
	}
	return names, files
}

var (
	decode   = step{"decode_image", map[string]any{"exif": "ignore"}}
	upright  = step{"decode_image", nil}
	gray     = step{"decode_image", map[string]any{"mode": "l"}}
	rrc      = step{"random_resized_crop", map[string]any{"size": 32, "scale": []any{0.08, 1.0}}}
	rrcOld   = step{"random_resized_crop", map[string]any{"size": []any{9, 40}, "interpolation": "bicubic", "pillow": "<13"}}
	flip     = step{"random_horizontal_flip", nil}
	eval     = step{"resize", map[string]any{"size": 36}}
	thumb    = step{"resize", map[string]any{"size": []any{20, 24}, "interpolation": "lanczos"}}
	sampled  = step{"resize", map[string]any{"size": []any{33, 17}, "interpolation": "nearest"}}
	center   = step{"center_crop", map[string]any{"size": 32}}
	wide     = step{"center_crop", map[string]any{"size": []any{20, 300}}}
	padded   = step{"random_crop", map[string]any{"size": []any{25, 31}, "padding": 4, "pad_if_needed": true, "fill": []any{9, 8, 7}}}
	norm     = step{"normalize", map[string]any{"mean": []any{0.485, 0.456, 0.406}, "std": []any{0.229, 0.224, 0.225}}}
	normGray = step{"normalize", map[string]any{"mean": []any{0.5}, "std": []any{0.25}}}
	tensor   = step{"to_tensor", nil}
	chw      = step{"to_tensor", map[string]any{"dtype": "uint8"}}
	half     = step{"to_tensor", map[string]any{"layout": "HWC", "dtype": "float16"}}
	flop     = step{"random_vertical_flip", nil}
	bordered = step{"pad", map[string]any{"padding": []any{3, 5}, "padding_mode": "symmetric"}}
	shaken   = step{"color_jitter", map[string]any{"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}}
	blur     = step{"gaussian_blur", map[string]any{"kernel_size": 7}}
	auto     = step{"rand_augment", nil}
	mixedUp  = step{"aug_mix", nil}
	turned   = step{"random_rotation", map[string]any{"degrees": 30, "expand": true, "interpolation": "bilinear"}}
	moved    = step{"random_affine", map[string]any{"degrees": 10, "shear": 5}}
	toGray   = step{"grayscale", nil}
	erased   = step{"random_erasing", map[string]any{"value": "random", "p": 0.9}}
	bf16     = step{"to_tensor", map[string]any{"dtype": "bfloat16"}}
)

// Fused operators give the bytes of the same operators one by one, with vector instructions and without, for every kind
// of image, and any draws.
func TestFusedEqualsUnfused(t *testing.T) {
	names, files := readable(t)
	recipes := map[string][]step{
		"train":        {decode, rrc, flip, chw},
		"train float":  {upright, rrc, flip, tensor, norm},
		"train half":   {decode, rrcOld, flip, norm, half},
		"gray":         {gray, rrc, flip, tensor, normGray, bf16},
		"eval":         {upright, eval, center, norm, bf16},
		"wide":         {decode, wide, flip, chw},
		"padded":       {upright, padded, flip, center},
		"pad twice":    {decode, padded, wide, padded, flip},
		"two resizes":  {decode, flip, thumb, flip, sampled, padded, rrc, chw},
		"flip, crop":   {upright, flip, padded, flip, flip},
		"decode":       {upright, flip},
		"chw normal":   {decode, center, chw, norm},
		"crop, center": {gray, rrc, wide, rrcOld},
		"jitter":       {decode, rrc, flip, shaken, chw},
		"upended":      {upright, flop, padded, flop, flip, bordered, flop, center},
		"strong":       {upright, rrc, flip, auto, blur, tensor, norm, erased, bf16},
		"warped":       {decode, turned, thumb, moved, shaken, mixedUp, toGray, center, normGray},
		"erased":       {gray, center, erased, flop, chw, erased, normGray, erased, half},
	}
	for name, steps := range recipes {
		t.Run(name, func(t *testing.T) {
			ops := chain(t, steps...)
			fused := Fuse(ops)
			if len(fused) != 1 {
				t.Fatalf("%d operators after fusing", len(fused))
			}
			for epoch := range uint64(2) {
				env := &Env{Seed: 3, Epoch: epoch}
				want, err := runAll(t, env, ops, encoded(files...))
				if err != nil {
					t.Fatal(err)
				}
				for _, scalar := range []bool{false, true} {
					got, err := runAll(t, &Env{Seed: 3, Epoch: epoch, Scalar: scalar}, fused, encoded(files...))
					if err != nil {
						t.Fatal(err)
					}
					sameImages(t, names, want, got)
				}
			}
		})
	}
}

// sameImages compares the image columns of two batches row by row.
func sameImages(t *testing.T, names []string, want, got *Batch) {
	t.Helper()
	a, b := want.Column("image"), got.Column("image")
	if diff := cmp.Diff(a.Field, b.Field); diff != "" {
		t.Fatalf("fields (-want +got)\n%s", diff)
	}
	for i, name := range names {
		if a.Kind == KindTensor {
			if !bytes.Equal(a.TensorRow(i), b.TensorRow(i)) {
				t.Errorf("%s differs", name)
			}
		} else if diff := cmp.Diff(a.Images[i], b.Images[i]); diff != "" {
			t.Errorf("%s differs", name)
		}
	}
}

// Draws depend on sample, epoch, seed and place in the recipe, and not on the rest of the batch.
func TestDrawsAreKeyed(t *testing.T) {
	_, files := readable(t)
	file := files[0]
	ops := Fuse(chain(t, decode, rrc, flip))
	run := func(env *Env, b *Batch) *Column {
		t.Helper()
		out, err := runAll(t, env, ops, b)
		if err != nil {
			t.Fatal(err)
		}
		return out.Column("image")
	}
	base := run(&Env{Seed: 1}, encoded(file, file, file))
	if bytes.Equal(base.TensorRow(0), base.TensorRow(1)) {
		t.Error("two samples have the same draws")
	}
	alone := encoded(file)
	alone.Samples[0] = 12
	if !bytes.Equal(base.TensorRow(2), run(&Env{Seed: 1}, alone).TensorRow(0)) {
		t.Error("a sample alone has other draws than in a batch")
	}
	for _, env := range []*Env{{Seed: 2}, {Seed: 1, Epoch: 1}} {
		if bytes.Equal(base.TensorRow(0), run(env, encoded(file)).TensorRow(0)) {
			t.Errorf("%+v has the draws of seed 1, epoch 0", env)
		}
	}
}

// A bad sample is a SampleError that says which sample, which operator and why.
func TestBadSamples(t *testing.T) {
	_, files := readable(t)
	good := files[0]
	images, err := optest.Images("optest/testdata")
	if err != nil {
		t.Fatal(err)
	}
	big := bytes.Clone(images["a-420-b.jpg"])
	at := bytes.Index(big, []byte{0xFF, 0xC0})
	copy(big[at+5:], []byte{0xFF, 0x00, 0xFF, 0x00}) // 65,280 × 65,280 pixels.
	cases := map[string]struct {
		data  []byte
		kind  errkind.Kind
		wants string
	}{
		"empty":   {nil, errkind.BadData, "decode_image: the image is empty (0 bytes)"},
		"text":    {[]byte("hello, world"), errkind.BadData, "decode_image: neither JPEG, PNG, WebP, GIF, BMP, TIFF nor AVIF"},
		"cut png": {images["rgb.png"][:400], errkind.BadData, "decode_image: truncated PNG"},
		"cut":     {images["a-420-b.jpg"][:2000], errkind.BadData, "decode_image: truncated JPEG"},
		"header":  {images["a-420-b.jpg"][:100], errkind.BadData, "decode_image: truncated JPEG, the header is incomplete"},
		"pixels":  {big, errkind.Exhausted, "decode_image: image of 65280x65280 = 4261478400 pixels, the limit is 50000000"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			b := encoded(good, c.data)
			b.Origin = func(int) Origin {
				return Origin{URI: "s3://bucket/a.tar!1.jpg", Offset: 1203200, Length: 98113}
			}
			twice := Fuse(chain(t, decode, rrc, rrcOld))
			for _, ops := range [][]Operator{chain(t, decode, rrc), Fuse(chain(t, decode, rrc)), twice} {
				_, err := runAll(t, &Env{}, ops, b)
				var bad *SampleError
				if !errors.As(err, &bad) || bad.Row != 1 || errkind.Of(err) != c.kind {
					t.Fatalf("got %v of kind %v", err, errkind.Of(err))
				}
				want := "sample s3://bucket/a.tar!1.jpg (offset 1,203,200, 98,113 bytes): " + c.wants
				if !strings.HasPrefix(err.Error(), want) {
					t.Errorf("got  %v\nwant %v…", err, want)
				}
			}
		})
	}
}

// Images without a palette have no indices.
func TestIndicesNeedPalette(t *testing.T) {
	images := testImages(t)
	for _, name := range []string{"rgb.png", "a-420-b.jpg"} {
		_, err := runAll(t, &Env{}, chain(t, step{"decode_image", map[string]any{"mode": "p"}}), encoded(images[name]))
		if errkind.Of(err) != errkind.BadData || !strings.Contains(err.Error(), "without a palette has no indices") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// decode: fast decodes at a fraction where the crop allows it and only where a resize comes next.
func TestFastDecode(t *testing.T) {
	if !imagekernel.Exact {
		return // image/jpeg decodes at full size only.
	}
	file := testImages(t)["f-420-b.jpg"] // 160×110 pixels.
	quick := step{"decode_image", map[string]any{"decode": "fast"}}
	small := step{"resize", map[string]any{"size": []any{27, 40}}}
	for _, c := range []struct {
		steps []step
		same  bool
	}{
		{[]step{small}, false},
		{[]step{{"center_crop", map[string]any{"size": []any{53, 79}}}, small}, true}, // Half of it would be too small.
		{[]step{{"center_crop", map[string]any{"size": []any{54, 80}}}, small}, false},
		{[]step{{"random_horizontal_flip", map[string]any{"p": 1}}, small}, true},
		{[]step{center}, true},
	} {
		exact, err := runAll(t, &Env{}, Fuse(chain(t, append([]step{decode}, c.steps...)...)), encoded(file))
		if err != nil {
			t.Fatal(err)
		}
		fast, err := runAll(t, &Env{}, Fuse(chain(t, append([]step{quick}, c.steps...)...)), encoded(file))
		if err != nil {
			t.Fatal(err)
		}
		a, b := exact.Columns[0].Tensor, fast.Columns[0].Tensor
		if bytes.Equal(a, b) != c.same {
			t.Errorf("%v: the same bytes: %v", c.steps, !c.same)
		}
	}
}

// Each part of a fused operator that fails is named.
func TestFusedErrorNamesPart(t *testing.T) {
	_, files := readable(t)
	small := step{"random_crop", map[string]any{"size": 500}}
	_, err := runAll(t, &Env{}, Fuse(chain(t, decode, flip, small)), encoded(files[0]))
	want := "sample a.tar!0.jpg: random_crop: image of 97x61 pixels is smaller than the crop of 500x500; set pad_if_needed or resize it first"
	if err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}
}

// Schemas that can't work are refused before any sample is read, with advice.
func TestImageSchemaErrors(t *testing.T) {
	cases := []struct {
		steps []step
		wants string
	}{
		{[]step{rrc}, `random_resized_crop: field "image" is not decoded yet; put decode_image before it`},
		{[]step{decode, decode}, `decode_image: field "image" is decoded already`},
		{[]step{decode, norm}, `normalize: images of field "image" differ in size; bring them to one size before it`},
		{[]step{decode, center, tensor, flip}, `random_horizontal_flip: field "image" is already float32 tensor [3,32,32] (CHW); put random_horizontal_flip before to_tensor`},
		{[]step{gray, center, norm}, `normalize: mean and std have 3 values, field "image" has 1 channels`},
		{[]step{decode, center, bf16, norm}, `normalize: field "image" is bfloat16 tensor`},
		{[]step{{"decode_image", map[string]any{"field": "imag"}}}, `decode_image: no field "imag"; did you mean "image"?`},
	}
	for _, c := range cases {
		for _, ops := range [][]Operator{chain(t, c.steps...), Fuse(chain(t, c.steps...))} {
			schema := Schema{{Name: "image", Kind: KindBytes}, {Name: "label", Kind: KindText}}
			var err error
			for _, o := range ops {
				if schema, err = o.Schema(schema); err != nil {
					break
				}
			}
			if err == nil || !strings.HasPrefix(err.Error(), c.wants) || errkind.Of(err) != errkind.Invalid {
				t.Errorf("got  %v\nwant %s…", err, c.wants)
			}
		}
	}
}

// Once its scratch memory is there, a fused operator takes the same few heap objects for a batch of any size.
func TestAllocationsDoNotGrowWithRows(t *testing.T) {
	if !imagekernel.Exact {
		return // image/jpeg allocates for every image.
	}
	_, files := readable(t)
	for _, steps := range [][]step{{decode, rrc, flip, chw}, {decode, rrc, flip, shaken, auto, mixedUp, blur, tensor, norm, erased}} {
		few, many := countObjects(t, files[0], 1, steps), countObjects(t, files[0], 101, steps)
		if many-few >= 10 {
			t.Errorf("%d steps: %v objects for 1 image, %v for 101", len(steps), few, many)
		}
	}
}

// countObjects is how many heap objects a batch of the same file takes.
func countObjects(t *testing.T, file []byte, rows int, steps []step) float64 {
	t.Helper()
	ops := Fuse(chain(t, steps...))
	b := encoded(slices.Repeat([][]byte{file}, rows)...)
	env := &Env{}
	emit := func(*Batch) error { return nil }
	return testing.AllocsPerRun(20, func() {
		if err := ops[0].Apply(t.Context(), env, b, emit); err != nil {
			t.Fatal(err)
		}
	})
}
