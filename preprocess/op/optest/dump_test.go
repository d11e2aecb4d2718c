package optest

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/preprocess/op/imagekernel"
)

// A dump says what the kernel gives: each of its lines, read again and run again without vector instructions, has the
// same hash. With MILLRACE_OPTEST_DUMP=FILE the dump is kept there, of the images MILLRACE_OPTEST_IMAGES=GLOB if that is
// set, for gen_pillow.py to compare; MILLRACE_OPTEST_ORDER=old makes it as versions before Pillow 13 do.
func TestDumpRepeatsItself(t *testing.T) {
	images := inputs(t)
	if glob := os.Getenv("MILLRACE_OPTEST_IMAGES"); glob != "" {
		images = map[string][]byte{}
		files, err := filepath.Glob(glob)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if images[file], err = os.ReadFile(file); err != nil {
				t.Fatal(err)
			}
		}
	}
	kernel := imagekernel.New(imagekernel.DefaultLimits())
	defer kernel.Close()
	order := imagekernel.OrderPillow13
	if os.Getenv("MILLRACE_OPTEST_ORDER") == "old" {
		order = imagekernel.OrderHorizontal
	}
	var dump bytes.Buffer
	cases := 5
	if os.Getenv("MILLRACE_OPTEST_DUMP") != "" {
		cases = 100
	}
	for name, data := range images {
		if !imagekernel.Exact && strings.HasPrefix(name, "extra") {
			continue // Kinds of JPEG that image/jpeg can't read.
		}
		if name == "extra-unfinished.jpg" {
			continue // Versions of libjpeg-turbo differ here, so Pillow's may.
		}
		full := name
		if !strings.Contains(name, "/") {
			full = filepath.Join("testdata", name)
		}
		if err := Dump(&dump, kernel, full, data, cases, 1, order); err != nil {
			t.Fatal(err)
		}
	}
	if file := os.Getenv("MILLRACE_OPTEST_DUMP"); file != "" {
		if err := os.WriteFile(file, dump.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	repeat(t, images, &dump, order)
}

func repeat(t *testing.T, images map[string][]byte, dump io.Reader, order imagekernel.Order) {
	t.Helper()
	kernel := imagekernel.New(imagekernel.DefaultLimits())
	defer kernel.Close()
	kernel.Scalar(true)
	lines, err := io.ReadAll(dump)
	if err != nil || len(lines) == 0 {
		t.Fatalf("dump of %d bytes: %v", len(lines), err)
	}
	for line := range strings.Lines(string(lines)) {
		c, err := ParseCase(strings.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		c.Order = order
		data, ok := images[c.Input]
		if !ok {
			data = images[filepath.Base(c.Input)]
		}
		pixels, err := RunFused(kernel, data, c)
		if err != nil {
			t.Fatalf("%s: %v", c, err)
		}
		if got := Hash(pixels); got != c.Hash {
			t.Errorf("%s: got %s", c, got)
		}
	}
}
