package op

import (
	"encoding/binary"
	"math"

	"github.com/millrace/millrace/preprocess/op/imagekernel"
)

// pointwise runs normalize, to_tensor and random_erasing on images that are tensors already: other than uint8 H×W×C.
func (o *imageOp) pointwise(env *Env, b *Batch, column *Column, in imageType, out *Column) error {
	r := o.take()
	defer o.give(r)
	r.env = env
	target, _ := imageTypeOf(out.Field)
	r.target = target
	t := toneOf(o.parts)
	rows := column.numRows(0)
	pixels := int(in.h * in.w)
	for row := range rows {
		src, dst := column.TensorRow(row), out.TensorRow(row)
		for c := range int(in.channels) {
			for i := range pixels {
				from, to := in.element(c, i, pixels), target.element(c, i, pixels)
				convert(src, from, in.dtype, dst, to, target.dtype, c, t)
			}
		}
		if err := o.eraseRow(r, b, in, row, dst); err != nil {
			return err
		}
	}
	return nil
}

// eraseRow runs the parts for what they erase.
func (o *imageOp) eraseRow(r *imageRun, b *Batch, in imageType, row int, dst []byte) error {
	r.tone, r.erased, r.row, r.pointwise, r.float = r.tone[:0], r.erased[:0], row, true, in.dtype != DTypeUint8
	r.window = imagekernel.Rect{W: int(in.w), H: int(in.h)}
	for _, p := range o.parts {
		r.begin(p, b.Samples[row])
		if err := p.apply(r); err != nil {
			return sampleError(b, row, p.info().Name, err)
		}
	}
	r.erase(dst)
	return nil
}

// element is the place of channel c of pixel i among n.
func (t imageType) element(c, i, n int) int {
	if t.planar {
		return c*n + i
	}
	return i*int(t.channels) + c
}

// convert writes one element of src to dst. Types that don't change are copied.
func convert(src []byte, from int, in DType, dst []byte, to int, out DType, c int, t tone) {
	size := in.Size()
	if in == out && len(t) == 0 {
		copy(dst[to*size:(to+1)*size], src[from*size:])
		return
	}
	var x float32
	if in == DTypeUint8 {
		x = t.value(c, src[from])
	} else {
		x = math.Float32frombits(binary.LittleEndian.Uint32(src[4*from:]))
		for _, n := range t {
			x = n.value(c, x)
		}
	}
	bits := floatBits(out, x)
	if out.Size() == 2 {
		binary.LittleEndian.PutUint16(dst[2*to:], uint16(bits)) //nolint:gosec // floatBits keeps to 16 bits here.
		return
	}
	binary.LittleEndian.PutUint32(dst[4*to:], bits)
}
