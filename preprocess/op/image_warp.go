package op

import (
	"math"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/rng"
	"github.com/millrace/millrace/preprocess/op/imagekernel"
)

// warp is how an operator that moves pixels about reads and fills.
type warp struct {
	filter imagekernel.Filter
	fill   [3]uint8
}

// warp maps the image to one of w×h pixels.
func (r *imageRun) warp(w, h int, m [8]float64, perspective bool, how warp) error {
	if err := checkPixels(w, h); err != nil {
		return err
	}
	p, err := r.planes()
	if err != nil {
		return err
	}
	out := r.blank(w, h)
	r.warped = imagekernel.Warp{M: m, Perspective: perspective, Filter: how.filter, Fill: how.fill}
	r.kernel.Warp(out, p, &r.warped)
	r.use(out)
	return nil
}

func (r *imageRun) affine(m imagekernel.Affine, how warp) error {
	w, h := r.size()
	var eight [8]float64
	copy(eight[:], m[:])
	return r.warp(w, h, eight, false, how)
}

// rotate is Pillow's Image.rotate, about center if that is set.
func (r *imageRun) rotate(angle float64, expand bool, center []float64, how warp) error {
	w, h := r.size()
	angle = imagekernel.Degrees(angle)
	cx, cy := float64(w)/2, float64(h)/2
	if len(center) == 2 {
		cx, cy = center[0], center[1]
	} else if turns := int(angle / 90); angle == float64(90*turns) && (turns&1 == 0 || expand || w == h) {
		return r.quarter(turns)
	}
	m, outW, outH := imagekernel.Rotation(w, h, angle, cx, cy, expand)
	var eight [8]float64
	copy(eight[:], m[:])
	return r.warp(outW, outH, eight, false, how)
}

// quarter turns the image counterclockwise by quarters of a turn.
func (r *imageRun) quarter(turns int) error {
	p, err := r.planes()
	if err != nil || turns&3 == 0 {
		return err
	}
	w, h := p.W, p.H
	if turns&1 == 1 {
		w, h = h, w
	}
	out := r.blank(w, h)
	p.Quarter(out, turns)
	r.use(out)
	return nil
}

// randomRotation is torchvision's RandomRotation, with Pillow's bytes.
type randomRotation struct {
	place
	warp
	degrees []float64
	expand  bool
	center  []float64
}

func buildRandomRotation(index int, a *args) (Operator, error) {
	field := a.field("field")
	p := &randomRotation{degrees: a.angles("degrees", true, 2)}
	p.filter = a.warpFilter("nearest")
	p.expand = a.boolean("expand", false)
	p.center = a.pair("center", -maxSide, maxSide)
	p.fill = a.fill()
	if err := a.done(); err != nil {
		return nil, err
	}
	p.place = a.place(index)
	return newImageOp(field, p), nil
}

func (p *randomRotation) output(field string, in imageType) (imageType, error) {
	if p.expand {
		if err := in.needRaw(p.name, field); err != nil {
			return imageType{}, err
		}
		in.h, in.w = -1, -1
		return in, nil
	}
	return in, in.needRaw(p.name, field)
}

func (p *randomRotation) apply(r *imageRun) error {
	angle := r.draws.Uniform(p.degrees[0], p.degrees[1])
	if r.env.Drawn != nil {
		r.drawn(`{"angle":%v}`, angle)
	}
	return r.rotate(angle, p.expand, p.center, p.warp)
}

// randomAffine is torchvision's RandomAffine, with Pillow's bytes.
type randomAffine struct {
	place
	warp
	// degrees has two values; translate, scale two or none; shear two, four or none.
	degrees, translate, scale, shear, center []float64
}

func buildRandomAffine(index int, a *args) (Operator, error) {
	field := a.field("field")
	p := &randomAffine{degrees: a.angles("degrees", true, 2), translate: a.pair("translate", 0, 1)}
	p.scale = a.pair("scale", 1e-3, 1e3)
	if len(p.scale) == 2 && p.scale[0] > p.scale[1] {
		a.fail("scale", "[least, greatest]", p.scale)
	}
	p.shear = a.angles("shear", false, 2, 4)
	p.filter = a.warpFilter("nearest")
	p.fill = a.fill()
	p.center = a.pair("center", -maxSide, maxSide)
	if err := a.done(); err != nil {
		return nil, err
	}
	p.place = a.place(index)
	return newImageOp(field, p), nil
}

