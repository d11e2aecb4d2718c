package sheet

import (
	"context"
	"encoding/binary"
	"fmt"
	"image"
	"image/color"
	"math"

	"github.com/apache/arrow-go/v18/arrow/float16"

	"github.com/millrace/millrace/preprocess/op"
)

// decoded is an encoded image as decode_image shows it; ok is false for what is none.
func decoded(ctx context.Context, data []byte) (p picture, ok bool) {
	decode, err := op.Build("decode_image", 0, map[string]any{"field": "image", "mode": "rgba"})
	if err != nil {
		return picture{}, false
	}
	in := &op.Batch{NumRows: 1, Samples: []uint64{0}, Keys: []string{""}, Columns: []op.Column{{
		Field: op.Field{Name: "image", Kind: op.KindBytes}, Bytes: [][]byte{data},
	}}}
	err = decode.Apply(ctx, &op.Env{}, in, func(b *op.Batch) error {
		m := b.Columns[0].Images[0]
		p = picture{image: &image.NRGBA{Pix: m.Pix, Stride: 4 * m.W, Rect: image.Rect(0, 0, m.W, m.H)}, note: fmt.Sprintf("%d×%d", m.W, m.H)}
		return nil
	})
	return p, err == nil
}

// tensorPicture is row i of a column as a picture; ok is false for what is no image.
func tensorPicture(c *op.Column, i int) (p picture, ok bool) {
	if c.Kind != op.KindTensor || len(c.Shape) != 3 || len(c.DimNames) != 3 {
		return picture{}, false
	}
	at := map[string]int{}
	stride, size := map[string]int{}, 1
	for d := 2; d >= 0; d-- {
		at[c.DimNames[d]], stride[c.DimNames[d]] = int(c.Shape[d]), size
		size *= int(c.Shape[d])
	}
	w, h, channels := at["W"], at["H"], at["C"]
	if w*h == 0 || channels != 1 && channels != 3 && channels != 4 {
		return picture{}, false
	}
	row := c.TensorRow(i)
	value := func(x, y, channel int) float64 {
		return element(row, c.DType, x*stride["W"]+y*stride["H"]+channel*stride["C"])
	}
	// Bytes are shown as they are; numbers are spread over what can be seen.
	low, span := 0.0, 255.0
	if c.DType != op.DTypeUint8 {
		low, span = reach(row, c.DType, size)
	}
	out := image.NewNRGBA(image.Rect(0, 0, w, h))
	for y := range h {
		for x := range w {
			var v [4]uint8
			for k := range channels {
				v[k] = uint8(max(0, min(255, 255*(value(x, y, k)-low)/span+0.5)))
			}
			switch channels {
			case 1:
				v = [4]uint8{v[0], v[0], v[0], 255}
			case 3:
				v[3] = 255
			}
			out.SetNRGBA(x, y, color.NRGBA{R: v[0], G: v[1], B: v[2], A: v[3]})
		}
	}
	note := fmt.Sprintf("%d×%d %s", w, h, c.DType)
	if c.DType != op.DTypeUint8 {
		note += fmt.Sprintf(" %.3g…%.3g", low, low+span)
	}
	return picture{field: c.Name, image: out, note: note}, true
}

// reach is the least element and how far the greatest is from it.
func reach(row []byte, d op.DType, n int) (low, span float64) {
	low, high := math.Inf(1), math.Inf(-1)
	for i := range n {
		v := element(row, d, i)
		low, high = math.Min(low, v), math.Max(high, v)
	}
	if !(high > low) {
		return low, 1
	}
	return low, high - low
}

// element is the i-th number of a tensor.
func element(row []byte, d op.DType, i int) float64 {
	at := row[i*d.Size():]
	switch d {
	case op.DTypeUint16:
		return float64(binary.LittleEndian.Uint16(at))
	case op.DTypeInt32:
		return float64(int32(binary.LittleEndian.Uint32(at))) //nolint:gosec // The bits of an int32.
	case op.DTypeInt64:
		return float64(int64(binary.LittleEndian.Uint64(at))) //nolint:gosec // The bits of an int64.
	case op.DTypeFloat16:
		return float64(float16.FromBits(binary.LittleEndian.Uint16(at)).Float32())
	case op.DTypeBfloat16:
		return float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(at)) << 16))
	case op.DTypeFloat32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(at)))
	case op.DTypeFloat64:
		return math.Float64frombits(binary.LittleEndian.Uint64(at))
	case op.DTypeNone, op.DTypeBool, op.DTypeUint8:
	}
	return float64(at[0])
}
