// Command dump draws random crops, resizes and flips of image files, runs each as one kernel job and prints a line per
// case that `gen_pillow.py compare` checks against Pillow:
//
//	go run ./preprocess/op/optest/dump -cases 200 -seed 1 photo.jpg … > dump.txt
//	python preprocess/op/optest/gen_pillow.py compare dump.txt
package main

import (
	"bufio"
	"flag"
	"fmt"
	"os"

	"github.com/millrace/millrace/internal/rng"
	"github.com/millrace/millrace/preprocess/op/imagekernel"
	"github.com/millrace/millrace/preprocess/op/optest"
)

func main() {
	cases := flag.Int("cases", 100, "cases per file")
	seed := flag.Uint64("seed", 1, "random seed")
	flag.Parse()
	if err := run(flag.Args(), *cases, *seed); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(files []string, cases int, seed uint64) error {
	out := bufio.NewWriter(os.Stdout)
	kernel := imagekernel.New(imagekernel.DefaultLimits())
	defer kernel.Close()
	for i, file := range files {
		data, err := os.ReadFile(file) //nolint:gosec // The caller names the files.
		if err != nil {
			return err
		}
		header, err := imagekernel.Probe(data, imagekernel.DefaultLimits())
		if err != nil {
			return fmt.Errorf("reading %s: %w", file, err)
		}
		for n := range cases {
			source := rng.Key{Seed: seed, Epoch: uint64(i), Sample: uint64(n)}.Source() //nolint:gosec // Counters.
			c := draw(&source, header)
			c.Input = file
			pixels, err := optest.RunFused(kernel, data, c)
			if err != nil {
				return fmt.Errorf("running %s: %w", c, err)
			}
			c.Hash = optest.Hash(pixels)
			fmt.Fprintln(out, c)
		}
	}
	return out.Flush()
}

// draw is a random case for an image: a crop anywhere, of any size, brought to any size near 224.
func draw(s *rng.Source, header imagekernel.Header) optest.Case {
	c := optest.Case{Gray: s.Bool(0.1), Exif: s.Bool(0.5)}
	w, h := header.Size(c.Exif)
	cw, ch := 1+int(s.IntN(int64(w))), 1+int(s.IntN(int64(h)))
	x, y := int(s.IntN(int64(w-cw+1))), int(s.IntN(int64(h-ch+1)))
	filters := []string{"bilinear", "bicubic", "box", "hamming", "lanczos", "nearest"}
	tw, th := 224, 224
	if s.Bool(0.3) {
		tw, th = 1+int(s.IntN(500)), 1+int(s.IntN(500))
	}
	c.Steps = []optest.Step{
		{Name: "crop", Args: []int{x, y, cw, ch}},
		{Name: "resize", Args: []int{tw, th}, Filter: filters[s.IntN(int64(len(filters)))]},
	}
	if s.Bool(0.5) {
		c.Steps = append(c.Steps, optest.Step{Name: "hflip"})
	}
	c.Shape = [3]int{th, tw, 3}
	if c.Gray {
		c.Shape[2] = 1
	}
	return c
}