func (p *randomAffine) output(field string, in imageType) (imageType, error) {
	return in, in.needRaw(p.name, field)
}

// affineDraw is one draw of randomAffine.
type affineDraw struct{ angle, x, y, scale, shearX, shearY float64 }

func (p *randomAffine) draw(s *rng.Source, w, h int) affineDraw {
	d := affineDraw{scale: 1}
	d.angle = s.Uniform(p.degrees[0], p.degrees[1])
	if len(p.translate) == 2 {
		x, y := float64(p.translate[0]*float64(w)), float64(p.translate[1]*float64(h))
		d.x = math.RoundToEven(s.Uniform(-x, x))
		d.y = math.RoundToEven(s.Uniform(-y, y))
	}
	if len(p.scale) == 2 {
		d.scale = s.Uniform(p.scale[0], p.scale[1])
	}
	if len(p.shear) >= 2 {
		d.shearX = s.Uniform(p.shear[0], p.shear[1])
	}
	if len(p.shear) == 4 {
		d.shearY = s.Uniform(p.shear[2], p.shear[3])
	}
	return d
}

func (p *randomAffine) apply(r *imageRun) error {
	w, h := r.size()
	d := p.draw(&r.draws, w, h)
	if r.env.Drawn != nil {
		r.drawn(`{"angle":%v,"translate":[%v,%v],"scale":%v,"shear":[%v,%v]}`, d.angle, d.x, d.y, d.scale, d.shearX, d.shearY)
	}
	cx, cy := float64(w)*0.5, float64(h)*0.5
	if len(p.center) == 2 {
		cx, cy = p.center[0], p.center[1]
	}
	return r.affine(imagekernel.InverseAffine(cx, cy, d.angle, d.x, d.y, d.scale, d.shearX, d.shearY), p.warp)
}

// randomPerspective is torchvision's RandomPerspective, with Pillow's bytes.
type randomPerspective struct {
	place
	warp
	distortion, p float64
}

func buildRandomPerspective(index int, a *args) (Operator, error) {
	field := a.field("field")
	p := &randomPerspective{distortion: a.number("distortion_scale", 0.5, 0, 1), p: a.number("p", 0.5, 0, 1)}
	p.filter = a.warpFilter("bilinear")
	p.fill = a.fill()
	if err := a.done(); err != nil {
		return nil, err
	}
	p.place = a.place(index)
	return newImageOp(field, p), nil
}

func (p *randomPerspective) output(field string, in imageType) (imageType, error) {
	return in, in.needRaw(p.name, field)
}

// draw is where the corners of a w×h image go, clockwise from the top left.
func (p *randomPerspective) draw(s *rng.Source, w, h int) [4][2]int {
	dx, dy := int64(float64(p.distortion*float64(w/2))), int64(float64(p.distortion*float64(h/2)))
	left := func() int { return int(s.IntN(dx + 1)) }
	top := func() int { return int(s.IntN(dy + 1)) }
	right := func() int { return w - 1 - int(dx) + left() }
	bottom := func() int { return h - 1 - int(dy) + top() }
	var c [4][2]int
	c[0][0], c[0][1] = left(), top()
	c[1][0], c[1][1] = right(), top()
	c[2][0], c[2][1] = right(), bottom()
	c[3][0], c[3][1] = left(), bottom()
	return c
}

func (p *randomPerspective) apply(r *imageRun) error {
	w, h := r.size()
	if !r.draws.Bool(p.p) {
		if r.env.Drawn != nil {
			r.drawn(`{"applied":false}`)
		}
		return nil
	}
	if w < 4 || h < 4 {
		return errkind.Errorf(errkind.BadData, "image of %dx%d pixels is too small for a perspective", w, h)
	}
	end := p.draw(&r.draws, w, h)
	if r.env.Drawn != nil {
		r.drawn(`{"applied":true,"endpoints":[[%d,%d],[%d,%d],[%d,%d],[%d,%d]]}`, end[0][0], end[0][1], end[1][0], end[1][1],
			end[2][0], end[2][1], end[3][0], end[3][1])
	}
	start := [4][2]int{{0, 0}, {w - 1, 0}, {w - 1, h - 1}, {0, h - 1}}
	return r.warp(w, h, imagekernel.Perspective(start, end), true, p.warp)
}
