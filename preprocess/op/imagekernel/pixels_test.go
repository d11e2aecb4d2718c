package imagekernel

import (
	"bytes"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// anyPlanes is an image of noise, of any odd size.
func anyPlanes(t *rapid.T, channels ...int) Planes {
	p := Planes{W: rapid.IntRange(1, 80).Draw(t, "w"), H: rapid.IntRange(1, 20).Draw(t, "h"), C: rapid.SampledFrom(channels).Draw(t, "c")}
	p.Pix = make([]byte, p.W*p.H*p.C)
	noise := rapid.Uint64().Draw(t, "noise")
	for i := range p.Pix {
		noise = noise*6364136223846793005 + 1442695040888963407
		p.Pix[i] = byte(noise >> 56)
	}
	return p
}

// The C loops on pixels, with vector instructions and without, give the bytes of the Go loops.
func TestPixelLoopsEqualPortable(t *testing.T) {
	vector, scalar := New(DefaultLimits()), New(DefaultLimits())
	scalar.Scalar(true)
	defer vector.Close()
	defer scalar.Close()
	rapid.Check(t, func(t *rapid.T) {
		p := anyPlanes(t, 3)
		from := anyPlanes(t, 3)
		from = Planes{Pix: slices.Repeat(from.Pix, len(p.Pix)/len(from.Pix)+1)[:len(p.Pix)], W: p.W, H: p.H, C: 3}
		factor := rapid.Float32Range(-2, 4).Draw(t, "factor")
		shift := rapid.Byte().Draw(t, "shift")
		reach := rapid.IntRange(1, min(p.W, p.H)).Draw(t, "reach")
		kernel := make([]float32, reach)
		for i := range kernel {
			kernel[i] = rapid.Float32Range(0, 0.5/float32(reach)).Draw(t, "weight")
		}
		sums := make([]float32, len(p.Pix))
		for i := range sums {
			sums[i] = float32(i%400) * 0.75
		}
		var table [256]uint8
		copy(table[:], slices.Repeat(p.Pix, 256))
		cases := map[string]struct {
			portable func(out []byte) any
			engine   func(k *Kernel, out Planes) any
		}{
			"blend flat": {
				func(out []byte) any { loops{}.blendFlat(out, shift, factor); return nil },
				func(k *Kernel, out Planes) any { k.BlendFlat(out, shift, factor); return nil },
			},
			"blend": {
				func(out []byte) any { loops{}.blend(out, from.Pix, factor); return nil },
				func(k *Kernel, out Planes) any { k.Blend(out, from, factor); return nil },
			},
			"saturate": {
				func(out []byte) any { loops{}.saturate(out, factor); return nil },
				func(k *Kernel, out Planes) any { k.Saturate(out, factor); return nil },
			},
			"hue": {
				func(out []byte) any { loops{}.hue(out, shift); return nil },
				func(k *Kernel, out Planes) any { k.Hue(out, shift); return nil },
			},
			"luma": {
				func(out []byte) any {
					loops{}.luma(out, out)
					copy(out[len(out)/3:], out[:len(out)/3])
					copy(out[2*len(out)/3:], out[:len(out)/3])
					return nil
				},
				func(k *Kernel, out Planes) any { k.Luma(out); return nil },
			},
			"luma mean": {
				func(out []byte) any {
					return uint8(math.Floor(float64(loops{}.lumaSum(out))/float64(len(out)/3) + 0.5))
				},
				func(k *Kernel, out Planes) any { return k.LumaMean(out) },
			},
			"lookup": {
				func(out []byte) any { loops{}.lookup(out[len(out)/3:2*len(out)/3], &table); return nil },
				func(k *Kernel, out Planes) any { k.Lookup(out, 1, &table); return nil },
			},
			"histogram": {
				func(out []byte) any { var c [256]uint32; loops{}.histogram(out[:len(out)/3], &c); return c },
				func(k *Kernel, out Planes) any { c := [256]uint32{7: 3}; k.Histogram(out, 0, &c); return c },
			},
			"smooth": {
				func(out []byte) any {
					for c := range 3 {
						loops{}.smooth(Planes{out, p.W, p.H, 3}.Plane(c), p.Plane(c), p.W, p.H)
					}
					return nil
				},
				func(k *Kernel, out Planes) any { k.Smooth(out, p); return nil },
			},
			"blur": {
				func(out []byte) any {
					row := make([]float32, p.W)
					for c := range 3 {
						loops{}.blur(Planes{out, p.W, p.H, 3}.Plane(c), p.Plane(c), p.W, p.H, kernel, kernel[:reach/2+1], row)
					}
					return nil
				},
				func(k *Kernel, out Planes) any { k.Blur(out, p, kernel, kernel[:reach/2+1]); return nil },
			},
			"mix": {
				func(out []byte) any {
					s := slices.Clone(sums)
					loops{}.mix(s, out, factor/4, false)
					first := make([]float32, len(s))
					loops{}.mix(first, out, 0.5, true)
					return slices.Concat(s, first)
				},
				func(k *Kernel, out Planes) any {
					s := slices.Clone(sums)
					k.Mix(s, out, factor/4, false)
					first := k.Sums(len(s))
					k.Mix(first, out, 0.5, true)
					return slices.Concat(s, first)
				},
			},
			"mixed": {
				func(out []byte) any { loops{}.mixed(out, sums); return nil },
				func(k *Kernel, out Planes) any { k.Mixed(out, sums); return nil },
			},
		}
		for name, c := range cases {
			want := bytes.Clone(p.Pix)
			wantValue := c.portable(want)
			for which, k := range map[string]*Kernel{"vector": vector, "scalar": scalar} {
				guarded := append(bytes.Clone(p.Pix), bytes.Repeat([]byte{0xA5}, 64)...)
				value := c.engine(k, Planes{guarded[:len(want):len(want)], p.W, p.H, 3})
				if diff := cmp.Diff(wantValue, value); diff != "" {
					t.Errorf("%s, %s (-want +got)\n%s", name, which, diff)
				}
				if !bytes.Equal(guarded[:len(want)], want) {
					t.Errorf("%s, %s: bytes differ", name, which)
				}
				if !bytes.Equal(guarded[len(want):], bytes.Repeat([]byte{0xA5}, 64)) {
					t.Errorf("%s, %s: wrote past the end", name, which)
				}
			}
		}
	})
}

// pillowHue is Pillow's way from RGB to HSV and back, in its own mixture of float and double.
func pillowHue(r, g, b, shift byte) [3]byte {
	most, least := max(r, g, b), min(r, g, b)
	if most == least {
		return [3]byte{r, g, b}
	}
	cr := float32(most - least)
	rc, gc, bc := float32(most-r)/cr, float32(most-g)/cr, float32(most-b)/cr
	var h float32
	switch most {
	case r:
		h = bc - gc
	case g:
		h = float32(2.0 + float64(rc) - float64(bc))
	default:
		h = float32(4.0 + float64(gc) - float64(rc))
	}
	h = float32(math.Mod(float64(h)/6.0+1.0, 1.0))
	hue := byte(float64(h)*255.0) + shift
	s := float32(float64(byte(float64(cr/float32(most))*255.0)) / 255.0)
	i := math.Floor(float64(hue) * 6.0 / 255.0)
	f := float32(float64(hue)*6.0/255.0 - i)
	v := float64(most)
	p := byte(math.Round(v * (1.0 - float64(s))))
	q := byte(math.Round(v * (1.0 - float64(float32(s*f)))))
	t := byte(math.Round(v * (1.0 - float64(float64(s)*(1.0-float64(f))))))
	return [...][3]byte{{most, t, p}, {q, most, p}, {p, most, t}, {p, q, most}, {t, p, most}, {most, p, q}}[int(i)%6]
}

// Images large enough for a factor to be made a table have the bytes of those that are not, whatever the factor: whole
// and half ones have exact results, which must not be taken for cut ones.
func TestBlendsOfLargeImagesEqualPortable(t *testing.T) {
	vector := New(DefaultLimits())
	defer vector.Close()
	const side = 256
	pairs := Planes{W: side, H: side, C: 3, Pix: make([]byte, 3*side*side)}
	rapid.Check(t, func(t *rapid.T) {
		factor := rapid.OneOf(rapid.Float32Range(0, 2), rapid.Float32Range(-2, 9), rapid.SampledFrom([]float32{0, 0.25, 0.5, 1, 1.5, 2, 8})).Draw(t, "factor")
		base, blue := rapid.Byte().Draw(t, "base"), rapid.Byte().Draw(t, "blue")
		for i := range side * side {
			pairs.Pix[i], pairs.Pix[side*side+i], pairs.Pix[2*side*side+i] = byte(i), byte(i/side), byte(i)*blue
		}
		flat, apart := slices.Clone(pairs.Pix), slices.Clone(pairs.Pix)
		loops{}.blendFlat(flat, base, factor)
		loops{}.saturate(apart, factor)
		got := Planes{W: side, H: side, C: 3, Pix: slices.Clone(pairs.Pix)}
		if vector.BlendFlat(got, base, factor); !bytes.Equal(got.Pix, flat) {
			t.Errorf("blend with %d by %v differs", base, factor)
		}
		copy(got.Pix, pairs.Pix)
		if vector.Saturate(got, factor); !bytes.Equal(got.Pix, apart) {
			t.Errorf("saturation by %v differs", factor)
		}
	})
}

// Turning the hue gives Pillow's bytes for every colour.
func TestHueOfAllColors(t *testing.T) {
	vector, scalar := New(DefaultLimits()), New(DefaultLimits())
	scalar.Scalar(true)
	defer vector.Close()
	defer scalar.Close()
	p := Planes{Pix: make([]byte, 3*65536), W: 256, H: 256, C: 3}
	want := make([]byte, len(p.Pix))
	for b := range 256 {
		shift := byte(b * 37)
		for i := range 65536 {
			c := pillowHue(byte(i>>8), byte(i), byte(b), shift)
			want[i], want[65536+i], want[131072+i] = c[0], c[1], c[2]
		}
		for _, k := range []*Kernel{vector, scalar} {
			for i := range 65536 {
				p.Pix[i], p.Pix[65536+i], p.Pix[131072+i] = byte(i>>8), byte(i), byte(b)
			}
			k.Hue(p, shift)
			if !bytes.Equal(p.Pix, want) {
				t.Fatalf("blue %d, turned by %d, differs", b, shift)
			}
		}
	}
}

// A kernel of one weight of 1 leaves an image as it is, one that sums to 1 leaves a flat one.
func TestBlurKeepsFlat(t *testing.T) {
	k := New(DefaultLimits())
	defer k.Close()
	flat := Planes{Pix: bytes.Repeat([]byte{200}, 50*40), W: 50, H: 40, C: 1}
	out := Planes{Pix: make([]byte, 50*40), W: 50, H: 40, C: 1}
	for _, kernel := range [][]float32{{1}, {0.5, 0.25}, {0.2, 0.1, 0.1, 0.1, 0.1}} {
		k.Blur(out, flat, kernel, kernel)
		if !bytes.Equal(out.Pix, flat.Pix) {
			t.Errorf("%v changes a flat image", kernel)
		}
	}
}
