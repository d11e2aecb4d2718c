package imagekernel

// Planes is a decoded image as C planes (1 or 3) of H rows of W bytes, without gaps.
type Planes struct {
	Pix     []byte
	W, H, C int
}

// Plane is plane c.
func (p Planes) Plane(c int) []byte {
	n := p.W * p.H
	return p.Pix[c*n : (c+1)*n : (c+1)*n]
}

// Row is row y of plane c.
func (p Planes) Row(c, y int) []byte {
	at := (c*p.H + y) * p.W
	return p.Pix[at : at+p.W : at+p.W]
}

// BlendFlat brings each byte v to base + factor×(v-base): Pillow's blend with an image of one colour.
func (k *Kernel) BlendFlat(p Planes, base uint8, factor float32) {
	k.engine.blendFlat(p.Pix, base, factor)
}

// Blend brings p to from + factor×(p-from), byte by byte, as Pillow's blend does.
func (k *Kernel) Blend(p, from Planes, factor float32) { k.engine.blend(p.Pix, from.Pix, factor) }

// Saturate blends p with its own luma: ImageEnhance.Color. Images of one plane have no colour and stay.
func (k *Kernel) Saturate(p Planes, factor float32) {
	if p.C == 3 {
		k.engine.saturate(p.Pix, factor)
	}
}

// Hue turns the hue of p by shift of 256 parts of a turn, by way of Pillow's 8-bit HSV. Images of one plane stay.
func (k *Kernel) Hue(p Planes, shift uint8) {
	if p.C == 3 {
		k.engine.hue(p.Pix, shift)
	}
}

// Luma makes all planes of p its luma, as Pillow's convert("L") computes it.
func (k *Kernel) Luma(p Planes) {
	if p.C == 3 {
		luma := p.Plane(0)
		k.engine.luma(luma, p.Pix)
		copy(p.Plane(1), luma)
		copy(p.Plane(2), luma)
	}
}

// LumaMean is the rounded mean of p's luma.
func (k *Kernel) LumaMean(p Planes) uint8 {
	n := uint64(p.W) * uint64(p.H) //nolint:gosec // Sizes are positive.
	var sum uint64
	if p.C == 3 {
		sum = k.engine.lumaSum(p.Pix)
	} else {
		for _, v := range p.Pix {
			sum += uint64(v)
		}
	}
	return uint8((2*sum + n) / (2 * n)) //nolint:gosec // A mean of bytes.
}

// Lookup replaces the bytes of plane c by their entries in table.
func (k *Kernel) Lookup(p Planes, c int, table *[256]uint8) { k.engine.lookup(p.Plane(c), table) }

// Histogram counts the bytes of plane c.
func (k *Kernel) Histogram(p Planes, c int, counts *[256]uint32) {
	clear(counts[:])
	k.engine.histogram(p.Plane(c), counts)
}

// Smooth writes p convolved with Pillow's ImageFilter.SMOOTH to out, which has its size. The border stays as it is.
func (k *Kernel) Smooth(out, p Planes) {
	for c := range p.C {
		k.engine.smooth(out.Plane(c), p.Plane(c), p.W, p.H)
	}
}

// Blur convolves p with two symmetric kernels, given from their centre on, into out, which has its size; edges are
// reflected, so a kernel must reach less far than the image. Sums are float32, rounded to nearest, ties to even.
func (k *Kernel) Blur(out, p Planes, kx, ky []float32) {
	k.row = grow(k.row, p.W+2*len(kx)+blurBlock)
	for c := range p.C {
		k.engine.blur(out.Plane(c), p.Plane(c), p.W, p.H, kx, ky, k.row)
	}
}

// blurBlock is how many outputs the horizontal pass makes at once; it reads that far beyond the row's end.
const blurBlock = 32

// Mix adds weight×byte to each sum, or starts the sums with it.
func (k *Kernel) Mix(sums []float32, p Planes, weight float32, first bool) {
	k.engine.mix(sums[:len(p.Pix)], p.Pix, weight, first)
}

// Mixed writes sums, cut to bytes, to p.
func (k *Kernel) Mixed(p Planes, sums []float32) { k.engine.mixed(p.Pix, sums[:len(p.Pix)]) }

// Sums is scratch memory for Mix, n long.
func (k *Kernel) Sums(n int) []float32 {
	k.sums = grow(k.sums, n)
	return k.sums
}
