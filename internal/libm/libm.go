// Package libm has the functions of package math that random draws and kernels need, with the same bits on every CPU.
package libm

import "math"

// The polynomials below are those of FDLIBM (Sun Microsystems, freely usable), with an error under one unit in the
// last place. Package math is not used for them: it takes assembly on some CPUs and fused multiply-add on others, so
// that its last bit, and with it a crop rectangle, could differ between two workers. Every product that is added to
// something is converted with float64(…), which forbids the compiler to fuse it.
const (
	ln2Hi = 6.93147180369123816490e-01
	ln2Lo = 1.90821492927058770002e-10
	log2E = 1.44269504088896338700e+00
)

// Log is the natural logarithm of x > 0. Others give what math.Log gives: NaN below 0, -Inf at 0.
func Log(x float64) float64 {
	switch {
	case math.IsNaN(x) || math.IsInf(x, 1):
		return x
	case x < 0:
		return math.NaN()
	case x == 0:
		return math.Inf(-1)
	}
	frac, e := split(x)
	if frac < math.Sqrt2/2 {
		frac *= 2
		e--
	}
	f := frac - 1
	k := float64(e)

	const (
		l1 = 6.666666666666735130e-01
		l2 = 3.999999999940941908e-01
		l3 = 2.857142874366239149e-01
		l4 = 2.222219843214978396e-01
		l5 = 1.818357216161805012e-01
		l6 = 1.531383769920937332e-01
		l7 = 1.479819860511658591e-01
	)
	s := f / (2 + f)
	s2 := float64(s * s)
	s4 := float64(s2 * s2)
	odd := float64(s2 * (l1 + float64(s4*(l3+float64(s4*(l5+float64(s4*l7)))))))
	even := float64(s4 * (l2 + float64(s4*(l4+float64(s4*l6)))))
	r := odd + even
	half := float64(float64(0.5*f) * f)
	return float64(k*ln2Hi) - ((half - (float64(s*(half+r)) + float64(k*ln2Lo))) - f)
}

// split cuts a positive, finite x into frac in [0.5, 1) and e with x = frac * 2^e.
func split(x float64) (frac float64, e int) {
	const smallestNormal = 0x1p-1022
	if x < smallestNormal {
		x *= 1 << 52
		e = -52
	}
	b := math.Float64bits(x)
	e += int(b>>52)&0x7ff - 1022
	return math.Float64frombits(b&^(0x7ff<<52) | 1022<<52), e
}

// Exp is e^x.
func Exp(x float64) float64 {
	const (
		overflow  = 7.09782712893383973096e+02
		underflow = -7.45133219101941108420e+02
	)
	switch {
	case math.IsNaN(x):
		return x
	case x > overflow:
		return math.Inf(1)
	case x < underflow:
		return 0
	}
	// x = k*ln2 + r with |r| <= ln2/2; the two halves of ln2 keep r exact.
	k := int(float64(log2E*x) + 0.5)
	if x < 0 {
		k = int(float64(log2E*x) - 0.5)
	}
	hi := x - float64(float64(k)*ln2Hi)
	lo := float64(float64(k) * ln2Lo)
	r := hi - lo

	const (
		p1 = 1.66666666666666657415e-01
		p2 = -2.77777777770155933842e-03
		p3 = 6.61375632143793436117e-05
		p4 = -1.65339022054652515390e-06
		p5 = 4.13813679705723846039e-08
	)
	t := float64(r * r)
	c := r - float64(t*(p1+float64(t*(p2+float64(t*(p3+float64(t*(p4+float64(t*p5)))))))))
	y := 1 - ((lo - float64(r*c)/(2-c)) - hi)
	return scale(y, k)
}

// scale is y * 2^k for y near 1, rounded once also where the result is subnormal.
func scale(y float64, k int) float64 {
	switch {
	case k > 1023:
		return y * 0x1p1023 * power2(k-1023)
	case k < -1022:
		return y * power2(k+1022) * 0x1p-1022
	}
	return y * power2(k)
}

// power2 is 2^k for -1022 <= k <= 1023.
func power2(k int) float64 {
	return math.Float64frombits(uint64(k+1023) << 52) //nolint:gosec // k is above -1023.
}
