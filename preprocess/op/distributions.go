package op

import (
	"math"

	"github.com/millrace/millrace/internal/libm"
	"github.com/millrace/millrace/internal/rng"
)

// positive is uniform over (0, 1].
func positive(s *rng.Source) float64 { return 1 - s.Float64() }

// normal is from the standard normal distribution: Marsaglia's polar method.
func normal(s *rng.Source) float64 {
	for {
		x, y := s.Uniform(-1, 1), s.Uniform(-1, 1)
		if q := float64(x*x) + float64(y*y); q > 0 && q < 1 {
			return float64(x * math.Sqrt(float64(-2*libm.Log(q))/q))
		}
	}
}

// lnGamma is the logarithm, which keeps the ratios of tiny draws, of a draw from the gamma distribution of shape
// a > 0: Marsaglia and Tsang's method, and for a < 1 theirs of taking a+1 and multiplying by a power of a uniform number.
func lnGamma(s *rng.Source, a float64) float64 {
	if a == 1 {
		return libm.Log(max(-libm.Log(positive(s)), 0x1p-60))
	}
	boost := 0.0
	if a < 1 {
		boost = libm.Log(positive(s)) / a
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
		if libm.Log(positive(s)) < float64(0.5*float64(x*x))+float64(d*(1-v+libm.Log(v))) {
			return libm.Log(float64(d*v)) + boost
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
		weights[i] = libm.Exp(w - most)
		sum += weights[i]
	}
	for i := range weights {
		weights[i] /= sum
	}
}
