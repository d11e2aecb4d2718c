package op

import (
	"encoding/binary"
	"math"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/rng"
	"github.com/millrace/millrace/preprocess/op/imagekernel"
)

// randomErasing is torchvision's RandomErasing. Of numbers (after to_tensor or normalize) the value is in their terms,
// of bytes it is cut to a byte. The value "random" draws each element from a normal distribution.
type randomErasing struct {
	place
	p            float64
	scale, ratio [2]float64
	value        [3]float32
	random       bool
}

// erasure is a rectangle of an output to be blanked.
type erasure struct {
	rect   imagekernel.Rect
	value  [3]float32
	random bool
	noise  rng.Source
	// after is how many normalizations came before it: only the later ones change its values. bytes says that its values
	// are bytes, whatever the output's are.
	after int
	bytes bool
}

func buildRandomErasing(index int, a *args) (Operator, error) {
	field := a.field("field")
	p := &randomErasing{p: a.number("p", 0.5, 0, 1)}
	p.scale = a.interval("scale", 0.02, 0.33, 0, 1)
	p.ratio = a.interval("ratio", 0.3, 3.3, 1e-3, 1e3)
	if v, isText := a.given["value"].(string); isText {
		a.known = append(a.known, "value")
		a.canon["value"] = v
		if p.random = v == "random"; !p.random {
			a.fail("value", `a number, one per channel, or "random"`, v)
		}
	} else {
		list := a.numbers("value", []float64{0}, []int{1, 3}, -1e6, 1e6)
		for c := range p.value {
			p.value[c] = float32(list[c%len(list)])
		}
	}
	if err := a.done(); err != nil {
		return nil, err
	}
	p.place = a.place(index)
	return newImageOp(field, p), nil
}

func (p *randomErasing) output(field string, in imageType) (imageType, error) {
	if in.encoded || in.deep() {
		return imageType{}, in.needRaw(p.name, field)
	}
	if in.channels > 3 {
		return imageType{}, errkind.Errorf(errkind.Invalid, "random_erasing: field %q has %d channels; it works on images of 1 or 3", field, in.channels)
	}
	return in, nil
}

// draw is torchvision's get_params: ten tries for a rectangle smaller than the image, else none.
func (p *randomErasing) draw(s *rng.Source, w, h int) (imagekernel.Rect, bool) {
	area := float64(w * h)
	for range 10 {
		target := float64(area * s.Uniform(p.scale[0], p.scale[1]))
		ratio := s.LogUniform(p.ratio[0], p.ratio[1])
		eh := int(math.RoundToEven(math.Sqrt(float64(target * ratio))))
		ew := int(math.RoundToEven(math.Sqrt(target / ratio)))
		if eh < h && ew < w {
			y := int(s.IntN(int64(h - eh + 1)))
			x := int(s.IntN(int64(w - ew + 1)))
			return imagekernel.Rect{X: x, Y: y, W: ew, H: eh}, true
		}
	}
	return imagekernel.Rect{}, false
}

func (p *randomErasing) apply(r *imageRun) error {
	w, h := r.size()
	var rect imagekernel.Rect
	found := r.draws.Bool(p.p)
	if found {
		rect, found = p.draw(&r.draws, w, h)
	}
	if r.env.Drawn != nil {
		r.drawn(`{"applied":%v,"i":%d,"j":%d,"h":%d,"w":%d}`, found, rect.Y, rect.X, rect.H, rect.W)
	}
	if !found {
		return nil
	}
	e := erasure{rect: rect, value: p.value, random: p.random, noise: r.draws, after: len(r.tone), bytes: !r.float}
	if r.float || r.pointwise {
		r.erased = append(r.erased, e)
		return nil
	}
	planes, err := r.planes()
	if err != nil {
		return err
	}
	for c := range planes.C {
		for y := range rect.H {
			row := planes.Row(c, rect.Y+y)[rect.X : rect.X+rect.W]
			for x := range row {
				row[x] = uint8(e.next(c))
			}
		}
	}
	return nil
}

// next is the value of the next element, which is of channel c.
func (e *erasure) next(c int) float32 {
	v := e.value[c]
	if e.random {
		v = float32(normal(&e.noise))
	}
	if e.bytes {
		v = float32(uint8(min(max(v, 0), 255)))
	}
	return v
}

// erase blanks what is to be blanked of a row of the target type.
func (r *imageRun) erase(dst []byte) {
	t := r.target
	for i := range r.erased {
		e := &r.erased[i]
		for c := range int(t.channels) {
			for y := e.rect.Y; y < e.rect.Y+e.rect.H; y++ {
				for x := e.rect.X; x < e.rect.X+e.rect.W; x++ {
					v := e.next(c)
					if e.bytes && t.dtype != DTypeUint8 {
						v /= 255
					}
					for _, n := range r.tone[e.after:] {
						v = n.value(c, v)
					}
					t.put(dst, t.element(c, y*int(t.w)+x, int(t.h*t.w)), v)
				}
			}
		}
	}
}

// put writes v as element i of a row.
func (t imageType) put(dst []byte, i int, v float32) {
	if t.dtype == DTypeUint8 {
		dst[i] = uint8(v)
		return
	}
	bits := floatBits(t.dtype, v)
	if t.dtype.Size() == 2 {
		binary.LittleEndian.PutUint16(dst[2*i:], uint16(bits)) //nolint:gosec // floatBits keeps to 16 bits here.
		return
	}
	binary.LittleEndian.PutUint32(dst[4*i:], bits)
}
