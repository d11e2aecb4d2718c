package op

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/rng"
	"github.com/millrace/millrace/preprocess/op/imagekernel"
)

func newRRC(t rapid.TB, params map[string]any) *randomResizedCrop {
	params["field"] = "image"
	o, err := Build("random_resized_crop", 0, params)
	if err != nil {
		t.Fatal(err)
	}
	image, _ := o.(*imageOp)
	part, ok := image.parts[0].(*randomResizedCrop)
	if !ok {
		t.Fatal("random_resized_crop is no image operator")
	}
	return part
}

// A random resized crop lies in the image; a drawn one has an area and shape in the asked ranges, up to rounding.
func TestRandomResizedCropDraws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		least := rapid.Float64Range(0.01, 1).Draw(t, "least")
		narrow := rapid.Float64Range(0.1, 1.5).Draw(t, "narrow")
		p := newRRC(t, map[string]any{"size": 224, "scale": []any{least, 1.0}, "ratio": []any{narrow, narrow * 1.7}})
		w, h := rapid.IntRange(1, 2000).Draw(t, "w"), rapid.IntRange(1, 2000).Draw(t, "h")
		source := rng.Key{Seed: rapid.Uint64().Draw(t, "seed")}.Source()
		r := p.draw(&source, w, h)
		if r.X < 0 || r.Y < 0 || r.W < 1 || r.H < 1 || r.X+r.W > w || r.Y+r.H > h {
			t.Fatalf("%+v of %dx%d", r, w, h)
		}
		if central := (imagekernel.Rect{X: (w - r.W) / 2, Y: (h - r.H) / 2, W: r.W, H: r.H}); r == central {
			return // Perhaps the fallback, which is bound by shape alone.
		}
		// Each side is off by half a pixel at most.
		if most := (float64(r.W) + 0.5) * (float64(r.H) + 0.5); most < least*float64(w*h) {
			t.Errorf("area of %+v is under %v of %dx%d", r, least, w, h)
		}
		if lo, hi := (float64(r.W)-0.5)/(float64(r.H)+0.5), (float64(r.W)+0.5)/(float64(r.H)-0.5); hi < narrow || lo > narrow*1.7 {
			t.Errorf("shape of %+v is outside [%v, %v]", r, narrow, narrow*1.7)
		}
	})
}

// With torchvision's defaults the drawn areas are uniform and every position can be the last.
func TestRandomResizedCropDistribution(t *testing.T) {
	p := newRRC(t, map[string]any{"size": 224})
	const n = 20_000
	mean, edges := 0.0, 0
	for i := range uint64(n) {
		source := rng.Key{Sample: i}.Source()
		r := p.draw(&source, 400, 400)
		mean += float64(r.W*r.H) / (400 * 400 * n)
		if r.X+r.W == 400 {
			edges++
		}
	}
	// get_params itself gives 0.4786 (200,000 draws in Python); the standard error is 0.0017 here.
	if math.Abs(mean-0.4786) > 0.007 {
		t.Errorf("mean area %v", mean)
	}
	if edges == 0 {
		t.Error("no crop reaches the right edge")
	}
}

// When no crop of an allowed shape is found, it is the largest central one: torchvision's fallback.
func TestRandomResizedCropFallback(t *testing.T) {
	cases := []struct {
		w, h int
		want imagekernel.Rect
	}{
		{4000, 10, imagekernel.Rect{X: 1993, W: 13, H: 10}},
		{10, 4000, imagekernel.Rect{Y: 1993, W: 10, H: 13}},
		{1, 1000, imagekernel.Rect{Y: 499, W: 1, H: 1}},
	}
	p := newRRC(t, map[string]any{"size": 224, "scale": []any{0.9, 1.0}})
	for _, c := range cases {
		source := rng.Key{}.Source()
		if got := p.draw(&source, c.w, c.h); got != c.want {
			t.Errorf("%dx%d: got %+v, want %+v", c.w, c.h, got, c.want)
		}
	}
}

// A flip with p 0 never happens, with p 1 always, with 0.5 about half the time.
func TestRandomFlipProbability(t *testing.T) {
	for p, want := range map[float64]float64{0: 0, 0.5: 0.5, 1: 1} {
		o, err := Build("random_horizontal_flip", 2, map[string]any{"field": "image", "p": p})
		if err != nil {
			t.Fatal(err)
		}
		image, ok := o.(*imageOp)
		if !ok {
			t.Fatal("random_horizontal_flip is no image operator")
		}
		part := image.parts[0]
		const n = 4000
		flips := 0.0
		for i := range uint64(n) {
			r := imageRun{env: &Env{}, draws: rng.Key{Sample: i, Op: 2}.Source()}
			if err := part.apply(&r); err != nil {
				t.Fatal(err)
			}
			if r.flip {
				flips++
			}
		}
		if math.Abs(flips/n-want) > 0.03 || p != 0.5 && flips/n != want {
			t.Errorf("p=%v: %v of %d", p, flips, n)
		}
	}
}
