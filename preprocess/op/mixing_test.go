package op

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/rng"
)

// labeled is a batch of n tensors of noise with class numbers 0, 1, 2, ….
func labeled(n int, f Field) *Batch {
	b := &Batch{NumRows: n, Columns: []Column{{Field: f}, {Field: scalarField("label", KindInt64)}}}
	b.Columns[0].Tensor = make([]byte, n*f.RowBytes())
	source := rng.Key{Seed: 8}.Source()
	for i := range b.Columns[0].Tensor {
		b.Columns[0].Tensor[i] = byte(source.Uint64())
	}
	if f.DType == DTypeFloat32 {
		for i := 0; i < len(b.Columns[0].Tensor); i += 4 {
			binary.LittleEndian.PutUint32(b.Columns[0].Tensor[i:], math.Float32bits(float32(source.Uniform(-2, 2))))
		}
	}
	for i := range n {
		b.Samples = append(b.Samples, uint64(100+i))
		b.Columns[1].Ints = append(b.Columns[1].Ints, int64(i))
	}
	return b
}

func chwField(d DType) Field {
	return Field{Name: "image", Kind: KindTensor, DType: d, Shape: []int64{3, 10, 14}, DimNames: dimsCHW}
}

// mixup is keep×own + (1-keep)×other in float32, images and labels alike, with pairs and shares drawn by key.
func TestMixUp(t *testing.T) {
	const n = 9
	in := labeled(n, chwField(DTypeFloat32))
	ops := chain(t, step{"mixup", map[string]any{"num_classes": n, "alpha": 0.8}})
	out, err := runAll(t, &Env{Seed: 2}, ops, in)
	if err != nil {
		t.Fatal(err)
	}
	mixed := 0
	for i := range n {
		label := floatsOf(out.Columns[1].TensorRow(i))
		keep, other := label[i], i
		sum := float32(0)
		for c, v := range label {
			sum += v
			if c != i && v > 0 {
				other = c
			}
		}
		if math.Abs(float64(sum-1)) > 1e-6 {
			t.Errorf("label %d sums to %v", i, sum)
		}
		if other == i {
			continue
		}
		mixed++
		own, partner, got := floatsOf(in.Columns[0].TensorRow(i)), floatsOf(in.Columns[0].TensorRow(other)), floatsOf(out.Columns[0].TensorRow(i))
		for j := range got {
			if want := partner[j]*label[other] + own[j]*keep; math.Abs(float64(got[j]-want)) > 1e-6 {
				t.Fatalf("row %d, element %d: got %v, want %v", i, j, got[j], want)
			}
		}
	}
	if mixed < n/2 {
		t.Errorf("only %d rows are mixed", mixed)
	}
	again, err := runAll(t, &Env{Seed: 2}, ops, in)
	if err != nil || !bytes.Equal(again.Columns[0].Tensor, out.Columns[0].Tensor) {
		t.Errorf("run again: other bytes, %v", err)
	}
	other, err := runAll(t, &Env{Seed: 3}, ops, in)
	if err != nil || bytes.Equal(other.Columns[0].Tensor, out.Columns[0].Tensor) {
		t.Errorf("with another seed: the same bytes, %v", err)
	}
}

func floatsOf(p []byte) []float32 {
	out := make([]float32, len(p)/4)
	for i := range out {
		out[i] = readFloat(p[4*i:])
	}
	return out
}

// mixup of bytes rounds to nearest, and soft labels are mixed like any others.
func TestMixUpOfBytesAndSoftLabels(t *testing.T) {
	in := labeled(6, chwField(DTypeUint8))
	once, err := runAll(t, &Env{}, chain(t, step{"mixup", map[string]any{"num_classes": 6}}), in)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 6 {
		label := floatsOf(once.Columns[1].TensorRow(i))
		want := make([]float64, in.Columns[0].RowBytes())
		for c, v := range label {
			for j, b := range in.Columns[0].TensorRow(c) {
				want[j] += float64(b) * float64(v)
			}
		}
		for j, b := range once.Columns[0].TensorRow(i) {
			if math.Abs(float64(b)-want[j]) > 0.51 {
				t.Fatalf("row %d, byte %d: got %d, want about %v", i, j, b, want[j])
			}
		}
	}
	twice, err := runAll(t, &Env{Seed: 1}, chain(t, step{"mixup", nil}), once)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 6 {
		sum := float32(0)
		for _, v := range floatsOf(twice.Columns[1].TensorRow(i)) {
			sum += v
		}
		if math.Abs(float64(sum-1)) > 1e-5 {
			t.Errorf("label %d sums to %v", i, sum)
		}
	}
}

