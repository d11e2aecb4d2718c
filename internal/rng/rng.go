// Package rng gives random numbers that are a pure function of a key.
//
// Every draw an operator makes is named by (seed, epoch, sample, operator) and its place in that sequence, so any
// sample can be made again alone, on any machine, in any order. The generator is Philox4x64-10 (Salmon et al., SC 2011):
// the key and the counter are the names themselves, so no two of them share a sequence, and Python code
// can repeat every draw with numpy.random.Philox(key=[seed, op], counter=[0, sample, epoch, 0]).
//
// All results are equal bit for bit on every CPU: integers, and floating point with correctly rounded operations
// that are never fused.
package rng

import (
	"math/bits"

	"github.com/millrace/millrace/internal/libm"
)

// Key names one sequence of random numbers.
type Key struct {
	// Seed is the job's shuffle seed, Epoch the pass over the data, Sample the ordinal of the sample.
	Seed, Epoch, Sample uint64
	// Op is the index of the operator in the plan.
	Op uint32
}

// Source is k's sequence, from its beginning. It is a value: copying it copies its place.
func (k Key) Source() Source {
	return Source{
		key:     [2]uint64{k.Seed, uint64(k.Op)},
		counter: [4]uint64{0, k.Sample, k.Epoch, 0},
	}
}

// Source is a sequence of random numbers and a place in it. It is not safe for concurrent use. The zero value is the
// sequence of the zero Key.
type Source struct {
	key     [2]uint64
	counter [4]uint64
	block   [4]uint64
	left    uint8 // numbers of block not given out yet
}

// Uint64 is the next number, uniform over all 64-bit values.
func (s *Source) Uint64() uint64 {
	if s.left == 0 {
		// The counter moves before the block is made, as NumPy does it, so that both give the same numbers.
		s.counter[0]++
		s.block = philox(s.counter, s.key)
		s.left = 4
	}
	v := s.block[(4-s.left)&3]
	s.left--
	return v
}

// IntN is uniform over [0, n), without bias. It panics unless n > 0.
func (s *Source) IntN(n int64) int64 {
	if n <= 0 {
		panic("rng: IntN needs n > 0")
	}
	// Lemire's method: the high word of a 128-bit product, rejecting the few low words that would bias it.
	m := uint64(n)
	hi, lo := bits.Mul64(s.Uint64(), m)
	if lo < m {
		for reject := -m % m; lo < reject; {
			hi, lo = bits.Mul64(s.Uint64(), m)
		}
	}
	return int64(hi)
}

// Float64 is uniform over the multiples of 2^-53 in [0, 1).
func (s *Source) Float64() float64 {
	return float64(s.Uint64()>>11) * (1.0 / (1 << 53))
}

// Uniform is uniform between lo and hi; hi itself can come from rounding alone.
func (s *Source) Uniform(lo, hi float64) float64 {
	return lo + float64(s.Float64()*(hi-lo))
}

// LogUniform is between lo and hi, both positive, with a uniform logarithm. It never leaves [lo, hi].
func (s *Source) LogUniform(lo, hi float64) float64 {
	from, to := libm.Log(lo), libm.Log(hi)
	return min(max(libm.Exp(from+float64(s.Float64()*(to-from))), lo), hi)
}

// Bool is true with probability p: never for p <= 0, always for p >= 1.
func (s *Source) Bool(p float64) bool {
	return s.Float64() < p
}

// Perm is a uniformly chosen permutation of 0..n-1.
func (s *Source) Perm(n int) []int {
	p := make([]int, n)
	for i := range p {
		j := int(s.IntN(int64(i) + 1))
		p[i] = p[j]
		p[j] = i
	}
	return p
}
