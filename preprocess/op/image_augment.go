package op

import (
	"math"

	"github.com/millrace/millrace/internal/rng"
	"github.com/millrace/millrace/preprocess/op/imagekernel"
)

// augment is one operation of the automatic augmentations, under torchvision's name for it.
type augment string

const (
	augIdentity     augment = "Identity"
	augShearX       augment = "ShearX"
	augShearY       augment = "ShearY"
	augTranslateX   augment = "TranslateX"
	augTranslateY   augment = "TranslateY"
	augRotate       augment = "Rotate"
	augBrightness   augment = "Brightness"
	augColor        augment = "Color"
	augContrast     augment = "Contrast"
	augSharpness    augment = "Sharpness"
	augPosterize    augment = "Posterize"
	augSolarize     augment = "Solarize"
	augAutoContrast augment = "AutoContrast"
	augEqualize     augment = "Equalize"
	augInvert       augment = "Invert"
)

// scale is the magnitudes of an operation.
type scale struct {
	op augment
	// from and to are the first and last of the magnitudes, evenly spaced; of an operation without magnitude both are 0.
	from, to float64
	// side says that they are parts of the width (1) or height (2).
	side int
	// signed says that half of the draws go the other way.
	signed bool
}

// plain says whether the operation has no magnitude.
func (s *scale) plain() bool { return s.from == 0 && s.to == 0 }

// bits is the scale of posterize, whose magnitudes are rounded: from, and as many fewer in the end as to says.
func (s *scale) bits() bool { return s.op == augPosterize }

// scales is torchvision's augmentation space with ranges that differ between the policies.
func scales(first []scale, shear, rotate, enhance float64, translate, posterize scale) []scale {
	x, y := translate, translate
	x.op, y.op, x.signed, y.signed = augTranslateX, augTranslateY, true, true
	if translate.side != 0 {
		x.side, y.side = 1, 2
	}
	return append(first,
		scale{op: augShearX, to: shear, signed: true}, scale{op: augShearY, to: shear, signed: true}, x, y,
		scale{op: augRotate, to: rotate, signed: true},
		scale{op: augBrightness, to: enhance, signed: true}, scale{op: augColor, to: enhance, signed: true},
		scale{op: augContrast, to: enhance, signed: true}, scale{op: augSharpness, to: enhance, signed: true},
		posterize, scale{op: augSolarize, from: 255}, scale{op: augAutoContrast}, scale{op: augEqualize})
}

// magnitude is the one of place i among bins, in the float32 arithmetic of torch.linspace, for a w×h image.
func (s *scale) magnitude(i, bins, w, h int) float64 {
	if s.bits() {
		// 8 - (arange(bins) / ((bins - 1) / 4)).round()
		return s.from - math.RoundToEven(float64(float32(i)/float32(float64(bins-1)/s.to)))
	}
	from, to := float32(s.from), float32(s.to)
	switch s.side {
	case 1:
		to = float32(float64(s.to * float64(w)))
	case 2:
		to = float32(float64(s.to * float64(h)))
	}
	step := (to - from) / float32(bins-1)
	// torch fuses these; the product is exact in float64.
	if i < bins/2 {
		return float64(float32(float64(from) + float64(float64(step)*float64(i))))
	}
	return float64(float32(float64(to) - float64(float64(step)*float64(bins-1-i))))
}

// augment does one operation.
func (r *imageRun) augment(op augment, magnitude float64, how warp) error {
	w, h := r.size()
	switch op {
	case augShearX:
		return r.affine(imagekernel.Affine{1, magnitude, 0, 0, 1, 0}, how)
	case augShearY:
		return r.affine(imagekernel.Affine{1, 0, 0, magnitude, 1, 0}, how)
	case augTranslateX:
		return r.affine(imagekernel.InverseAffine(float64(w)*0.5, float64(h)*0.5, 0, math.Trunc(magnitude), 0, 1, 0, 0), how)
	case augTranslateY:
		return r.affine(imagekernel.InverseAffine(float64(w)*0.5, float64(h)*0.5, 0, 0, math.Trunc(magnitude), 1, 0, 0), how)
	case augRotate:
		return r.rotate(magnitude, false, nil, how)
	case augBrightness:
		return r.brightness(1 + magnitude)
	case augColor:
		return r.saturation(1 + magnitude)
	case augContrast:
		return r.contrast(1 + magnitude)
	case augSharpness:
		return r.sharpness(1 + magnitude)
	case augPosterize:
		return r.posterize(int(magnitude))
	case augSolarize:
		return r.solarize(magnitude)
	case augAutoContrast:
		return r.autocontrast()
	case augEqualize:
		return r.equalize()
	case augInvert:
		return r.invert()
	case augIdentity:
	}
	return nil
}

// step draws the sign of a magnitude, where the operation has one, and does the operation.
func (r *imageRun) step(s *scale, magnitude float64, how warp) error {
	if s.signed && r.draws.IntN(2) == 1 && magnitude != 0 {
		magnitude = -magnitude
	}
	if r.env.Drawn != nil {
		r.drawn(`{"op":%q,"magnitude":%v}`, s.op, magnitude)
	}
	return r.augment(s.op, magnitude, how)
}