// cutmix takes a rectangle from the other row, in every layout and type; the label keeps the share of what is left.
func TestCutMix(t *testing.T) {
	for _, f := range []Field{
		chwField(DTypeUint8), chwField(DTypeFloat32), chwField(DTypeBfloat16),
		{Name: "image", Kind: KindTensor, DType: DTypeUint8, Shape: []int64{10, 14, 3}, DimNames: dimsHWC},
	} {
		const n = 8
		in := labeled(n, f)
		image, _ := imageTypeOf(f)
		out, err := runAll(t, &Env{Seed: 4}, chain(t, step{"cutmix", map[string]any{"num_classes": n}}), in)
		if err != nil {
			t.Fatal(err)
		}
		size, cut := f.DType.Size(), 0
		for i := range n {
			label := floatsOf(out.Columns[1].TensorRow(i))
			other := slices.IndexFunc(label, func(v float32) bool { return v > 0 && v != label[i] })
			if other < 0 {
				continue
			}
			own, partner, got := in.Columns[0].TensorRow(i), in.Columns[0].TensorRow(other), out.Columns[0].TensorRow(i)
			taken := 0
			for p := range 140 {
				isOwn, isOther := true, true
				for c := range 3 {
					at := image.element(c, p, 140) * size
					isOwn = isOwn && bytes.Equal(got[at:at+size], own[at:at+size])
					isOther = isOther && bytes.Equal(got[at:at+size], partner[at:at+size])
				}
				if !isOwn && !isOther {
					t.Fatalf("%v, row %d: pixel %d is of neither row", f, i, p)
				}
				if !isOwn {
					taken++
				}
			}
			if math.Abs(float64(label[other])-float64(taken)/140) > 1e-6 {
				t.Errorf("%v, row %d: %d pixels of 140 are taken, the label says %v", f, i, taken, label[other])
			}
			cut++
		}
		if cut < 2 {
			t.Errorf("%v: only %d rows are cut", f, cut)
		}
	}
}

// Fields that can't be mixed, and classes that aren't there, are refused with advice.
func TestMixingErrors(t *testing.T) {
	classes := map[string]any{"num_classes": 3}
	cases := []struct {
		step step
		in   Schema
		want string
	}{
		{step{"mixup", classes}, Schema{{Name: "image", Kind: KindBytes}}, `mixup: field "image" is bytes; it must be a tensor of one size, float32 or uint8 (put to_tensor before it)`},
		{step{"mixup", classes}, Schema{chwField(DTypeFloat16)}, `mixup: field "image" is float16 tensor [3,10,14] (CHW); it must be a tensor of one size, float32 or uint8 (put to_tensor before it)`},
		{step{"cutmix", classes}, Schema{{Name: "image", Kind: KindTensor, DType: DTypeFloat32, Shape: []int64{7}}}, `cutmix: field "image" holds no images; it is float32 tensor [7]`},
		{step{"cutmix", nil}, Schema{chwField(DTypeUint8), scalarField("label", KindInt64)}, `cutmix needs the parameter "num_classes": field "label" holds class numbers`},
		{step{"cutmix", nil}, Schema{chwField(DTypeUint8), {Name: "label", Kind: KindText}}, `cutmix: field "label" is text; labels are class numbers (int64) or probabilities (float32)`},
		{step{"cutmix", nil}, Schema{chwField(DTypeUint8), {Name: "labels", Kind: KindText}}, `cutmix: no field "label"; did you mean "labels"?`},
	}
	for _, c := range cases {
		if _, err := chain(t, c.step)[0].Schema(c.in); err == nil || err.Error() != c.want || errkind.Of(err) != errkind.Invalid {
			t.Errorf("got  %v\nwant %s", err, c.want)
		}
	}
	_, err := runAll(t, &Env{}, chain(t, step{"mixup", classes}), labeled(5, chwField(DTypeFloat32)))
	if errkind.Of(err) != errkind.BadData {
		t.Errorf("a class beyond num_classes: %v", err)
	}
}

// five_crop repeats the other fields, whatever their kind, and says so.
func TestFiveCropRepeatsRows(t *testing.T) {
	in := imageOf(3, 24, 20, 3)
	in.Keys = []string{"a", "b", "c"}
	in.Origin = func(i int) Origin { return Origin{Offset: int64(i)} }
	in.Columns = append(in.Columns,
		Column{Field: scalarField("n", KindInt64), Ints: []int64{1, 2, 3}},
		Column{Field: scalarField("x", KindFloat64), Floats: []float64{1, 2, 3}},
		Column{Field: Field{Name: "t", Kind: KindText}, Bytes: [][]byte{[]byte("1"), []byte("2"), []byte("3")}},
		Column{Field: Field{Name: "v", Kind: KindTensor, DType: DTypeUint8, Shape: []int64{2}}, Tensor: []byte{1, 1, 2, 2, 3, 3}},
		Column{Field: Field{Name: "other", Kind: KindImage, DType: DTypeUint8, Shape: []int64{-1, -1, 3}, DimNames: dimsHWC}, Images: in.Columns[0].Images})
	ops := chain(t, step{"five_crop", map[string]any{"size": 9}})
	if info := ops[0].Info(); info.KeepsRows || info.ChangesPixelsOnly {
		t.Errorf("info %+v", info)
	}
	out, err := runAll(t, &Env{}, ops, in)
	if err != nil {
		t.Fatal(err)
	}
	if out.NumRows != 15 {
		t.Fatalf("%d rows", out.NumRows)
	}
	for i := range 15 {
		from := i / 5
		if out.Samples[i] != in.Samples[from] || out.Keys[i] != in.Keys[from] || out.Origin(i).Offset != int64(from) ||
			out.Columns[1].Ints[i] != int64(from+1) || out.Columns[2].Floats[i] != float64(from+1) || string(out.Columns[3].Bytes[i]) != string(rune('1'+from)) ||
			out.Columns[4].Tensor[2*i] != byte(from+1) || !bytes.Equal(out.Columns[5].Images[i].Pix, in.Columns[5].Images[from].Pix) {
			t.Errorf("row %d does not belong to sample %d", i, from)
		}
	}
	_, err = runAll(t, &Env{}, chain(t, step{"ten_crop", map[string]any{"size": 21}}), in)
	want := "sample a: ten_crop: image of 24x20 pixels is smaller than the crop of 21x21"
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}
