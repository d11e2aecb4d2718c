package optest

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/preprocess/op/imagekernel"
)

// goldenCases are all lines of testdata/golden.txt.
func goldenCases(t *testing.T) []Case {
	t.Helper()
	f, err := os.Open("testdata/golden.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var cases []Case
	for lines := bufio.NewScanner(f); lines.Scan(); {
		c, err := ParseCase(lines.Text())
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
func inputs(t testing.TB) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob("testdata/*.*g")
	if err != nil {
		t.Fatal(err)
	}
	images := map[string][]byte{}
	for _, file := range files {
		if images[filepath.Base(file)], err = os.ReadFile(file); err != nil {
			t.Fatal(err)
		}
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
