package libm_test

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/libm"
)

// near reports whether got is want to a few units in the last place (2^-52 each).
func near(got, want float64) bool {
	if got == want || math.IsNaN(got) && math.IsNaN(want) {
		return true
	}
	return math.Abs(got-want) <= 1e-15*math.Abs(want)
}

func TestLogAndExpAreAccurate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := math.Float64frombits(rapid.Uint64Range(math.Float64bits(0x1p-1022), math.Float64bits(math.MaxFloat64)).Draw(t, "bits of x"))
		if got, want := libm.Log(x), math.Log(x); !near(got, want) {
			t.Fatalf("Log(%v) = %v, want %v", x, got, want)
		}
		y := rapid.Float64Range(-708, 709).Draw(t, "y")
		if got, want := libm.Exp(y), math.Exp(y); !near(got, want) {
			t.Fatalf("Exp(%v) = %v, want %v", y, got, want)
		}
		near1 := rapid.Float64Range(0.5, 2).Draw(t, "near 1")
		if got, want := libm.Log(near1), math.Log(near1); !near(got, want) {
			t.Fatalf("Log(%v) = %v, want %v", near1, got, want)
		}
	})
}

func TestLogAndExpAtTheirEdges(t *testing.T) {
	inf := math.Inf(1)
	for _, x := range []float64{0, math.Copysign(0, -1), -1, -inf, inf, math.NaN(), 1, math.MaxFloat64, 0x1p-1022} {
		if got, want := libm.Log(x), math.Log(x); !near(got, want) {
			t.Errorf("Log(%v) = %v, want %v", x, got, want)
		}
	}
	// math.Log is wrong for subnormal numbers on amd64 (go1.26), so the oracle is the logarithm of the power of two.
	if got, want := libm.Log(0x1p-1074), -1074*math.Ln2; !near(got, want) {
		t.Errorf("Log(2^-1074) = %v, want %v", got, want)
	}
	for _, x := range []float64{0, -inf, inf, math.NaN(), 1, -1, 1e-300, 709.78, 709.79, -745.1, -745.2, 1e300, -1e300, -720, -740} {
		got, want := libm.Exp(x), math.Exp(x)
		if !near(got, want) && math.Abs(got-want) > 0x1p-1074 { // subnormal results are right to their last bit
			t.Errorf("Exp(%v) = %v, want %v", x, got, want)
		}
	}
}

// A range of one value, LogUniform(1, 1), must give that value.
func TestLogAndExpAreExactAtOne(t *testing.T) {
	if libm.Log(1) != 0 || libm.Exp(0) != 1 {
		t.Errorf("Log(1) = %v, Exp(0) = %v", libm.Log(1), libm.Exp(0))
	}
}
