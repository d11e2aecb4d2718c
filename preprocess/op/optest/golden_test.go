package optest

import (
	"os"
	"strings"
	"testing"

	"github.com/millrace/millrace/preprocess/op"
	"github.com/millrace/millrace/preprocess/op/imagekernel"
)

// goldenCases are all lines of testdata/golden.txt.
func goldenCases(t *testing.T) []Case {
	t.Helper()
	text, err := os.ReadFile("testdata/golden.txt")
	if err != nil {
		t.Fatal(err)
	}
	var cases []Case
	for line := range strings.Lines(string(text)) {
		c, err := ParseCase(strings.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		cases = append(cases, c)
	}
	if len(cases) < 500 {
		t.Fatalf("only %d golden cases", len(cases))
	}
	return cases
}

// inputs are all images of testdata by name.
func inputs(t *testing.T) map[string][]byte {
	t.Helper()
	images, err := Images("testdata")
	if err != nil {
		t.Fatal(err)
	}
	return images
}

// promised says whether this build promises Pillow's bytes for c: without libjpeg, JPEG is decoded differently.
func promised(c Case) bool {
	return imagekernel.Exact || !strings.HasSuffix(c.Input, ".jpg")
}

// simple says whether c is one kernel job.
func simple(c Case) bool {
	order := ""
	for _, s := range c.Steps {
		order += s.Name[:1]
	}
	return strings.Contains("crh", order) && !strings.Contains(order, "crc") && order != "rc" && (len(c.Steps) == 0 || c.Steps[0].Name != "center_crop" && c.Steps[0].Name != "resize_short")
}

// One kernel call gives Pillow's bytes, with vector instructions and without.
func TestKernelEqualsPillow(t *testing.T) {
	images := inputs(t)
	kernel := imagekernel.New(imagekernel.DefaultLimits())
	defer kernel.Close()
	ran := 0
	for _, c := range goldenCases(t) {
		if !simple(c) || !promised(c) {
			continue
		}
		ran++
		pixels, err := RunFused(kernel, images[c.Input], c)
		if err != nil {
			t.Errorf("%s: %v", c, err)
		} else if got := Hash(pixels); got != c.Hash || len(pixels) != c.Shape[0]*c.Shape[1]*c.Shape[2] {
			t.Errorf("%s: got %s (%d bytes)", c, got, len(pixels))
		}
	}
	if ran < 200 {
		t.Errorf("only %d cases", ran)
	}
}

// torchvision says whether c is made of operators' steps alone, and the recipe that it amounts to.
func torchvision(c Case) (recipe []map[string]any, ok bool) {
	decode := map[string]any{"name": "decode_image", "mode": "rgb"}
	if c.Gray {
		decode["mode"] = "l"
	}
	if !c.Exif {
		decode["exif"] = "ignore"
	}
	recipe = append(recipe, decode)
	for _, s := range c.Steps {
		switch s.Name {
		case "resize_short":
			step := map[string]any{"name": "resize", "size": s.Args[0], "interpolation": s.Filter}
			if s.Args[1] > 0 {
				step["max_size"] = s.Args[1]
			}
			recipe = append(recipe, step)
		case "resize":
			recipe = append(recipe, map[string]any{"name": "resize", "size": []any{s.Args[1], s.Args[0]}, "interpolation": s.Filter})
		case "center_crop":
			recipe = append(recipe, map[string]any{"name": "center_crop", "size": []any{s.Args[0], s.Args[1]}})
		case "hflip":
			recipe = append(recipe, map[string]any{"name": "random_horizontal_flip", "p": 1.0})
		default:
			return nil, false
		}
	}
	return recipe, true
}

// Recipes of operators, fused and one by one, give Pillow's bytes.
func TestOperatorsEqualPillow(t *testing.T) {
	images := inputs(t)
	ran := 0
	for _, c := range goldenCases(t) {
		recipe, ok := torchvision(c)
		if !ok || !promised(c) {
			continue
		}
		ran++
		ops := make([]op.Operator, len(recipe))
		for i, step := range recipe {
			name, _ := step["name"].(string)
			delete(step, "name")
			step["field"] = "image"
			var err error
			if ops[i], err = op.Build(name, i, step); err != nil {
				t.Fatalf("%s: %v", c, err)
			}
		}
		for _, chain := range [][]op.Operator{ops, op.Fuse(ops)} {
			pixels, shape := apply(t, chain, images[c.Input])
			if got := Hash(pixels); got != c.Hash || shape != c.Shape {
				t.Errorf("%s with %d operators: got %v %s", c, len(chain), shape, got)
			}
		}
	}
	if ran < 60 {
		t.Errorf("only %d cases", ran)
	}
}

// scalar says whether MILLRACE_SIMD=scalar is set, as it may be for millrace itself: all that Pillow's bytes are compared
// with then runs without vector instructions.
func scalar() bool { return os.Getenv("MILLRACE_SIMD") == "scalar" }

// apply runs one encoded image through chain.
func apply(t *testing.T, chain []op.Operator, data []byte) (pixels []byte, shape [3]int) {
	t.Helper()
	batch := &op.Batch{NumRows: 1, Samples: []uint64{7}, Columns: []op.Column{{Field: op.Field{Name: "image", Kind: op.KindBytes}, Bytes: [][]byte{data}}}}
	for _, o := range chain {
		err := o.Apply(t.Context(), &op.Env{Scalar: scalar()}, batch, func(b *op.Batch) error {
			batch = b
			return b.Check()
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	c := batch.Column("image")
	if c.Kind == op.KindImage {
		return c.Images[0].Pix, [3]int{c.Images[0].H, c.Images[0].W, c.Images[0].C}
	}
	return c.Tensor, [3]int{int(c.Shape[0]), int(c.Shape[1]), int(c.Shape[2])}
}
