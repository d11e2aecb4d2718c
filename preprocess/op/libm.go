package op

import (
	"math"

	"github.com/millrace/millrace/internal/rng"
)

// The functions here are made of correctly rounded operations that are never fused, so that draws are equal bit for bit
// on every CPU; package math takes assembly on some. (Polynomials: FDLIBM's e_log and e_exp.)
const (
	ln2Hi = 6.93147180369123816490e-01
	ln2Lo = 1.90821492927058770002e-10
	log2E = 1.44269504088896338700e+00
)

// ln is the natural logarithm of a normal x > 0, to within an ulp.
func ln(x float64) float64 {
	const (
		l1 = 6.666666666666735130e-01
		l2 = 3.999999999940941908e-01
		l3 = 2.857142874366239149e-01
		l4 = 2.222219843214978396e-01
		l5 = 1.818357216161805012e-01
		l6 = 1.531383769920937332e-01
		l7 = 1.479819860511658591e-01
	)
	b := math.Float64bits(x)
	e := int(b>>52)&0x7ff - 1022
	frac := math.Float64frombits(b&^(0x7ff<<52) | 1022<<52)
	if frac < math.Sqrt2/2 {
		frac *= 2
		e--
	}
	f := frac - 1
	k := float64(e)
	s := f / (2 + f)
	s2 := float64(s * s)
	s4 := float64(s2 * s2)
	odd := float64(s2 * (l1 + float64(s4*(l3+float64(s4*(l5+float64(s4*l7)))))))
	even := float64(s4 * (l2 + float64(s4*(l4+float64(s4*l6)))))
	half := float64(float64(0.5*f) * f)
	return float64(k*ln2Hi) - ((half - (float64(s*(half+odd+even)) + float64(k*ln2Lo))) - f)
}

// exp is e to the power x for |x| < 700, to within two ulps; 0 below that.
func exp(x float64) float64 {
	const (
		p1 = 1.66666666666666657415e-01
		p2 = -2.77777777770155933842e-03
		p3 = 6.61375632143793436117e-05
		p4 = -1.65339022054652515390e-06
		p5 = 4.13813679705723846039e-08
	)
	if x < -700 {
		return 0
	}
	k := int(float64(log2E*x) + 0.5)
	if x < 0 {
		k = int(float64(log2E*x) - 0.5)
	}
	hi := x - float64(float64(k)*ln2Hi)
	lo := float64(float64(k) * ln2Lo)
	r := hi - lo
	t := float64(r * r)
	c := r - float64(t*(p1+float64(t*(p2+float64(t*(p3+float64(t*(p4+float64(t*p5)))))))))
	y := 1 - ((lo - float64(r*c)/(2-c)) - hi)
	return y * math.Float64frombits(uint64(k+1023)<<52) //nolint:gosec // k is above -1023.
}

// positive is uniform over (0, 1].
func positive(s *rng.Source) float64 { return 1 - s.Float64() }

// normal is from the standard normal distribution: Marsaglia's polar method.
func normal(s *rng.Source) float64 {
	for {
		x, y := s.Uniform(-1, 1), s.Uniform(-1, 1)
		if q := float64(x*x) + float64(y*y); q > 0 && q < 1 {
			return float64(x * math.Sqrt(float64(-2*ln(q))/q))
		}
	}
}

// lnGamma is the logarithm, which keeps the ratios of tiny draws, of a draw from the gamma distribution of shape a > 0: Marsaglia and Tsang's method, and for a < 1 theirs of
// taking a+1 and multiplying by a power of a uniform number.
func lnGamma(s *rng.Source, a float64) float64 {
	if a == 1 {
		return ln(max(-ln(positive(s)), 0x1p-60))
	}
	boost := 0.0
	if a < 1 {
		boost = ln(positive(s)) / a
		a++
	}
	d := a - 1.0/3
	c := 1 / math.Sqrt(float64(9*d))
	for {
		x := normal(s)
		v := 1 + float64(c*x)
		if v <= 0 {
			continue
		}
		v = float64(float64(v*v) * v)
		if ln(positive(s)) < float64(0.5*float64(x*x))+float64(d*(1-v+ln(v))) {
			return ln(float64(d*v)) + boost
		}
	}
}

// dirichlet fills weights from the symmetric Dirichlet distribution of parameter a: they sum to 1.
func dirichlet(s *rng.Source, a float64, weights []float64) {
	most := math.Inf(-1)
	for i := range weights {
		weights[i] = lnGamma(s, a)
		most = max(most, weights[i])
	}
	sum := 0.0
	for i, w := range weights {
		weights[i] = exp(w - most)
		sum += weights[i]
	}
	for i := range weights {
		weights[i] /= sum
	}
}
