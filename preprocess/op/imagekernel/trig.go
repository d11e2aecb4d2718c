package imagekernel

// sinCos is the sine and cosine of |x| ≤ 10 to within an ulp. The filters use it instead of a library's, because
// libraries differ from each other, and from CPU to CPU, in the last bit. (Polynomials: FreeBSD msun's k_sin and k_cos.)
func sinCos(x float64) (sin, cos float64) {
	const (
		invPio2 = 6.36619772367581382433e-01
		pio2Hi  = 1.57079632673412561417e+00 // The first 33 bits of π/2.
		pio2Mid = 6.07710050630396597660e-11 // The second 33 bits.
		pio2Lo  = 2.02226624879595063154e-21 // π/2 less both.
	)
	quadrant := int(float64(x*invPio2) + 0.5)
	if x < 0 {
		quadrant = int(float64(x*invPio2) - 0.5)
	}
	n := float64(quadrant)
	// r - w is x less n·π/2; n has few bits, so that the first two products are exact.
	r := x - float64(n*pio2Hi)
	t := r
	w := float64(n * pio2Mid)
	r = t - w
	w = float64(n*pio2Lo) - ((t - r) - w)
	y := r - w
	tail := (r - y) - w

	s, c := kernelSin(y, tail), kernelCos(y, tail)
	switch quadrant & 3 {
	case 0:
		return s, c
	case 1:
		return c, -s
	case 2:
		return -s, -c
	}
	return -c, s
}

// kernelSin is the sine of x+tail, |x| ≤ π/4.
func kernelSin(x, tail float64) float64 {
	const (
		s1 = -1.66666666666666324348e-01
		s2 = 8.33333333332248946124e-03
		s3 = -1.98412698298579493134e-04
		s4 = 2.75573137070700676789e-06
		s5 = -2.50507602534068634195e-08
		s6 = 1.58969099521155010221e-10
	)
	z := float64(x * x)
	w := float64(z * z)
	r := s2 + float64(z*(s3+float64(z*s4))) + float64(float64(z*w)*(s5+float64(z*s6)))
	v := float64(z * x)
	return x - ((float64(z*(float64(0.5*tail)-float64(v*r))) - tail) - float64(v*s1))
}

// kernelCos is the cosine of x+tail, |x| ≤ π/4.
func kernelCos(x, tail float64) float64 {
	const (
		c1 = 4.16666666666666019037e-02
		c2 = -1.38888888888741095749e-03
		c3 = 2.48015872894767294178e-05
		c4 = -2.75573143513906633035e-07
		c5 = 2.08757232129817482790e-09
		c6 = -1.13596475577881948265e-11
	)
	z := float64(x * x)
	w := float64(z * z)
	r := float64(z*(c1+float64(z*(c2+float64(z*c3))))) + float64(float64(w*w)*(c4+float64(z*(c5+float64(z*c6)))))
	hz := float64(0.5 * z)
	w = 1 - hz
	return w + (((1 - w) - hz) + (float64(z*r) - float64(x*tail)))
}
