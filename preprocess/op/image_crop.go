package op

import (
	"math"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/op/imagekernel"
)

// maxSide is the greatest size a parameter may ask for; it is also the limit on decoded images.
const maxSide = 65_500

var filterNames = [...]string{"bilinear", "bicubic", "nearest", "box", "hamming", "lanczos"}

// filter reads the parameters interpolation, antialias and pillow.
func (a *args) filter() (imagekernel.Filter, imagekernel.Order) {
	name := a.text("interpolation", "bilinear", filterNames[:]...)
	filter := imagekernel.Bilinear
	for i, n := range filterNames {
		if n == name {
			filter = imagekernel.Filter(i)
		}
	}
	if !a.boolean("antialias", true) && filter != imagekernel.Nearest {
		a.reject("antialias=false is not offered: Pillow always antialiases; use interpolation \"nearest\" or leave it out")
	}
	order := imagekernel.OrderPillow13
	if a.text("pillow", ">=13", ">=13", "<13") == "<13" {
		order = imagekernel.OrderHorizontal
	}
	return filter, order
}

// cropSize reads the parameter size as height and width: one number is a square.
func (a *args) cropSize() (h, w int) {
	list := a.integers("size", "an integer or [height, width]", 1, maxSide, 1, 2)
	switch len(list) {
	case 0:
		if a.err == nil {
			a.err = errkind.Errorf(errkind.Invalid, "%s needs the parameter \"size\"", a.operator)
		}
		return 1, 1
	case 1:
		list = append(list, list[0])
		a.canon["size"] = []any{list[0], list[1]}
	}
	return int(list[0]), int(list[1])
}

// centerCrop is torchvision's CenterCrop: what is smaller is padded with black first.
type centerCrop struct {
	place
	h, w int
}

func buildCenterCrop(index int, a *args) (Operator, error) {
	field := a.field("field")
	h, w := a.cropSize()
	if err := a.done(); err != nil {
		return nil, err
	}
	return newImageOp(field, &centerCrop{place: a.place(index), h: h, w: w}), nil
}

func (p *centerCrop) output(field string, in imageType) (imageType, error) {
	return in.sized(p.name, field, p.h, p.w)
}

// sized is the type of an operator that makes every image h×w.
func (t imageType) sized(operator, field string, h, w int) (imageType, error) {
	if err := t.needPixels(operator, field); err != nil {
		return imageType{}, err
	}
	if err := checkPixels(w, h); err != nil {
		return imageType{}, errkind.Errorf(errkind.Invalid, "%s: field %q: %w", operator, field, err)
	}
	t.h, t.w = int64(h), int64(w)
	return t, nil
}

func (p *centerCrop) apply(r *imageRun) error {
	w, h := r.size()
	return r.cut(imagekernel.Rect{X: centerOffset(w, p.w), Y: centerOffset(h, p.h), W: p.w, H: p.h}, [3]uint8{})
}

// centerOffset is where a crop of size want begins in have pixels: torchvision rounds half to even when it cuts, and
// puts the odd pixel of padding last.
func centerOffset(have, want int) int {
	if want > have {
		return -((want - have) / 2)
	}
	return int(math.RoundToEven(float64(have-want) / 2))
}

// randomCrop is torchvision's RandomCrop with constant padding.
type randomCrop struct {
	place
	h, w int
	// pad is left, top, right, bottom.
	pad         [4]int
	padIfNeeded bool
	fill        [3]uint8
}

func buildRandomCrop(index int, a *args) (Operator, error) {
	field := a.field("field")
	p := &randomCrop{}
	p.h, p.w = a.cropSize()
	pad := a.integers("padding", "an integer, [left/right, top/bottom] or [left, top, right, bottom]", 0, maxSide, 1, 2, 4)
	for i := range p.pad {
		if len(pad) > 0 {
			p.pad[i] = int(pad[i%len(pad)])
		}
	}
	p.padIfNeeded = a.boolean("pad_if_needed", false)
	p.fill = a.fill()
	if err := a.done(); err != nil {
		return nil, err
	}
	p.place = a.place(index)
	return newImageOp(field, p), nil
}

// fill reads the parameter fill: one value, or one per channel.
func (a *args) fill() [3]uint8 {
	list := a.integers("fill", "an integer or one per channel", 0, 255, 1, 3)
	var fill [3]uint8
	if len(list) == 0 {
		a.canon["fill"] = []any{int64(0)}
		return fill
	}
	for i := range fill {
		fill[i] = uint8(list[i%len(list)]) //nolint:gosec // Checked to be at most 255.
	}
	return fill
}

func (p *randomCrop) output(field string, in imageType) (imageType, error) {
	if err := in.needOneFill(p.name, field, p.fill); err != nil {
		return imageType{}, err
	}
	return in.sized(p.name, field, p.h, p.w)
}

func (p *randomCrop) apply(r *imageRun) error {
	w, h := r.size()
	left, top := p.pad[0], p.pad[1]
	paddedW, paddedH := w+left+p.pad[2], h+top+p.pad[3]
	if p.padIfNeeded {
		// torchvision pads both sides by the whole difference.
		if d := p.w - paddedW; d > 0 {
			left, paddedW = left+d, paddedW+2*d
		}
		if d := p.h - paddedH; d > 0 {
			top, paddedH = top+d, paddedH+2*d
		}
	}
	if paddedW < p.w || paddedH < p.h {
		return errkind.Errorf(errkind.BadData, "image of %dx%d pixels is smaller than the crop of %dx%d; set pad_if_needed or resize it first", w, h, p.w, p.h)
	}
	y := int(r.draws.IntN(int64(paddedH - p.h + 1)))
	x := int(r.draws.IntN(int64(paddedW - p.w + 1)))
	r.drawnRect(imagekernel.Rect{X: x, Y: y, W: p.w, H: p.h})
	return r.cut(imagekernel.Rect{X: x - left, Y: y - top, W: p.w, H: p.h}, p.fill)
}

// randomFlip is torchvision's RandomHorizontalFlip, and RandomVerticalFlip.
type randomFlip struct {
	place
	p        float64
	vertical bool
}

func buildRandomFlip(index int, a *args) (Operator, error) {
	field := a.field("field")
	p := a.number("p", 0.5, 0, 1)
	if err := a.done(); err != nil {
		return nil, err
	}
	return newImageOp(field, &randomFlip{place: a.place(index), p: p, vertical: a.operator == "random_vertical_flip"}), nil
}

func (p *randomFlip) output(field string, in imageType) (imageType, error) {
	return in, in.needPixels(p.name, field)
}

func (p *randomFlip) apply(r *imageRun) error {
	if !r.chance(p.p) {
		return nil
	}
	if p.vertical {
		r.upend()
	} else {
		r.mirror()
	}
	return nil
}

// drawnRect tells Env.Drawn which part of the (padded) image was drawn, in the terms of torchvision's get_params.
func (r *imageRun) drawnRect(rect imagekernel.Rect) {
	if r.env.Drawn != nil {
		r.drawn(`{"i":%d,"j":%d,"h":%d,"w":%d}`, rect.Y, rect.X, rect.H, rect.W)
	}
}
