package op

import (
	"math"
	"testing"
)

// float16Bits rounds to the nearest binary16, ties to even: exact values stay, the middle between two goes to the even
// one, and a hair more or less to the nearer.
func TestFloat16Rounding(t *testing.T) {
	value := func(h uint16) float64 {
		exponent, fraction := int(h>>10), float64(h&0x3FF)
		if exponent == 0 {
			return math.Ldexp(fraction, -24)
		}
		return math.Ldexp(1024+fraction, exponent-25)
	}
	for h := range uint16(0x7C00) {
		x, next := value(h), value(h+1) // After the greatest comes 2^16, from which on all is infinity.
		middle := float32((x + next) / 2)
		even := h + h&1
		checks := []struct {
			x    float32
			want uint16
		}{
			{float32(x), h},
			{middle, even},
			{math.Nextafter32(middle, 0), h},
			{math.Nextafter32(middle, math.MaxFloat32), h + 1},
		}
		for _, c := range checks {
			if got := float16Bits(math.Float32bits(c.x)); got != c.want {
				t.Fatalf("%v: got %#x, want %#x", c.x, got, c.want)
			}
			if got := float16Bits(math.Float32bits(-c.x)); got != c.want|0x8000 {
				t.Fatalf("%v: got %#x, want %#x", -c.x, got, c.want|0x8000)
			}
		}
	}
}

// Bfloat16 keeps the upper half of a float32, rounded to nearest even.
func TestBfloat16Rounding(t *testing.T) {
	for bits, want := range map[uint32]uint32{
		0x3F800000: 0x3F80, 0x3F808000: 0x3F80, 0x3F808001: 0x3F81, 0x3F818000: 0x3F82, 0xBF807FFF: 0xBF80, 0x7F7FFFFF: 0x7F80,
	} {
		if got := floatBits(DTypeBfloat16, math.Float32frombits(bits)); got != want {
			t.Errorf("%#x: got %#x, want %#x", bits, got, want)
		}
	}
}

// normalize is torchvision's ToTensor and Normalize, in float32 throughout.
func TestNormalizeValues(t *testing.T) {
	o, ok := chain(t, norm)[0].(*imageOp)
	if !ok {
		t.Fatal("normalize is no image operator")
	}
	mean, std := []float32{0.485, 0.456, 0.406}, []float32{0.229, 0.224, 0.225}
	for c := range 3 {
		for v := range 256 {
			x := float32(v) / 255
			x -= mean[c]
			x /= std[c]
			if got := toneOf(o.parts).value(c, uint8(v)); got != x {
				t.Fatalf("channel %d, value %d: got %v, want %v", c, v, got, x)
			}
		}
	}
}
