package imagekernel

import "math"

// precisionBits is the number of fraction bits of a weight: 8 bits of pixel, 2 for overshoot, as in Pillow.
const precisionBits = 32 - 8 - 2

// taps are the weights of one pass: output i is the sum over j of weight[i*stride+j] × source[first[2i]+j], j < first[2i+1].
type taps struct {
	// bounds holds the first source index and the number of taps of each output.
	bounds []int32
	// weights holds stride fixed-point weights per output; the unused are zero.
	weights []int32
	stride  int
	// identity says that output i is source i+bounds[0], unchanged.
	identity bool
	exact    []float64
}

// span is the range of source indices that any output reads.
func (t *taps) span() (from, to int32) {
	from, to = math.MaxInt32, 0
	for i := 0; i < len(t.bounds); i += 2 {
		if n := t.bounds[i+1]; n > 0 {
			from, to = min(from, t.bounds[i]), max(to, t.bounds[i]+n)
		}
	}
	if from >= to {
		return 0, 1 // Nothing is read (nearest, past the edge): any one source row or column will do.
	}
	return from, to
}

// rebase makes the first source index of all zero and returns the span that it was.
func (t *taps) rebase() (from, to int32) {
	from, to = t.span()
	for i := 0; i < len(t.bounds); i += 2 {
		t.bounds[i] -= from
	}
	return from, to
}

// fill computes the weights of outputs first … first+count-1 of a pass from in to out pixels.
func (t *taps) fill(filter Filter, in, out, first, count int) {
	t.bounds = grow(t.bounds, 2*count)
	t.identity = in == out
	if t.identity || filter == Nearest {
		t.single(in, out, first, count)
		return
	}
	t.fillBox(filter, in, 0, float64(in), out, first, count)
}

// fillBox is fill for the part of the source that begins at begin and is size wide, whatever their fractions. All
// arithmetic is float64 in Pillow's order, with the conversions that keep a compiler from fusing it.
func (t *taps) fillBox(filter Filter, in int, begin, size float64, out, first, count int) {
	t.bounds = grow(t.bounds, 2*count)
	t.identity = false
	scale := size / float64(out)
	filterScale := max(scale, 1)
	support := filter.support() * filterScale
	t.stride = (int(math.Ceil(support))*2 + 1 + 3) &^ 3
	if limit := (in + 3) &^ 3; t.stride > limit {
		t.stride = limit
	}
	t.weights = grow(t.weights, count*t.stride)
	t.exact = grow(t.exact, t.stride)
	ss := 1 / filterScale
	for i := range count {
		center := begin + float64((float64(first+i)+0.5)*scale)
		from := max(int(center-support+0.5), 0)
		n := min(int(center+support+0.5), in) - from
		t.bounds[2*i], t.bounds[2*i+1] = int32(from), int32(n) //nolint:gosec // Both are below the limit on dimensions.
		exact := t.exact[:n]
		filter.weigh(exact, from, center, ss)
		quantize(t.weights[i*t.stride:(i+1)*t.stride], exact)
	}
}

// single fills in taps of one pixel each, for no resize and for Nearest.
func (t *taps) single(in, out, first, count int) {
	t.stride = 4
	t.weights = grow(t.weights, count*t.stride)
	clear(t.weights)
	scale := float64(in) / float64(out)
	// Pillow adds scale once per output; the rounding of that sum is part of its result.
	at := float64(scale * 0.5)
	for range first {
		at += scale
	}
	for i := range count {
		from := int(at)
		if t.identity {
			from = first + i
		}
		n := 1
		if from >= in {
			from, n = 0, 0
		}
		t.bounds[2*i], t.bounds[2*i+1] = int32(from), int32(n)
		t.weights[i*t.stride] = int32(n) << precisionBits
		at += scale
	}
}

// quantize normalises exact to the sum 1 and rounds it to fixed point, half away from zero.
func quantize(weights []int32, exact []float64) {
	sum := 0.0
	for _, w := range exact {
		sum += w
	}
	for j, w := range exact {
		if sum != 0 {
			w /= sum
		}
		w = float64(w * (1 << precisionBits))
		if w < 0 {
			weights[j] = int32(w - 0.5)
		} else {
			weights[j] = int32(w + 0.5)
		}
	}
	clear(weights[len(exact):])
}

func (f Filter) support() float64 {
	switch f {
	case Box:
		return 0.5
	case Bilinear, Hamming:
		return 1
	case Bicubic:
		return 2
	case Lanczos:
		return 3
	case Nearest:
	}
	return 0
}

// weigh evaluates f at the centres of source pixels from, from+1, … around center.
func (f Filter) weigh(exact []float64, from int, center, ss float64) {
	for j := range exact {
		x := float64((float64(j+from) - center + 0.5) * ss)
		switch f {
		case Bilinear:
			exact[j] = max(1-math.Abs(x), 0)
		case Bicubic:
			exact[j] = bicubic(math.Abs(x))
		case Box:
			exact[j] = 0
			if x > -0.5 && x <= 0.5 {
				exact[j] = 1
			}
		case Hamming:
			exact[j] = hamming(math.Abs(x))
		case Lanczos:
			exact[j] = lanczos(x)
		case Nearest:
		}
	}
}

func bicubic(x float64) float64 {
	const a = -0.5
	switch {
	case x < 1:
		return float64(float64((float64((a+2)*x)-(a+3))*x)*x) + 1
	case x < 2:
		return float64((float64((float64((x-5)*x)+8)*x) - 4) * a)
	}
	return 0
}

func hamming(x float64) float64 {
	switch {
	case x == 0:
		return 1
	case x >= 1:
		return 0
	}
	// Pillow's constants are float32.
	const c0, c1 = float64(float32(0.54)), float64(float32(0.46))
	x = float64(x * math.Pi)
	sin, cos := sinCos(x)
	return float64(sin/x) * (c0 + float64(c1*cos))
}

func lanczos(x float64) float64 {
	if x < -3 || x >= 3 {
		return 0
	}
	return float64(sinc(x) * sinc(x/3))
}

func sinc(x float64) float64 {
	if x == 0 {
		return 1
	}
	x = float64(x * math.Pi)
	sin, _ := sinCos(x)
	return sin / x
}

// grow is s with length n, its contents undefined.
func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}
