package op

import (
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/op/imagekernel"
)

// pad is torchvision's Pad.
type pad struct {
	place
	// sides is left, top, right, bottom.
	sides [4]int
	fill  [3]uint8
	mode  string
}

func buildPad(index int, a *args) (Operator, error) {
	field := a.field("field")
	p := &pad{}
	sides := a.integers("padding", "an integer, [left/right, top/bottom] or [left, top, right, bottom]", 0, maxSide, 1, 2, 4)
	if len(sides) == 0 {
		a.required("padding")
		sides = []int64{0}
	}
	canon := make([]any, len(p.sides))
	for i := range p.sides {
		p.sides[i] = int(sides[i%len(sides)])
		canon[i] = int64(p.sides[i])
	}
	a.canon["padding"] = canon
	p.fill = a.fill()
	p.mode = a.text("padding_mode", "constant", "constant", "edge", "reflect", "symmetric")
	if err := a.done(); err != nil {
		return nil, err
	}
	p.place = a.place(index)
	return newImageOp(field, p), nil
}

func (p *pad) output(field string, in imageType) (imageType, error) {
	need := in.needPixels
	if p.mode != "constant" {
		need = in.needRaw
	}
	if err := need(p.name, field); err != nil {
		return imageType{}, err
	}
	if err := in.needOneFill(p.name, field, p.fill); err != nil || !in.fixed() {
		return in, err
	}
	return in.sized(p.name, field, int(in.h)+p.sides[1]+p.sides[3], int(in.w)+p.sides[0]+p.sides[2])
}

func (p *pad) apply(r *imageRun) error {
	w, h := r.size()
	rect := imagekernel.Rect{X: -p.sides[0], Y: -p.sides[1], W: w + p.sides[0] + p.sides[2], H: h + p.sides[1] + p.sides[3]}
	if p.mode == "constant" {
		return r.cut(rect, p.fill)
	}
	if err := checkPixels(rect.W, rect.H); err != nil {
		return err
	}
	if p.mode == "reflect" && (w == 1 && p.sides[0]+p.sides[2] > 0 || h == 1 && p.sides[1]+p.sides[3] > 0) {
		return errkind.Errorf(errkind.BadData, "image of %dx%d pixels can't be padded by reflection", w, h)
	}
	in, err := r.planes()
	if err != nil {
		return err
	}
	out := r.blank(rect.W, rect.H)
	for c := range out.C {
		for y := range out.H {
			src, dst := in.Row(c, p.beyond(y+rect.Y, h)), out.Row(c, y)
			for x := range p.sides[0] {
				dst[x] = src[p.beyond(x+rect.X, w)]
			}
			copy(dst[p.sides[0]:], src)
			for x := w; x < w+p.sides[2]; x++ {
				dst[p.sides[0]+x] = src[p.beyond(x, w)]
			}
		}
	}
	r.use(out)
	return nil
}

// beyond is the row or column that stands for i, which may lie outside of n. As in NumPy, a reflection goes on back and
// forth.
func (p *pad) beyond(i, n int) int {
	switch p.mode {
	case "reflect":
		period := 2 * (n - 1)
		if period == 0 {
			return 0
		}
		i = ((i % period) + period) % period
		if i >= n {
			i = period - i
		}
		return i
	case "symmetric":
		period := 2 * n
		i = ((i % period) + period) % period
		if i >= n {
			i = period - 1 - i
		}
		return i
	}
	return min(max(i, 0), n-1)
}
