package op

import (
	"math"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/rng"
	"github.com/millrace/millrace/preprocess/op/imagekernel"
)

// resize is torchvision's Resize.
type resize struct {
	place
	// h is 0 when size is the length of the shorter side, w.
	h, w, maxSize int
	filter        imagekernel.Filter
	order         imagekernel.Order
}

func buildResize(index int, a *args) (Operator, error) {
	field := a.field("field")
	size := a.integers("size", "an integer (the shorter side) or [height, width]", 1, maxSide, 1, 2)
	maxSize, _ := a.integer("max_size", 1, maxSide)
	p := &resize{maxSize: int(maxSize)}
	switch len(size) {
	case 0:
		if a.err == nil {
			a.err = errkind.Errorf(errkind.Invalid, "resize needs the parameter \"size\"")
		}
	case 1:
		p.w = int(size[0])
	case 2:
		p.h, p.w = int(size[0]), int(size[1])
	}
	if p.maxSize > 0 && p.h > 0 {
		a.reject("max_size only goes with a size of one number")
	}
	if p.maxSize > 0 && p.maxSize <= p.w {
		a.reject("max_size %d must be greater than size %d", p.maxSize, p.w)
	}
	p.filter, p.order = a.filter()
	if err := a.done(); err != nil {
		return nil, err
	}
	p.place = a.place(index)
	return newImageOp(field, p), nil
}

func (p *resize) output(field string, in imageType) (imageType, error) {
	if p.h > 0 || (in.raw() || in.deep()) && in.fixed() {
		w, h := p.target(int(in.w), int(in.h))
		return in.sized(p.name, field, h, w)
	}
	return in, in.needPixels(p.name, field)
}

func (p *resize) apply(r *imageRun) error {
	w, h := p.target(r.size())
	return r.resize(w, h, p.filter, p.order)
}

// target is the size that a w×h image is brought to: torchvision's _compute_resized_image_output_size.
func (p *resize) target(w, h int) (targetW, targetH int) {
	if p.h > 0 {
		return p.w, p.h
	}
	short, long := min(w, h), max(w, h)
	newShort, newLong := p.w, p.w*long/short
	if p.maxSize > 0 && newLong > p.maxSize {
		newShort, newLong = p.maxSize*newShort/newLong, p.maxSize
	}
	if w <= h {
		return newShort, newLong
	}
	return newLong, newShort
}

// randomResizedCrop is torchvision's RandomResizedCrop.
type randomResizedCrop struct {
	place
	h, w         int
	scale, ratio [2]float64
	filter       imagekernel.Filter
	order        imagekernel.Order
}

func buildRandomResizedCrop(index int, a *args) (Operator, error) {
	field := a.field("field")
	p := &randomResizedCrop{}
	p.h, p.w = a.cropSize()
	p.scale = a.interval("scale", 0.08, 1.0, 1e-6, 1)
	p.ratio = a.interval("ratio", 3.0/4.0, 4.0/3.0, 1e-3, 1e3)
	p.filter, p.order = a.filter()
	if err := a.done(); err != nil {
		return nil, err
	}
	p.place = a.place(index)
	return newImageOp(field, p), nil
}

// interval reads a pair of rising numbers.
func (a *args) interval(name string, lo, hi, least, most float64) [2]float64 {
	list := a.numbers(name, []float64{lo, hi}, []int{2}, least, most)
	if list[0] > list[1] {
		a.fail(name, "[least, greatest]", list)
	}
	return [2]float64{list[0], list[1]}
}

func (p *randomResizedCrop) output(field string, in imageType) (imageType, error) {
	return in.sized(p.name, field, p.h, p.w)
}

func (p *randomResizedCrop) apply(r *imageRun) error {
	w, h := r.size()
	rect := p.draw(&r.draws, w, h)
	r.drawnRect(rect)
	if err := r.cut(rect, [3]uint8{}); err != nil {
		return err
	}
	return r.resize(p.w, p.h, p.filter, p.order)
}

// draw is torchvision's get_params for a w×h image: ten tries, then a central crop of an allowed shape.
func (p *randomResizedCrop) draw(draws *rng.Source, w, h int) imagekernel.Rect {
	area := float64(w * h)
	for range 10 {
		target := float64(area * draws.Uniform(p.scale[0], p.scale[1]))
		ratio := draws.LogUniform(p.ratio[0], p.ratio[1])
		cw := int(math.RoundToEven(math.Sqrt(float64(target * ratio))))
		ch := int(math.RoundToEven(math.Sqrt(target / ratio)))
		if cw > 0 && cw <= w && ch > 0 && ch <= h {
			y := int(draws.IntN(int64(h - ch + 1)))
			x := int(draws.IntN(int64(w - cw + 1)))
			return imagekernel.Rect{X: x, Y: y, W: cw, H: ch}
		}
	}
	cw, ch := w, h
	switch ratio := float64(w) / float64(h); {
	case ratio < p.ratio[0]:
		ch = max(int(math.RoundToEven(float64(w)/p.ratio[0])), 1)
	case ratio > p.ratio[1]:
		cw = max(int(math.RoundToEven(float64(float64(h)*p.ratio[1]))), 1)
	}
	cw, ch = min(cw, w), min(ch, h)
	return imagekernel.Rect{X: (w - cw) / 2, Y: (h - ch) / 2, W: cw, H: ch}
}
