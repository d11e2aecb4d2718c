package op

import (
	"encoding/json"
	"math"
	"slices"
	"testing"

	"github.com/millrace/millrace/internal/rng"
)

// imageOf is a plain image column of n images of w×h pixels, all alike.
func imageOf(n, w, h, channels int) *Batch {
	b := &Batch{NumRows: n, Columns: []Column{{Field: imageType{h: -1, w: -1, channels: int64(channels), dtype: DTypeUint8}.field("image")}}}
	pix := make([]byte, w*h*channels)
	for i := range pix {
		pix[i] = byte(i * 37)
	}
	for i := range n {
		b.Samples = append(b.Samples, uint64(i))
		b.Columns[0].Images = append(b.Columns[0].Images, Image{H: h, W: w, C: channels, Pix: pix})
	}
	return b
}

// draws runs one operator on n samples and collects what it says that it drew: each number by its name, and each text
// by its value.
func draws(t *testing.T, n int, s step) (numbers map[string][]float64, texts map[string]int) {
	t.Helper()
	numbers, texts = map[string][]float64{}, map[string]int{}
	env := &Env{Seed: 5, Drawn: func(_ int, _, text string) {
		var values map[string]any
		if err := json.Unmarshal([]byte(text), &values); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		for name, v := range values {
			switch v := v.(type) {
			case float64:
				numbers[name] = append(numbers[name], v)
			case bool:
				x := 0.0
				if v {
					x = 1
				}
				numbers[name] = append(numbers[name], x)
			case string:
				texts[v]++
			case []any:
				flat, err := json.Marshal(v)
				if err != nil {
					t.Fatal(err)
				}
				texts[string(flat)]++
				for i, item := range v {
					if f, ok := item.(float64); ok {
						key := name + string(rune('0'+i))
						numbers[key] = append(numbers[key], f)
					}
				}
			}
		}
	}}
	if _, err := runAll(t, env, chain(t, s), imageOf(n, 24, 20, 3)); err != nil {
		t.Fatal(err)
	}
	return numbers, texts
}

// follows is a Kolmogorov–Smirnov test of draws against a distribution function, at a level of about one in a million;
// the draws are fixed by their seed, so that it either always passes or never.
func follows(t *testing.T, what string, draws []float64, cdf func(x float64) float64) {
	t.Helper()
	if len(draws) < 500 {
		t.Fatalf("%s: only %d draws", what, len(draws))
	}
	sorted := slices.Sorted(slices.Values(draws))
	n := float64(len(sorted))
	worst := 0.0
	for i, x := range sorted {
		p := cdf(x)
		worst = max(worst, p-float64(i)/n, float64(i+1)/n-p)
	}
	if worst > 2.69/math.Sqrt(n) {
		t.Errorf("%s: distance %v for %v draws", what, worst, n)
	}
}

func uniform(lo, hi float64) func(x float64) float64 {
	return func(x float64) float64 { return min(max((x-lo)/(hi-lo), 0), 1) }
}

// evenly checks that each of kinds values has about its equal share.
func evenly(t *testing.T, what string, counts map[string]int, kinds int) {
	t.Helper()
	total := 0
	for _, n := range counts {
		total += n
	}
	if len(counts) != kinds {
		t.Errorf("%s: %d kinds, not %d: %v", what, len(counts), kinds, counts)
	}
	share := float64(total) / float64(kinds)
	for v, n := range counts {
		if math.Abs(float64(n)-share) > 5*math.Sqrt(share) {
			t.Errorf("%s: %d of %s, not about %v", what, n, v, share)
		}
	}
}

