package op

// augMix is torchvision's AugMix: chains of operations, mixed with the image by weights from Dirichlet distributions in
// float32 and cut to bytes. torchvision runs the operations of this one transform on tensors even for PIL images; here
// they are Pillow's, like those of every other operator, so that its bytes differ from torchvision's where its own two
// paths differ: by a level or two from interpolation and blending. Given Pillow's operations they are equal.
type augMix struct {
	place
	warp
	space                  []scale
	severity, width, depth int
	alpha                  float64
}

func buildAugMix(index int, a *args) (Operator, error) {
	field := a.field("field")
	p := &augMix{severity: a.whole("severity", 3, 1, 10), width: a.whole("mixture_width", 3, 1, maxChains)}
	p.depth = a.whole("chain_depth", -1, -1, 100)
	p.alpha = a.number("alpha", 1, 1e-3, 1e3)
	all := scales(nil, 0.3, 30, 0.9, scale{to: 1.0 / 3, side: 1}, scale{op: augPosterize, from: 4, to: 4})
	allOps := a.boolean("all_ops", true)
	var enhancing []scale
	for _, s := range all {
		switch s.op {
		case augBrightness, augColor, augContrast, augSharpness:
			enhancing = append(enhancing, s)
		default:
			p.space = append(p.space, s)
		}
	}
	if allOps {
		p.space = append(p.space, enhancing...)
	}
	p.filter = a.warpFilter("bilinear")
	p.fill = a.fill()
	if err := a.done(); err != nil {
		return nil, err
	}
	p.place = a.place(index)
	return newImageOp(field, p), nil
}

// maxChains bounds mixture_width.
const maxChains = 16

func (p *augMix) output(field string, in imageType) (imageType, error) {
	return in, in.needRaw(p.name, field)
}

func (p *augMix) apply(r *imageRun) error {
	image, err := r.planes()
	if err != nil {
		return err
	}
	var weights [2]float64
	var chains [maxChains]float64
	dirichlet(&r.draws, p.alpha, weights[:])
	dirichlet(&r.draws, p.alpha, chains[:p.width])
	if r.env.Drawn != nil {
		r.drawn(`{"keep":%v}`, float32(weights[0]))
	}
	sums := r.kernel.Sums(len(image.Pix))
	r.kernel.Mix(sums, image, float32(weights[0]), true)
	r.aside = append(r.aside[:0], image.Pix...)
	for _, chain := range chains[:p.width] {
		copy(image.Pix, r.aside)
		r.use(image)
		if err := p.chain(r, float32(float32(chain)*float32(weights[1]))); err != nil {
			return err
		}
		done, err := r.planes()
		if err != nil {
			return err
		}
		r.kernel.Mix(sums, done, float32(float32(chain)*float32(weights[1])), false)
		image = done
	}
	r.kernel.Mixed(image, sums)
	return nil
}

// chain runs one chain of operations on the present image.
func (p *augMix) chain(r *imageRun, weight float32) error {
	const bins = 10
	depth := p.depth
	if depth <= 0 {
		depth = 1 + int(r.draws.IntN(3))
	}
	if r.env.Drawn != nil {
		r.drawn(`{"weight":%v}`, weight)
	}
	for range depth {
		s := &p.space[r.draws.IntN(int64(len(p.space)))]
		magnitude := 0.0
		if !s.plain() {
			w, h := r.size()
			magnitude = s.magnitude(int(r.draws.IntN(int64(p.severity))), bins, w, h)
		}
		if err := r.step(s, magnitude, p.warp); err != nil {
			return err
		}
	}
	return nil
}
