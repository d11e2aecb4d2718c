package op

import (
	"math"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/op/imagekernel"
)

// tone is what happens to a pixel's value: nothing, or v/255 and then a list of (x-mean)/std, all in float32.
type tone []*normalize

// toneOf is what parts do to a pixel's value.
func toneOf(parts []part) tone {
	var t tone
	for _, p := range parts {
		if n, ok := p.(*normalize); ok {
			t = append(t, n)
		}
	}
	return t
}

// value is channel c's byte v as a float32.
func (t tone) value(c int, v uint8) float32 {
	x := float32(v) / 255
	for _, n := range t {
		x = n.value(c, x)
	}
	return x
}

// element says how the kernel writes values of dtype d; the table is filled in when it needs one.
func (t tone) element(d DType, channels int, table *imagekernel.Table) imagekernel.Element {
	if d == DTypeUint8 {
		return imagekernel.Uint8
	}
	for c := range channels {
		for v := range 256 {
			table[c][v] = floatBits(d, t.value(c, uint8(v)))
		}
	}
	if d == DTypeFloat32 {
		return imagekernel.Table32
	}
	return imagekernel.Table16
}

// floatBits is x as a float32, bfloat16 or float16, rounded to nearest, ties to even.
func floatBits(d DType, x float32) uint32 {
	bits := math.Float32bits(x)
	switch d {
	case DTypeBfloat16:
		return (bits + 0x7FFF + bits>>16&1) >> 16
	case DTypeFloat16:
		return uint32(float16Bits(bits))
	default:
		return bits
	}
}

// float16Bits rounds the float32 of these bits to binary16.
func float16Bits(bits uint32) uint16 {
	sign := uint16(bits >> 16 & 0x8000)
	bits &= 0x7FFFFFFF
	const least, infinity = 0x38800000, 0x47800000 // 2^-14 and 2^16 as float32.
	switch {
	case bits > 0x7F800000:
		return sign | 0x7E00
	case bits >= infinity:
		return sign | 0x7C00
	case bits < least:
		// Subnormal: the sum with 0.5 rounds to a multiple of 2^-24, in the CPU's own mode, nearest even.
		half := math.Float32frombits(bits) + 0.5
		return sign | uint16(math.Float32bits(half)-math.Float32bits(0.5)) //nolint:gosec // At most 0x400.
	}
	return sign | uint16((bits-0x38000000+0xFFF+bits>>13&1)>>13)
}

// normalize is torchvision's Normalize; on uint8 pixels it is ToTensor and Normalize.
type normalize struct {
	place
	mean, std []float32
}

func buildNormalize(index int, a *args) (Operator, error) {
	field := a.field("field")
	p := &normalize{}
	p.mean = toFloat32(a.numbers("mean", nil, []int{1, 3}, -1e6, 1e6))
	p.std = toFloat32(a.numbers("std", nil, []int{1, 3}, 1e-12, 1e6))
	if err := a.done(); err != nil {
		return nil, err
	}
	p.place = a.place(index)
	return newImageOp(field, p), nil
}

func toFloat32(list []float64) []float32 {
	out := make([]float32, len(list))
	for i, f := range list {
		out[i] = float32(f)
	}
	return out
}

func (p *normalize) value(c int, x float32) float32 {
	return (x - p.mean[min(c, len(p.mean)-1)]) / p.std[min(c, len(p.std)-1)]
}

func (p *normalize) output(field string, in imageType) (imageType, error) {
	if in.encoded {
		return imageType{}, in.needRaw(p.name, field)
	}
	if err := in.needFixed(p.name, field); err != nil {
		return imageType{}, err
	}
	if in.dtype == DTypeUint16 {
		return imageType{}, errkind.Errorf(errkind.Invalid, "normalize: field %q is uint16 (mode i16), which has no scale to normalize by", field)
	}
	if in.dtype != DTypeUint8 && in.dtype != DTypeFloat32 {
		return imageType{}, errkind.Errorf(errkind.Invalid, "normalize: field %q is %s; put normalize before the conversion to %s", field, in.field(field), in.dtype)
	}
	for _, n := range []int{len(p.mean), len(p.std)} {
		if n > 1 && int64(n) != in.channels {
			return imageType{}, errkind.Errorf(errkind.Invalid, "normalize: mean and std have %d values, field %q has %d channels", n, field, in.channels)
		}
	}
	in.dtype = DTypeFloat32
	return in, nil
}

// apply only notes itself: values are changed as they are written (toneOf).
func (p *normalize) apply(r *imageRun) error {
	r.tone, r.float = append(r.tone, p), true
	return nil
}

// toTensor brings images to a layout and element type: torchvision's ToTensor, and PILToTensor with dtype uint8.
type toTensor struct {
	place
	planar bool
	dtype  DType
	// keepLayout is torchvision's ConvertImageDtype: planar means nothing.
	keepLayout bool
}

func buildToTensor(index int, a *args) (Operator, error) {
	field := a.field("field")
	layout := a.text("layout", "CHW", "CHW", "HWC")
	dtype := a.text("dtype", "float32", "uint8", "uint16", "float32", "bfloat16", "float16")
	if err := a.done(); err != nil {
		return nil, err
	}
	d, err := ParseDType(dtype)
	if err != nil {
		return nil, err
	}
	return newImageOp(field, &toTensor{place: a.place(index), planar: layout == "CHW", dtype: d}), nil
}

// buildConvertImageDtype makes torchvision's ConvertImageDtype, for the types that it can reach without loss of range.
func buildConvertImageDtype(index int, a *args) (Operator, error) {
	field := a.field("field")
	dtype := a.text("dtype", "float32", "uint8", "uint16", "float32", "bfloat16", "float16")
	if err := a.done(); err != nil {
		return nil, err
	}
	d, err := ParseDType(dtype)
	if err != nil {
		return nil, err
	}
	return newImageOp(field, &toTensor{place: a.place(index), dtype: d, keepLayout: true}), nil
}

func (p *toTensor) output(field string, in imageType) (imageType, error) {
	if in.encoded {
		return imageType{}, in.needRaw(p.name, field)
	}
	if err := in.needFixed(p.name, field); err != nil {
		return imageType{}, err
	}
	if in.dtype != DTypeUint8 && in.dtype != DTypeFloat32 && in.dtype != p.dtype {
		return imageType{}, errkind.Errorf(errkind.Invalid, "%s: field %q is %s already and can't become %s", p.name, field, in.dtype, p.dtype)
	}
	if p.dtype == DTypeUint16 && in.dtype != DTypeUint16 {
		return imageType{}, errkind.Errorf(errkind.Invalid, "%s: field %q is %s and can't become uint16; decode it with mode i16", p.name, field, in.dtype)
	}
	if in.dtype == DTypeUint16 && p.dtype != DTypeUint16 {
		return imageType{}, errkind.Errorf(errkind.Invalid, "%s: field %q is uint16 (mode i16), which has no scale to become %s by; keep uint16", p.name, field, p.dtype)
	}
	if in.dtype == DTypeFloat32 && p.dtype == DTypeUint8 {
		return imageType{}, errkind.Errorf(errkind.Invalid, "%s: field %q is float32 and can't become uint8 again", p.name, field)
	}
	in.dtype = p.dtype
	if !p.keepLayout {
		in.planar = p.planar
	}
	return in, nil
}

// apply has no step to take: layout and type are those of the target.
func (p *toTensor) apply(r *imageRun) error {
	r.float = r.float || p.dtype != DTypeUint8
	return nil
}