// Drawn parameters follow the laws of torchvision's get_params.
func TestOperatorDraws(t *testing.T) {
	const n = 2400
	x, orders := draws(t, n, step{"color_jitter", map[string]any{"brightness": 0.4, "contrast": []any{0.5, 3}, "saturation": 2, "hue": 0.1}})
	follows(t, "brightness", x["brightness"], uniform(0.6, 1.4))
	follows(t, "contrast", x["contrast"], uniform(0.5, 3))
	follows(t, "saturation", x["saturation"], uniform(0, 3))
	follows(t, "hue", x["hue"], uniform(-0.1, 0.1))
	evenly(t, "order", orders, 24)

	x, _ = draws(t, n, step{"gaussian_blur", map[string]any{"kernel_size": 3}})
	follows(t, "sigma", x["sigma"], uniform(0.1, 2))
	x, _ = draws(t, n, step{"random_rotation", map[string]any{"degrees": 30}})
	follows(t, "angle", x["angle"], uniform(-30, 30))

	x, _ = draws(t, n, step{"random_affine", map[string]any{
		"degrees": []any{5, 90}, "translate": []any{0.5, 0.2}, "scale": []any{0.5, 2}, "shear": []any{-10, 10, 0, 5},
	}})
	follows(t, "angle", x["angle"], uniform(5, 90))
	follows(t, "scale", x["scale"], uniform(0.5, 2))
	follows(t, "shear x", x["shear0"], uniform(-10, 10))
	follows(t, "shear y", x["shear1"], uniform(0, 5))
	if m := slices.Max(x["translate0"]); m != 12 {
		t.Errorf("shifts to %v of at most 12", m)
	}
	if m := slices.Min(x["translate1"]); m != -4 {
		t.Errorf("shifts to %v of at least -4", m)
	}

	for _, name := range []string{"random_invert", "random_equalize", "random_autocontrast"} {
		x, _ = draws(t, n, step{name, map[string]any{"p": 0.3}})
		share(t, name, x["applied"], 0.3)
	}
	x, _ = draws(t, n, step{"random_grayscale", nil})
	share(t, "random_grayscale", x["applied"], 0.1)
	x, _ = draws(t, n, step{"random_perspective", nil})
	share(t, "random_perspective", x["applied"], 0.5)
}

func share(t *testing.T, what string, applied []float64, p float64) {
	t.Helper()
	sum := 0.0
	for _, v := range applied {
		sum += v
	}
	n := float64(len(applied))
	if math.Abs(sum/n-p) > 5*math.Sqrt(p*(1-p)/n) {
		t.Errorf("%s: %v of %v", what, sum, n)
	}
}

// The automatic augmentations choose each operation, magnitude and sign as often as torchvision does.
func TestAugmentDraws(t *testing.T) {
	_, ops := draws(t, 3000, step{"rand_augment", nil})
	evenly(t, "rand_augment", ops, 14)
	x, ops := draws(t, 6000, step{"trivial_augment_wide", map[string]any{"num_magnitude_bins": 4}})
	evenly(t, "trivial_augment_wide", ops, 14)
	negative := 0
	for _, m := range x["magnitude"] {
		if m < 0 {
			negative++
		}
	}
	// Nine of fourteen operations have a sign, and one of four magnitudes is zero.
	if want := 6000.0 * 9 / 14 * 3 / 4 / 2; math.Abs(float64(negative)-want) > 5*math.Sqrt(want) {
		t.Errorf("%d negative magnitudes, not about %v", negative, want)
	}
	_, ops = draws(t, 2000, step{"aug_mix", map[string]any{"all_ops": false, "severity": 1}})
	evenly(t, "aug_mix", ops, 9)

	p, ok := chain(t, step{"auto_augment", nil})[0].(*imageOp)
	if !ok {
		t.Fatal("auto_augment is no image operator")
	}
	auto, ok := p.parts[0].(*autoAugment)
	if !ok {
		t.Fatal("auto_augment is something else")
	}
	policies, chances, minus := map[string]int{}, []float64{}, []float64{}
	for i := range uint64(5000) {
		s := rng.Key{Sample: i}.Source()
		policy, chance, negative := auto.draw(&s)
		policies[string(rune('a'+policy))]++
		chances = append(chances, chance[:]...)
		for _, n := range negative {
			if n {
				minus = append(minus, 1)
			} else {
				minus = append(minus, 0)
			}
		}
	}
	evenly(t, "policies", policies, 25)
	follows(t, "chances", chances, uniform(0, 1))
	share(t, "signs", minus, 0.5)
}

