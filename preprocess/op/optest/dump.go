package optest

import (
	"fmt"
	"io"

	"github.com/millrace/millrace/internal/rng"
	"github.com/millrace/millrace/preprocess/op/imagekernel"
)

// Dump draws n cases of random crops, resizes and flips of an image, runs each as one kernel job and writes a line per
// case that `gen_pillow.py compare` checks against the Pillow whose order of passes it is. name is what that script opens.
func Dump(w io.Writer, kernel *imagekernel.Kernel, name string, data []byte, n int, seed uint64, order imagekernel.Order) error {
	header, err := imagekernel.Probe(data, imagekernel.DefaultLimits())
	if err != nil {
		return fmt.Errorf("reading %s: %w", name, err)
	}
	for i := range n {
		source := rng.Key{Seed: seed, Sample: uint64(i)}.Source()
		c := draw(&source, header)
		c.Input, c.Order = name, order
		pixels, err := RunFused(kernel, data, c)
		if err != nil {
			return fmt.Errorf("running %s: %w", c, err)
		}
		c.Hash = Hash(pixels)
		if _, err := fmt.Fprintln(w, c); err != nil {
			return err
		}
	}
	return nil
}

// draw is a random case for an image: a crop anywhere, often at an edge, of any size, brought to any size near 224.
func draw(s *rng.Source, header imagekernel.Header) Case {
	c := Case{Gray: s.Bool(0.1), Exif: s.Bool(0.5)}
	w, h := header.Size(c.Exif)
	cw, ch := 1+int(s.IntN(int64(w))), 1+int(s.IntN(int64(h)))
	x, y := place(s, w-cw), place(s, h-ch)
	filters := []string{"bilinear", "bicubic", "box", "hamming", "lanczos", "nearest"}
	tw, th := 224, 224
	if s.Bool(0.3) {
		tw, th = 1+int(s.IntN(500)), 1+int(s.IntN(500))
	}
	c.Steps = []Step{
		{Name: "crop", Args: []int{x, y, cw, ch}},
		{Name: "resize", Args: []int{tw, th}, Filter: filters[s.IntN(int64(len(filters)))]},
	}
	if s.Bool(0.5) {
		c.Steps = append(c.Steps, Step{Name: "hflip"})
	}
	c.Shape = [3]int{th, tw, 3}
	if c.Gray {
		c.Shape[2] = 1
	}
	return c
}

// place is where a crop begins that can be moved by room: at either edge every third time.
func place(s *rng.Source, room int) int {
	switch s.IntN(6) {
	case 0:
		return 0
	case 1:
		return room
	}
	return int(s.IntN(int64(room + 1)))
}
