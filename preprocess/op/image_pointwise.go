package op

import (
	"encoding/binary"
	"math"
)

// pointwise runs normalize and to_tensor on images that are tensors already: other than uint8 H×W×C.
func (o *imageOp) pointwise(column *Column, in imageType, out *Column) {
	target, _ := imageTypeOf(out.Field)
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
	}
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
