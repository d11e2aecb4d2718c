package rng

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// chiSquare is Pearson's statistic of counts against equal expectation.
func chiSquare(counts []int) float64 {
	total := 0
	for _, c := range counts {
		total += c
	}
	expected, sum := float64(total)/float64(len(counts)), 0.0
	for _, c := range counts {
		sum += (float64(c) - expected) * (float64(c) - expected) / expected
	}
	return sum
}

// checkUniform fails when counts are further from equal, or nearer to it, than one test in a million would see.
func checkUniform(t *testing.T, what string, counts []int) {
	t.Helper()
	df := float64(len(counts) - 1)
	// Wilson and Hilferty: the cube root of chi-square over df is nearly normal.
	z := (math.Cbrt(chiSquare(counts)/df) - (1 - 2/(9*df))) / math.Sqrt(2/(9*df))
	if math.Abs(z) > 5 {
		t.Errorf("%s: chi-square %.1f over %.0f degrees of freedom is %.1f sigma off", what, chiSquare(counts), df, z)
	}
}

func TestIntNIsUniform(t *testing.T) {
	for _, n := range []int64{2, 3, 6, 10, 1000} {
		s := Key{Seed: 1, Sample: uint64(n)}.Source()
		counts := make([]int, n)
		for range 200 * n {
			counts[s.IntN(n)]++
		}
		checkUniform(t, "IntN", counts)
	}
	// With n = 3/8 of the range of a word, results without rejection would favour a third of it two to one.
	const n = 3 << 61
	s := Key{Seed: 2}.Source()
	counts := make([]int, 3)
	for range 30000 {
		counts[s.IntN(n)>>61]++
	}
	checkUniform(t, "IntN(3<<61)", counts)
}

func TestIntNStaysBelowN(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Min(1).Draw(t, "n")
		s := Key{Seed: rapid.Uint64().Draw(t, "seed")}.Source()
		for range 8 {
			if v := s.IntN(n); v < 0 || v >= n {
				t.Fatalf("IntN(%d) = %d", n, v)
			}
		}
	})
}

func TestIntNRefusesEmptyRange(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("IntN(0) did not panic")
		}
	}()
	s := Key{}.Source()
	s.IntN(0)
}

func TestPermIsUniform(t *testing.T) {
	const n, rounds = 4, 24 * 500
	counts := map[[n]int]int{}
	for i := range rounds {
		s := Key{Seed: 3, Sample: uint64(i)}.Source()
		counts[[n]int(s.Perm(n))]++
	}
	if len(counts) != 24 {
		t.Fatalf("%d permutations of %d elements came up, want 24", len(counts), n)
	}
	var c []int
	for _, v := range counts {
		c = append(c, v)
	}
	checkUniform(t, "Perm(4)", c)
	s := Key{}.Source()
	if p := s.Perm(0); len(p) != 0 {
		t.Errorf("Perm(0) = %v", p)
	}
}

// Keys that differ in one bit of one field have sequences with nothing in common.
func TestEveryFieldOfTheKeyCounts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := Key{
			Seed: rapid.Uint64().Draw(t, "seed"), Epoch: rapid.Uint64().Draw(t, "epoch"),
			Sample: rapid.Uint64().Draw(t, "sample"), Op: rapid.Uint32().Draw(t, "op"),
		}
		bit := rapid.IntRange(0, 63).Draw(t, "bit")
		a, b, c, d := k, k, k, k
		a.Seed ^= 1 << bit
		b.Epoch ^= 1 << bit
		c.Sample ^= 1 << bit
		d.Op ^= 1 << (bit % 32)
		base := k.Source()
		var seen []uint64
		for range 6 {
			seen = append(seen, base.Uint64())
		}
		for _, other := range []Key{a, b, c, d} {
			s := other.Source()
			for range 6 {
				if v := s.Uint64(); slices.Contains(seen, v) {
					t.Fatalf("%+v and %+v share the number %#x", k, other, v)
				}
			}
		}
		again := k.Source()
		for i, v := range seen {
			if got := again.Uint64(); got != v {
				t.Fatalf("number %d of %+v is %#x, then %#x", i, k, v, got)
			}
		}
	})
}

func TestFloatsKeepTheirRanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := Key{Seed: rapid.Uint64().Draw(t, "seed")}.Source()
		lo := rapid.Float64Range(-1e9, 1e9).Draw(t, "lo")
		hi := lo + rapid.Float64Range(0, 1e9).Draw(t, "width")
		from := rapid.Float64Range(1e-6, 1e6).Draw(t, "from")
		to := from * rapid.Float64Range(1, 1e3).Draw(t, "ratio")
		if v := s.Float64(); v < 0 || v >= 1 {
			t.Fatalf("Float64() = %v", v)
		}
		if v := s.Uniform(lo, hi); v < lo || v > hi {
			t.Fatalf("Uniform(%v, %v) = %v", lo, hi, v)
		}
		if v := s.LogUniform(from, to); v < from || v > to {
			t.Fatalf("LogUniform(%v, %v) = %v", from, to, v)
		}
	})
}

func TestLogUniformHasUniformLogarithm(t *testing.T) {
	s := Key{Seed: 5}.Source()
	counts := make([]int, 8)
	for range 8000 {
		counts[int(math.Log2(s.LogUniform(1, 256)))&7]++
	}
	checkUniform(t, "LogUniform", counts)
}

func TestBoolKeepsItsProbability(t *testing.T) {
	s := Key{Seed: 6}.Source()
	counts := make([]int, 4)
	for range 4000 {
		switch {
		case s.Bool(0) || !s.Bool(1):
			t.Fatal("Bool(0) was true or Bool(1) false")
		case s.Bool(.25):
			counts[0]++
		default:
			counts[1+s.IntN(3)]++
		}
	}
	checkUniform(t, "Bool(1/4)", counts)
}

func TestDrawsDoNotAllocate(t *testing.T) {
	sum := uint64(0)
	if n := testing.AllocsPerRun(100, func() {
		s := Key{Seed: sum}.Source()
		sum += s.Uint64() + uint64(s.IntN(10)) + uint64(s.LogUniform(1, 2)) + Mix(sum, 1, 2)
	}); n != 0 {
		t.Errorf("%v allocations for a few draws, want none", n)
	}
}
