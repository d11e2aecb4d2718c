// Package optest holds the image operators against Pillow: golden hashes made by gen_pillow.py, and cases that a
// program can draw for a live comparison.
package optest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/op/imagekernel"
)

// Step is one geometry step of a case: "crop:x,y,w,h", "resize:w,h,filter", "hflip", "resize_short:size,max,filter" or
// "center_crop:h,w".
type Step struct {
	Name string
	Args []int
	// Filter is the filter of a resize.
	Filter string
}

// String is the step as it stands in a golden file.
func (s Step) String() string {
	parts := make([]string, 0, len(s.Args)+1)
	for _, n := range s.Args {
		parts = append(parts, strconv.Itoa(n))
	}
	if s.Filter != "" {
		parts = append(parts, s.Filter)
	}
	return s.Name + ":" + strings.Join(parts, ",")
}

// Case is one line of a golden file: what Pillow makes of an image.
type Case struct {
	Input string
	// Gray takes Pillow's mode L instead of RGB; Exif applies the orientation.
	Gray, Exif bool
	Steps      []Step
	// Order is that of the passes of a resize, by the version of Pillow. No line says it; the zero Order is that of Pillow 13.
	Order imagekernel.Order
	// Shape is H, W, C and Hash the first hex digits of the pixels' SHA-256.
	Shape [3]int
	Hash  string
}

// String is the case as a line of a golden file.
func (c Case) String() string {
	mode, exif := "RGB", "0"
	if c.Gray {
		mode = "L"
	}
	if c.Exif {
		exif = "1"
	}
	words := []string{c.Input, mode, exif}
	for _, s := range c.Steps {
		words = append(words, s.String())
	}
	return fmt.Sprintf("%s = %dx%dx%d %s", strings.Join(words, " "), c.Shape[0], c.Shape[1], c.Shape[2], c.Hash)
}

// Hash is the hash of pixels as golden files hold it.
func Hash(pixels []byte) string {
	sum := sha256.Sum256(pixels)
	return hex.EncodeToString(sum[:])[:12]
}

// ParseCase reads a line of a golden file.
func ParseCase(line string) (Case, error) {
	left, right, ok := strings.Cut(line, " = ")
	words := strings.Fields(left)
	if !ok || len(words) < 3 {
		return Case{}, errkind.Errorf(errkind.BadData, "golden line %q has no case", line)
	}
	c := Case{Input: words[0], Gray: words[1] == "L", Exif: words[2] == "1"}
	for _, word := range words[3:] {
		c.Steps = append(c.Steps, parseStep(word))
	}
	if _, err := fmt.Sscanf(right, "%dx%dx%d %s", &c.Shape[0], &c.Shape[1], &c.Shape[2], &c.Hash); err != nil {
		return Case{}, errkind.Errorf(errkind.BadData, "golden line %q: %w", line, err)
	}
	return c, nil
}

func parseStep(word string) Step {
	name, list, _ := strings.Cut(word, ":")
	s := Step{Name: name}
	for part := range strings.SplitSeq(list, ",") {
		if n, err := strconv.Atoi(part); err == nil {
			s.Args = append(s.Args, n)
		} else {
			s.Filter = part
		}
	}
	return s
}

// FilterOf is the filter of that name.
func FilterOf(name string) imagekernel.Filter {
	switch name {
	case "bicubic":
		return imagekernel.Bicubic
	case "nearest":
		return imagekernel.Nearest
	case "box":
		return imagekernel.Box
	case "hamming":
		return imagekernel.Hamming
	case "lanczos":
		return imagekernel.Lanczos
	}
	return imagekernel.Bilinear
}

// RunFused does a case of at most one crop, one resize and one flip, in that order, as a single kernel job.
func RunFused(k *imagekernel.Kernel, data []byte, c Case) ([]byte, error) {
	header, err := imagekernel.Probe(data, imagekernel.DefaultLimits())
	if err != nil {
		return nil, err
	}
	job := imagekernel.Job{Header: header, Orient: c.Exif, Gray: c.Gray, Channels: 3}
	if c.Gray {
		job.Channels = 1
	}
	job.JPEG = data
	if header.Format != imagekernel.FormatJPEG {
		job.JPEG, job.W, job.H, job.C = nil, header.W, header.H, 4
		if job.Pix, err = imagekernel.Decode(data, header, nil); err != nil {
			return nil, err
		}
	}
	w, h := header.Size(c.Exif)
	job.Crop = imagekernel.Rect{W: w, H: h}
	job.ResizeW, job.ResizeH = w, h
	for _, s := range c.Steps {
		switch s.Name {
		case "crop":
			job.Crop = imagekernel.Rect{X: s.Args[0], Y: s.Args[1], W: s.Args[2], H: s.Args[3]}
			job.ResizeW, job.ResizeH = s.Args[2], s.Args[3]
		case "resize":
			job.ResizeW, job.ResizeH, job.Filter, job.Order = s.Args[0], s.Args[1], FilterOf(s.Filter), c.Order
		case "hflip":
			job.Flip = true
		}
	}
	job.Window = imagekernel.Rect{W: job.ResizeW, H: job.ResizeH}
	job.Visible = job.Window
	job.Dst = make([]byte, job.ResizeW*job.ResizeH*job.Channels)
	return job.Dst, k.Run(&job)
}
