package imagekernel

// loops is the pixel loops in Go: what the purego build runs, and what tests hold the C loops against. Each float32
// operation is rounded by itself, which the conversions make sure of.
type loops struct{}

// clip cuts v to a byte, towards zero.
func clip(v float32) byte { return byte(max(0, min(255, v))) }

func (loops) blendFlat(p []byte, base uint8, factor float32) {
	var table [256]byte
	for v := range table {
		table[v] = clip(float32(base) + float32(factor*float32(v-int(base))))
	}
	loops{}.lookup(p, &table)
}

func blendByte(p, from byte, factor float32) byte {
	return clip(float32(from) + float32(factor*float32(int(p)-int(from))))
}

func (loops) blend(p, from []byte, factor float32) {
	for i, f := range from[:len(p)] {
		p[i] = blendByte(p[i], f, factor)
	}
}

func split(p []byte) (r, g, b []byte) {
	n := len(p) / 3
	return p[:n], p[n : 2*n], p[2*n : 3*n]
}

func lumaOf(r, g, b byte) byte {
	return byte((uint32(r)*19595 + uint32(g)*38470 + uint32(b)*7471 + 0x8000) >> 16) //nolint:gosec // The weights sum to 65,536.
}

func (loops) saturate(p []byte, factor float32) {
	r, g, b := split(p)
	for i := range r {
		l := lumaOf(r[i], g[i], b[i])
		r[i], g[i], b[i] = blendByte(r[i], l, factor), blendByte(g[i], l, factor), blendByte(b[i], l, factor)
	}
}

func (loops) luma(out, p []byte) {
	r, g, b := split(p)
	for i := range r {
		out[i] = lumaOf(r[i], g[i], b[i])
	}
}

func (loops) lumaSum(p []byte) uint64 {
	r, g, b := split(p)
	var sum uint64
	for i := range r {
		sum += uint64(lumaOf(r[i], g[i], b[i]))
	}
	return sum
}

func (loops) hue(p []byte, shift uint8) {
	r, g, b := split(p)
	for i := range r {
		r[i], g[i], b[i] = turnHue(r[i], g[i], b[i], shift)
	}
}

// turnHue is hue_any of pixels_color.h for one pixel.
func turnHue(r, g, b, shift byte) (outR, outG, outB byte) {
	v, least := max(r, g, b), min(r, g, b)
	spread := int(v) - int(least)
	if spread == 0 {
		return r, g, b
	}
	h := hue8(r, g, b, v, least) + shift
	s := float32(byte(float32(float32(spread)/float32(v)) * 255))
	sector, rest := int(h)*6/255, int(h)*6%255
	if sector&1 == 0 {
		rest = 255 - rest
	}
	whole := float32(v)
	q := byte(whole - float32(whole*float32(float32(float32(rest)*s)*(1.0/65025))) + 0.5)
	low := byte(whole - float32(float32(whole*s)*(1.0/255)) + 0.5)
	switch sector % 6 {
	case 0:
		return v, q, low
	case 1:
		return q, v, low
	case 2:
		return low, v, q
	case 3:
		return low, q, v
	case 4:
		return q, low, v
	}
	return v, low, q
}

// hue8 is the hue of a pixel that is not grey, in 256 parts of a turn.
func hue8(r, g, b, most, least byte) byte {
	mid := int(r) + int(g) + int(b) - int(most) - int(least)
	x := float32(int(most)-mid) / float32(int(most)-int(least))
	var turn float32
	switch {
	case r == most && b == least:
		turn = 1 - x
	case r == most:
		turn = -1 + x
	case g == most && b == least:
		turn = 1 + x
	case g == most:
		turn = 3 - x
	case r == least:
		turn = 3 + x
	default:
		turn = 5 - x
	}
	turn /= 6
	if turn < 0 {
		turn = 1 + turn
	}
	return byte(float32(turn * 255))
}

func (loops) lookup(p []byte, table *[256]uint8) {
	for i, v := range p {
		p[i] = table[v]
	}
}

func (loops) histogram(p []byte, counts *[256]uint32) {
	for _, v := range p {
		counts[v]++
	}
}

func (loops) smooth(out, p []byte, w, h int) {
	copy(out, p)
	for y := 1; y < h-1; y++ {
		a, b, c := p[(y-1)*w:y*w], p[y*w:(y+1)*w], p[(y+1)*w:(y+2)*w]
		for x := 1; x < w-1; x++ {
			sum := 4 * int(b[x])
			for i := x - 1; i <= x+1; i++ {
				sum += int(a[i]) + int(b[i]) + int(c[i])
			}
			out[y*w+x] = byte((sum + 6) / 13) //nolint:gosec // A mean of bytes.
		}
	}
}

// reflect is the row or column that stands for i, beyond the edges of n by less than n.
func reflect(i, n int) int {
	if i < 0 {
		return -i
	}
	if i < n {
		return i
	}
	return 2*n - 2 - i
}

func (loops) blur(out, p []byte, w, h int, kx, ky, row []float32) {
	const whole = 1 << 23 // A float32 of this size has no fraction bits, so that adding it rounds to nearest even.
	middle := row[:w]
	for y := range h {
		for x := range w {
			sum := float32(ky[0] * float32(p[y*w+x]))
			for j := 1; j < len(ky); j++ {
				both := int(p[reflect(y-j, h)*w+x]) + int(p[reflect(y+j, h)*w+x])
				sum += float32(ky[j] * float32(both))
			}
			middle[x] = sum
		}
		for x := range w {
			sum := float32(kx[0] * middle[x])
			for j := 1; j < len(kx); j++ {
				sum += float32(kx[j] * float32(middle[reflect(x-j, w)]+middle[reflect(x+j, w)]))
			}
			out[y*w+x] = byte(min(int(sum+whole)-whole, 255)) //nolint:gosec // Sums of bytes by positive weights.
		}
	}
}

func (loops) mix(sums []float32, p []byte, weight float32, first bool) {
	for i, v := range p {
		x := float32(weight * float32(v))
		if !first {
			x += sums[i]
		}
		sums[i] = x
	}
}

func (loops) mixed(p []byte, sums []float32) {
	for i, v := range sums {
		p[i] = byte(min(v, 255))
	}
}