// randAugment is torchvision's RandAugment, and TrivialAugmentWide, on PIL images. Its bytes are Pillow's.
type randAugment struct {
	place
	warp
	space []scale
	// bins is the number of magnitudes and magnitude the one that is taken; -1 draws one each time.
	ops, magnitude, bins int
}

// augmentSpace is that of RandAugment and AutoAugment.
func augmentSpace(first ...scale) []scale {
	return scales(first, 0.3, 30, 0.9, scale{to: 150.0 / 331, side: 1}, scale{op: augPosterize, from: 8, to: 4})
}

func buildRandAugment(index int, a *args) (Operator, error) {
	field := a.field("field")
	p := &randAugment{space: augmentSpace(scale{op: augIdentity}), ops: a.whole("num_ops", 2, 1, 100)}
	p.magnitude = a.whole("magnitude", 9, 0, 1000)
	p.bins = a.whole("num_magnitude_bins", 31, 2, 1001)
	if p.magnitude >= p.bins {
		a.reject("magnitude %d must be below num_magnitude_bins, %d", p.magnitude, p.bins)
	}
	p.filter = a.warpFilter("nearest")
	p.fill = a.fill()
	if err := a.done(); err != nil {
		return nil, err
	}
	p.place = a.place(index)
	return newImageOp(field, p), nil
}

func buildTrivialAugmentWide(index int, a *args) (Operator, error) {
	field := a.field("field")
	p := &randAugment{ops: 1, magnitude: -1, bins: a.whole("num_magnitude_bins", 31, 2, 1001)}
	p.space = scales([]scale{{op: augIdentity}}, 0.99, 135, 0.99, scale{to: 32}, scale{op: augPosterize, from: 8, to: 6})
	p.filter = a.warpFilter("nearest")
	p.fill = a.fill()
	if err := a.done(); err != nil {
		return nil, err
	}
	p.place = a.place(index)
	return newImageOp(field, p), nil
}

func (p *randAugment) output(field string, in imageType) (imageType, error) {
	return in, in.needRaw(p.name, field)
}

func (p *randAugment) apply(r *imageRun) error {
	for range p.ops {
		w, h := r.size()
		s := &p.space[r.draws.IntN(int64(len(p.space)))]
		magnitude := 0.0
		if !s.plain() {
			at := p.magnitude
			if at < 0 {
				at = int(r.draws.IntN(int64(p.bins)))
			}
			magnitude = s.magnitude(at, p.bins, w, h)
		}
		if err := r.step(s, magnitude, p.warp); err != nil {
			return err
		}
	}
	return nil
}

// policyStep is an operation of a policy: its probability, and its magnitude's place among ten.
type policyStep struct {
	op augment
	p  float64
	at int
}

// autoAugment is torchvision's AutoAugment on PIL images, with its three policies. Its bytes are Pillow's.
type autoAugment struct {
	place
	warp
	policies [][2]policyStep
	space    map[augment]scale
}

func buildAutoAugment(index int, a *args) (Operator, error) {
	field := a.field("field")
	p := &autoAugment{space: map[augment]scale{}}
	for _, s := range augmentSpace(scale{op: augInvert}) {
		p.space[s.op] = s
	}
	switch a.text("policy", "imagenet", "imagenet", "cifar10", "svhn") {
	case "cifar10":
		p.policies = cifar10Policies()
	case "svhn":
		p.policies = svhnPolicies()
	default:
		p.policies = imagenetPolicies()
	}
	p.filter = a.warpFilter("nearest")
	p.fill = a.fill()
	if err := a.done(); err != nil {
		return nil, err
	}
	p.place = a.place(index)
	return newImageOp(field, p), nil
}

func (p *autoAugment) output(field string, in imageType) (imageType, error) {
	return in, in.needRaw(p.name, field)
}

// draw is a policy, what decides on each of its steps, and their signs.
func (p *autoAugment) draw(s *rng.Source) (policy int, chance [2]float64, negative [2]bool) {
	policy = int(s.IntN(int64(len(p.policies))))
	chance = [2]float64{s.Float64(), s.Float64()}
	return policy, chance, [2]bool{s.IntN(2) == 0, s.IntN(2) == 0}
}

func (p *autoAugment) apply(r *imageRun) error {
	const bins = 10
	w, h := r.size()
	policy, chance, negative := p.draw(&r.draws)
	for i, step := range p.policies[policy] {
		if chance[i] > step.p {
			continue
		}
		s := p.space[step.op]
		magnitude := 0.0
		if !s.plain() {
			magnitude = s.magnitude(step.at, bins, w, h)
		}
		if s.signed && negative[i] && magnitude != 0 {
			magnitude = -magnitude
		}
		if r.env.Drawn != nil {
			r.drawn(`{"policy":%d,"op":%q,"magnitude":%v}`, policy, s.op, magnitude)
		}
		if err := r.augment(s.op, magnitude, p.warp); err != nil {
			return err
		}
	}
	return nil
}
