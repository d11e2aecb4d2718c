package op

import (
	"fmt"

	"github.com/millrace/millrace/internal/rng"
)

// colorJitter is torchvision's ColorJitter on PIL images: brightness, contrast and saturation by Pillow's ImageEnhance,
// hue by way of its 8-bit HSV, in an order drawn for each sample. Its bytes are Pillow's.
type colorJitter struct {
	place
	brightness, contrast, saturation, hue span
}

// jitter is one draw of colorJitter: factors, and which of the four comes when.
type jitter struct {
	order                                 [4]int
	brightness, contrast, saturation, hue float64
}

// maxFactor bounds how far colours are pulled from, or past, their plain counterpart.
const maxFactor = 100

func buildColorJitter(index int, a *args) (Operator, error) {
	field := a.field("field")
	p := &colorJitter{
		brightness: a.around("brightness", 1, 0, maxFactor), contrast: a.around("contrast", 1, 0, maxFactor),
		saturation: a.around("saturation", 1, 0, maxFactor), hue: a.around("hue", 0, -0.5, 0.5),
	}
	if err := a.done(); err != nil {
		return nil, err
	}
	p.place = a.place(index)
	return newImageOp(field, p), nil
}

func (p *colorJitter) output(field string, in imageType) (imageType, error) {
	return in, in.needRaw(p.name, field)
}

func (p *colorJitter) draw(s *rng.Source) jitter {
	j := jitter{brightness: 1, contrast: 1, saturation: 1}
	for i := range j.order {
		k := s.IntN(int64(i) + 1)
		j.order[i] = j.order[k]
		j.order[k] = i
	}
	for _, f := range []struct {
		from *span
		to   *float64
	}{{&p.brightness, &j.brightness}, {&p.contrast, &j.contrast}, {&p.saturation, &j.saturation}, {&p.hue, &j.hue}} {
		if f.from.on {
			*f.to = s.Uniform(f.from.lo, f.from.hi)
		}
	}
	return j
}

func (p *colorJitter) apply(r *imageRun) error {
	j := p.draw(&r.draws)
	if r.env.Drawn != nil {
		r.drawn(`{"order":[%d,%d,%d,%d],"brightness":%v,"contrast":%v,"saturation":%v,"hue":%v}`, j.order[0], j.order[1], j.order[2], j.order[3],
			j.brightness, j.contrast, j.saturation, j.hue)
	}
	for _, which := range j.order {
		var err error
		switch {
		case which == 0 && p.brightness.on:
			err = r.brightness(j.brightness)
		case which == 1 && p.contrast.on:
			err = r.contrast(j.contrast)
		case which == 2 && p.saturation.on:
			err = r.saturation(j.saturation)
		case which == 3 && p.hue.on:
			err = r.hue(j.hue)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// drawn tells Env.Drawn what the present part drew. Call it only if that is set, to spare the arguments' memory.
func (r *imageRun) drawn(format string, values ...any) {
	r.env.Drawn(r.row, r.part.info().Name, fmt.Sprintf(format, values...))
}

// brightness is Pillow's ImageEnhance.Brightness.
func (r *imageRun) brightness(factor float64) error {
	p, err := r.planes()
	if err == nil {
		r.kernel.BlendFlat(p, 0, float32(factor))
	}
	return err
}

// contrast is Pillow's ImageEnhance.Contrast.
func (r *imageRun) contrast(factor float64) error {
	p, err := r.planes()
	if err == nil {
		r.kernel.BlendFlat(p, r.kernel.LumaMean(p), float32(factor))
	}
	return err
}

// saturation is Pillow's ImageEnhance.Color.
func (r *imageRun) saturation(factor float64) error {
	p, err := r.planes()
	if err == nil {
		r.kernel.Saturate(p, float32(factor))
	}
	return err
}

// hue is torchvision's adjust_hue.
func (r *imageRun) hue(factor float64) error {
	p, err := r.planes()
	if err == nil {
		r.kernel.Hue(p, uint8(int32(factor*255))) //nolint:gosec // A negative turn wraps, as it should.
	}
	return err
}

// grayscale is torchvision's Grayscale and, with a probability and the channels kept, RandomGrayscale.
type grayscale struct {
	place
	// channels is 1, 3, or 0 for as many as there are.
	channels int
	p        float64
}

func buildGrayscale(index int, a *args) (Operator, error) {
	field := a.field("field")
	p := &grayscale{p: 1, channels: a.whole("num_output_channels", 1, 1, 3)}
	if p.channels == 2 {
		a.reject("num_output_channels is 1 or 3")
	}
	if err := a.done(); err != nil {
		return nil, err
	}
	p.place = a.place(index)
	return newImageOp(field, p), nil
}

func buildRandomGrayscale(index int, a *args) (Operator, error) {
	field := a.field("field")
	p := &grayscale{p: a.number("p", 0.1, 0, 1)}
	if err := a.done(); err != nil {
		return nil, err
	}
	p.place = a.place(index)
	return newImageOp(field, p), nil
}

func (p *grayscale) output(field string, in imageType) (imageType, error) {
	if err := in.needRaw(p.name, field); err != nil {
		return imageType{}, err
	}
	if p.channels != 0 {
		in.channels = int64(p.channels)
	}
	return in, nil
}

func (p *grayscale) apply(r *imageRun) error {
	if p.channels == 0 && !r.chance(p.p) {
		return nil
	}
	planes, err := r.planes()
	if err != nil {
		return err
	}
	r.kernel.Luma(planes)
	switch {
	case p.channels == 1 && planes.C == 3:
		planes.C = 1
		planes.Pix = planes.Plane(0)
		r.use(planes)
	case p.channels == 3 && planes.C == 1:
		r.channels = 3
		out := r.blank(planes.W, planes.H)
		for c := range 3 {
			copy(out.Plane(c), planes.Pix)
		}
		r.use(out)
	}
	return nil
}

// chance draws whether an operator of probability p is to do anything.
func (r *imageRun) chance(p float64) bool {
	yes := r.draws.Bool(p)
	if r.env.Drawn != nil {
		r.drawn(`{"applied":%v}`, yes)
	}
	return yes
}
