package order

import (
	"fmt"
	"math"
	"testing"

	"github.com/millrace/millrace/internal/rng"
)

func TestPermutationIsABijection(t *testing.T) {
	var p permutation
	for n := int64(1); n <= 2000; n++ {
		p.init(n, rng.Mix2(1, uint64(n)))
		seen := make([]bool, n)
		for i := range n {
			v := p.at(i)
			if v < 0 || v >= n || seen[v] {
				t.Fatalf("n=%d: the image %d of %d is out of range or there twice", n, v, i)
			}
			seen[v] = true
			if got := p.indexOf(v); got != i {
				t.Fatalf("n=%d: %d goes to %d, which comes from %d", n, i, v, got)
			}
		}
	}
}

func TestPermutationOfLargeDomains(t *testing.T) {
	draws := rng.Key{Seed: 9}.Source()
	for _, n := range []int64{1<<31 - 1, 1 << 32, 1e12, 1e12 + 39, maxSamples - 1, maxSamples} {
		var p permutation
		p.init(n, rng.Mix2(2, uint64(n)))
		for x := range 300 {
			i := draws.IntN(n)
			switch x {
			case 0:
				i = 0
			case 1:
				i = n - 1
			}
			v := p.at(i)
			if v < 0 || v >= n || p.indexOf(v) != i {
				t.Fatalf("n=%d: %d goes to %d, which comes from %d", n, i, v, p.indexOf(v))
			}
		}
	}
}

// sigma is how far the chi-square of counts against equal expectation is from what chance gives, in standard
// deviations (Wilson and Hilferty).
func sigma(counts []int) float64 {
	total := 0
	for _, c := range counts {
		total += c
	}
	expected, chi := float64(total)/float64(len(counts)), 0.0
	for _, c := range counts {
		chi += (float64(c) - expected) * (float64(c) - expected) / expected
	}
	df := float64(len(counts) - 1)
	return (math.Cbrt(chi/df) - (1 - 2/(9*df))) / math.Sqrt(2/(9*df))
}

// Over keys, each permutation of a few elements is as likely as any other.
func TestSmallPermutationsAreUniform(t *testing.T) {
	for n, permutations := range map[int64]int{2: 2, 3: 6, 4: 24, 5: 120} {
		counts := map[string]int{}
		var p permutation
		for key := range 400 * permutations {
			p.init(n, rng.Mix2(3, uint64(key)))
			counts[fmt.Sprint(p.forward[:n])]++
		}
		if len(counts) != permutations {
			t.Errorf("n=%d: %d permutations came up, want %d", n, len(counts), permutations)
			continue
		}
		var c []int
		for _, v := range counts {
			c = append(c, v)
		}
		if s := sigma(c); math.Abs(s) > 5 {
			t.Errorf("n=%d: permutations are %.1f sigma from uniform", n, s)
		}
	}
}

// Over keys, the images of one, two and three neighbours are uniform and independent, also in the smallest domains
// that go through the Feistel network, and where a cipher's weak spots are: ends and rows of its square.
func TestFeistelImagesAreUniformAndIndependent(t *testing.T) {
	for _, n := range []int64{tableDomain + 1, 300, 1000, 1 << 20, 1e9 + 7} {
		var p permutation
		p.init(n, 0)
		row := int64(p.b)
		for _, from := range []int64{0, n/2 - 1, n - 1 - row} {
			const parts = 6
			single, pair, triple := make([]int, 32), make([]int, 16*16), make([]int, parts*parts*parts)
			for key := range 6000 {
				p.init(n, rng.Mix3(4, uint64(n), uint64(key)))
				a, b, c := p.at(from), p.at(from+1), p.at(from+row)
				single[int(float64(a)/float64(n)*32)]++
				part := func(v int64, of float64) int { return int(float64(v) / float64(n) * of) }
				pair[part(a, 16)*16+part(b, 16)]++
				triple[(part(a, parts)*parts+part(b, parts))*parts+part(c, parts)]++
			}
			for what, counts := range map[string][]int{"one": single, "two": pair, "three": triple} {
				if s := sigma(counts); s > 5 {
					t.Errorf("n=%d from %d: images of %s are %.1f sigma from uniform", n, from, what, s)
				}
			}
		}
	}
}

// A permutation moves things: displacements of neighbours within one key show no pattern either.
func TestNeighboursPartWays(t *testing.T) {
	for _, n := range []int64{tableDomain + 1, 5000, 1e6} {
		counts := make([]int, 64)
		var p permutation
		for key := range 40 {
			p.init(n, rng.Mix2(5, uint64(key)))
			for i := range int64(250) {
				d := (p.at(i+1) - p.at(i) + n) % n
				counts[int(float64(d)/float64(n)*64)]++
			}
		}
		if s := sigma(counts); s > 5 {
			t.Errorf("n=%d: distances of neighbours are %.1f sigma from uniform", n, s)
		}
	}
}
