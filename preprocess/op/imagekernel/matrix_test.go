package imagekernel

import (
	"bytes"
	"math"
	"strconv"
	"testing"

	"pgregory.net/rapid"
)

// round15 rounds as decimal conversion does, which is what Python's round is made of.
func TestRound15(t *testing.T) {
	check := func(t rapid.TB, x float64) {
		want, err := strconv.ParseFloat(strconv.FormatFloat(x, 'f', 15, 64), 64)
		if err != nil {
			t.Fatal(err)
		}
		if got := round15(x); got != want || math.Signbit(got) != math.Signbit(want) {
			t.Errorf("%v: got %v, want %v", x, got, want)
		}
	}
	for _, x := range []float64{0, 1, -1, 0.5, 1e-15, 5e-16, 4.9e-16, 1.5e-15, 6.123233995736766e-17, math.Sqrt2 / 2, 0.1234567890123455, math.Copysign(0, -1)} {
		check(t, x)
		check(t, -x)
	}
	rapid.Check(t, func(t *rapid.T) {
		check(t, rapid.Float64Range(-1.5, 1.5).Draw(t, "x"))
		check(t, math.Ldexp(rapid.Float64Range(-1, 1).Draw(t, "small"), -rapid.IntRange(0, 70).Draw(t, "exponent")))
	})
}

// A perspective takes each end corner back to its start, and the identity is the identity.
func TestPerspectiveMapsCorners(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, h := rapid.IntRange(8, 500).Draw(t, "w"), rapid.IntRange(8, 500).Draw(t, "h")
		start := [4][2]int{{0, 0}, {w - 1, 0}, {w - 1, h - 1}, {0, h - 1}}
		end := start
		for i := range end {
			for j, n := range []int{w, h} {
				move := rapid.IntRange(0, n/4).Draw(t, "move")
				if end[i][j] > 0 {
					move = -move
				}
				end[i][j] += move
			}
		}
		m := Warp{M: Perspective(start, end), Perspective: true}
		for i := range end {
			d := float64(m.M[6]*float64(end[i][0])) + float64(m.M[7]*float64(end[i][1])) + 1
			x := (m.M[0]*float64(end[i][0]) + m.M[1]*float64(end[i][1]) + m.M[2]) / d
			y := (m.M[3]*float64(end[i][0]) + m.M[4]*float64(end[i][1]) + m.M[5]) / d
			if math.Abs(x-float64(start[i][0])) > 0.01 || math.Abs(y-float64(start[i][1])) > 0.01 {
				t.Errorf("%v goes to (%v, %v), not %v", end[i], x, y, start[i])
			}
		}
	})
}

// A Gaussian kernel sums to one and falls from its centre.
func TestGaussianKernel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := 2*rapid.IntRange(0, 40).Draw(t, "half") + 1
		half := GaussianKernel(size, rapid.Float64Range(0.01, 20).Draw(t, "sigma"), nil)
		sum := -float64(half[0])
		for i, v := range half {
			sum += 2 * float64(v)
			if i > 0 && v > half[i-1] {
				t.Errorf("weight %d is above its neighbour", i)
			}
		}
		if math.Abs(sum-1) > 1e-5 {
			t.Errorf("sum %v", sum)
		}
	})
}

// Four quarter turns, one after another, are none; the last of each kind is what Quarter makes of 4.
func TestQuarterTurns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := anyPlanes(t, 1, 3)
		out := p
		for range 4 {
			next := Planes{Pix: make([]byte, len(p.Pix)), W: out.H, H: out.W, C: p.C}
			out.Quarter(next, 1)
			out = next
		}
		if string(out.Pix) != string(p.Pix) {
			t.Error("four quarter turns change the image")
		}
		half, twice := Planes{Pix: make([]byte, len(p.Pix)), W: p.W, H: p.H, C: p.C}, Planes{Pix: make([]byte, len(p.Pix)), W: p.W, H: p.H, C: p.C}
		p.Quarter(half, 2)
		half.Quarter(twice, 2)
		if string(twice.Pix) != string(p.Pix) {
			t.Error("two half turns change the image")
		}
	})
}

// No map, however wild, reads or writes outside of the images, and the C loops give the bytes of the Go loops.
func TestWildWarps(t *testing.T) {
	k := New(DefaultLimits())
	defer k.Close()
	rapid.Check(t, func(t *rapid.T) {
		in := anyPlanes(t, 1, 3)
		out := Planes{W: rapid.IntRange(1, 30).Draw(t, "out w"), H: rapid.IntRange(1, 30).Draw(t, "out h"), C: in.C}
		out.Pix = make([]byte, out.W*out.H*out.C)
		w := &Warp{Perspective: rapid.Bool().Draw(t, "perspective"), Filter: rapid.SampledFrom([]Filter{Nearest, Bilinear, Bicubic}).Draw(t, "filter")}
		for i := range w.M {
			w.M[i] = rapid.OneOf(rapid.Float64(), rapid.Float64Range(-3, 3), rapid.Just(0.0), rapid.Just(math.NaN()), rapid.Just(math.Inf(1))).Draw(t, "m")
		}
		k.Warp(out, in, w)
		if w.Filter == Nearest {
			return
		}
		want := Planes{Pix: make([]byte, len(out.Pix)), W: out.W, H: out.H, C: out.C}
		if w.smooth(want, in); !bytes.Equal(out.Pix, want.Pix) {
			t.Error("the loops in C and Go differ")
		}
	})
}
