package op

import (
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/op/imagekernel"
)

// maybe is an operator that, with probability p, does one thing without further draws: torchvision's RandomPosterize,
// RandomSolarize, RandomInvert, RandomEqualize, RandomAutocontrast and RandomAdjustSharpness, with the bytes of Pillow's
// ImageOps and ImageEnhance.Sharpness.
type maybe struct {
	place
	p  float64
	do func(r *imageRun) error
}

// buildMaybe makes the builder of a maybe; read reads the parameters besides p and gives what is to be done.
func buildMaybe(read func(a *args) func(r *imageRun) error) func(index int, a *args) (Operator, error) {
	return func(index int, a *args) (Operator, error) {
		field := a.field("field")
		do := read(a)
		p := a.number("p", 0.5, 0, 1)
		if err := a.done(); err != nil {
			return nil, err
		}
		return newImageOp(field, &maybe{place: a.place(index), p: p, do: do}), nil
	}
}

// required notes that a parameter must be given.
func (a *args) required(name string) {
	if v, ok := a.given[name]; (!ok || v == nil) && a.err == nil {
		a.err = errkind.Errorf(errkind.Invalid, "%s needs the parameter %q", a.operator, name)
	}
}

func readPosterize(a *args) func(r *imageRun) error {
	bits := a.whole("bits", 8, 1, 8)
	a.required("bits")
	return func(r *imageRun) error { return r.posterize(bits) }
}

func readSolarize(a *args) func(r *imageRun) error {
	threshold := a.number("threshold", 128, 0, 256)
	a.required("threshold")
	return func(r *imageRun) error { return r.solarize(threshold) }
}

func readSharpness(a *args) func(r *imageRun) error {
	factor := a.number("sharpness_factor", 1, 0, maxFactor)
	a.required("sharpness_factor")
	return func(r *imageRun) error { return r.sharpness(factor) }
}

func readInvert(*args) func(r *imageRun) error { return (*imageRun).invert }

func readEqualize(*args) func(r *imageRun) error { return (*imageRun).equalize }

func readAutocontrast(*args) func(r *imageRun) error { return (*imageRun).autocontrast }

func (p *maybe) output(field string, in imageType) (imageType, error) {
	return in, in.needRaw(p.name, field)
}

func (p *maybe) apply(r *imageRun) error {
	if !r.chance(p.p) {
		return nil
	}
	return p.do(r)
}

// lookup maps all bytes.
func (r *imageRun) lookup(f func(v int) int) error {
	p, err := r.planes()
	if err != nil {
		return err
	}
	for v := range r.bytes {
		r.bytes[v] = uint8(f(v)) //nolint:gosec // Callers give bytes.
	}
	for c := range p.C {
		r.kernel.Lookup(p, c, &r.bytes)
	}
	return nil
}

// posterize keeps the highest bits of each byte.
func (r *imageRun) posterize(bits int) error {
	return r.lookup(func(v int) int { return v &^ (1<<(8-bits) - 1) })
}

// solarize inverts bytes from threshold on.
func (r *imageRun) solarize(threshold float64) error {
	return r.lookup(func(v int) int {
		if float64(v) < threshold {
			return v
		}
		return 255 - v
	})
}

func (r *imageRun) invert() error { return r.lookup(func(v int) int { return 255 - v }) }

// perChannel maps the bytes of each channel by a table made from their counts.
func (r *imageRun) perChannel(fill func(table *[256]uint8, counts *[256]uint32) bool) error {
	p, err := r.planes()
	if err != nil {
		return err
	}
	for c := range p.C {
		r.kernel.Histogram(p, c, &r.counts)
		if fill(&r.bytes, &r.counts) {
			r.kernel.Lookup(p, c, &r.bytes)
		}
	}
	return nil
}

func (r *imageRun) equalize() error { return r.perChannel(equalizeTable) }

// equalizeTable is Pillow's ImageOps.equalize for one channel; false means that it stays as it is.
func equalizeTable(table *[256]uint8, counts *[256]uint32) bool {
	sum, last, kinds := 0, 0, 0
	for _, n := range counts {
		if n > 0 {
			sum, last, kinds = sum+int(n), int(n), kinds+1
		}
	}
	step := (sum - last) / 255
	if kinds <= 1 || step == 0 {
		return false
	}
	n := step / 2
	for v, count := range counts {
		table[v] = uint8(min(n/step, 255)) //nolint:gosec // Cut to a byte in the same line.
		n += int(count)
	}
	return true
}

func (r *imageRun) autocontrast() error { return r.perChannel(autocontrastTable) }

// autocontrastTable is Pillow's ImageOps.autocontrast for one channel; false means that it stays as it is.
func autocontrastTable(table *[256]uint8, counts *[256]uint32) bool {
	lo, hi := 0, 255
	for lo < 255 && counts[lo] == 0 {
		lo++
	}
	for hi > 0 && counts[hi] == 0 {
		hi--
	}
	if hi <= lo {
		return false
	}
	scale := 255.0 / float64(hi-lo)
	offset := float64(float64(-lo) * scale)
	for v := range table {
		table[v] = uint8(min(max(float64(float64(v)*scale)+offset, 0), 255))
	}
	return true
}

// sharpness is Pillow's ImageEnhance.Sharpness.
func (r *imageRun) sharpness(factor float64) error {
	p, err := r.planes()
	if err != nil {
		return err
	}
	r.spare = growBytes(r.spare, len(p.Pix))
	smooth := imagekernel.Planes{Pix: r.spare, W: p.W, H: p.H, C: p.C}
	r.kernel.Smooth(smooth, p)
	r.kernel.Blend(p, smooth, float32(factor))
	return nil
}

// growBytes is b with length n, its contents undefined.
func growBytes(b []byte, n int) []byte {
	if cap(b) < n {
		return make([]byte, n)
	}
	return b[:n]
}