// An erased rectangle lies in the image and is smaller than it; areas and shapes are those of torchvision.
func TestErasingDraws(t *testing.T) {
	o, ok := chain(t, step{"random_erasing", map[string]any{"p": 1}})[0].(*imageOp)
	if !ok {
		t.Fatal("random_erasing is no image operator")
	}
	p, ok := o.parts[0].(*randomErasing)
	if !ok {
		t.Fatal("random_erasing is something else")
	}
	var areas, shapes []float64
	const side = 4000
	for i := range uint64(5000) {
		s := rng.Key{Sample: i}.Source()
		r, found := p.draw(&s, side, side)
		if !found {
			continue
		}
		if r.X < 0 || r.Y < 0 || r.X+r.W > side || r.Y+r.H > side || r.W >= side || r.H >= side {
			t.Fatalf("%+v", r)
		}
		areas = append(areas, float64(r.W*r.H)/side/side)
		shapes = append(shapes, math.Log(float64(r.H)/float64(r.W)))
	}
	// Few enough draws miss that the rest is as good as uniform.
	follows(t, "areas", areas, uniform(0.02, 0.33))
	follows(t, "shapes", shapes, uniform(math.Log(0.3), math.Log(3.3)))
}

// Corners move inwards by up to the distortion, every amount as likely as any other.
func TestPerspectiveDraws(t *testing.T) {
	p := &randomPerspective{distortion: 0.5}
	const w, h = 4000, 3000
	corners := map[string][]float64{}
	for i := range uint64(3000) {
		s := rng.Key{Sample: i}.Source()
		c := p.draw(&s, w, h)
		for k, v := range map[string]int{"0x": c[0][0], "0y": c[0][1], "1x": w - 1 - c[1][0], "1y": c[1][1], "2x": w - 1 - c[2][0], "2y": h - 1 - c[2][1], "3x": c[3][0], "3y": h - 1 - c[3][1]} {
			corners[k] = append(corners[k], float64(v))
		}
	}
	for k, moves := range corners {
		most := 1000.0
		if k[1] == 'y' {
			most = 750
		}
		follows(t, "corner "+k, moves, uniform(0, most+1))
	}
}

// Dirichlet weights of two have a Beta distribution: for parameters 1, 2 and 0.5 its function is elementary.
func TestDirichletDraws(t *testing.T) {
	for a, cdf := range map[float64]func(x float64) float64{
		1:   uniform(0, 1),
		2:   func(x float64) float64 { return x * x * (3 - 2*x) },
		0.5: func(x float64) float64 { return 2 / math.Pi * math.Asin(math.Sqrt(x)) },
	} {
		var keep []float64
		for i := range uint64(5000) {
			s := rng.Key{Sample: i}.Source()
			var w [2]float64
			dirichlet(&s, a, w[:])
			if math.Abs(w[0]+w[1]-1) > 1e-15 || w[0] < 0 || w[1] < 0 {
				t.Fatalf("weights %v", w)
			}
			keep = append(keep, w[0])
		}
		follows(t, "share", keep, cdf)
	}
	// Of tiny parameters nearly all weight goes to one.
	s := rng.Key{}.Source()
	var w [3]float64
	dirichlet(&s, 1e-3, w[:])
	if sum := w[0] + w[1] + w[2]; math.Abs(sum-1) > 1e-12 || slices.Max(w[:]) < 0.9 {
		t.Errorf("weights %v", w)
	}
}

// The polar method's numbers are normal.
func TestNormalDraws(t *testing.T) {
	var x []float64
	s := rng.Key{Seed: 3}.Source()
	for range 20_000 {
		x = append(x, normal(&s))
	}
	follows(t, "normal", x, func(x float64) float64 { return 0.5 * math.Erfc(-x/math.Sqrt2) })
}
