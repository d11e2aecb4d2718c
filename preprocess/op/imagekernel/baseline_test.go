//go:build cgo && !purego

package imagekernel

import (
	"bytes"
	"image"
	"image/color"
	"image/jpeg"
	"os"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/errkind"
)

// encodedFiles are the JPEGs that are kept for tests: all kinds of sampling, sizes and scans.
func encodedFiles(tb testing.TB) [][]byte {
	tb.Helper()
	names, err := filepath.Glob("../optest/testdata/*.jpg")
	if err != nil || len(names) == 0 {
		tb.Fatal("no JPEGs to test with", err)
	}
	files := make([][]byte, 0, len(names))
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			tb.Fatal(err)
		}
		files = append(files, data)
	}
	return files
}

// anyJPEG is one of files, or a new one of any size: noise, at times all of one level, at any quality.
func anyJPEG(t *rapid.T, files [][]byte) []byte {
	if rapid.Bool().Draw(t, "kept") {
		return rapid.SampledFrom(files).Draw(t, "file")
	}
	w, h := rapid.IntRange(1, 90).Draw(t, "w"), rapid.IntRange(1, 90).Draw(t, "h")
	noise, mask := rapid.Uint64().Draw(t, "noise"), rapid.SampledFrom([]byte{0, 15, 255}).Draw(t, "mask")
	next := func() byte {
		noise = noise*6364136223846793005 + 1442695040888963407
		return byte(noise>>56) & mask
	}
	var m image.Image
	if rapid.Bool().Draw(t, "gray") {
		gray := image.NewGray(image.Rect(0, 0, w, h))
		for i := range gray.Pix {
			gray.Pix[i] = next() + byte(i/w)
		}
		m = gray
	} else {
		rgba := image.NewRGBA(image.Rect(0, 0, w, h))
		for i := range w * h {
			rgba.SetRGBA(i%w, i/w, color.RGBA{R: next() + byte(i%w), G: next() + byte(i/w), B: next(), A: 255})
		}
		m = rgba
	}
	var out bytes.Buffer
	if err := jpeg.Encode(&out, m, &jpeg.Options{Quality: rapid.SampledFrom([]int{1, 40, 90, 100}).Draw(t, "quality")}); err != nil {
		t.Fatal(err)
	}
	if rapid.Bool().Draw(t, "loud") {
		raiseSteps(t, out.Bytes())
	}
	return out.Bytes()
}

// raiseSteps makes steps of quantisation so large that coefficients no longer fit the 16 bits that transforms take them in.
func raiseSteps(t *rapid.T, data []byte) {
	table := bytes.Index(data, []byte{0xFF, 0xDB})
	for range rapid.IntRange(1, 8).Draw(t, "raised") {
		// After the marker, its length and the table's number; half of them are those of the lowest frequencies.
		at := rapid.SampledFrom([]int{0, 1, 2, rapid.IntRange(3, 63).Draw(t, "frequency")}).Draw(t, "step")
		data[table+5+at] = rapid.ByteRange(32, 255).Draw(t, "size")
	}
}

// anyCrop is a job that writes some part of a JPEG, often one that touches an edge, without resizing but for what comes
// of decoding it smaller.
func anyCrop(t *rapid.T, data []byte, h Header) *Job {
	j := &Job{JPEG: data, Header: h, Channels: 3, Orient: rapid.Bool().Draw(t, "orient"), Scale: rapid.SampledFrom([]int{1, 1, 1, 2, 4, 8}).Draw(t, "scale")}
	w, hgt := h.Size(j.Orient)
	j.Crop.W, j.Crop.H = rapid.IntRange(1, w).Draw(t, "crop w"), rapid.IntRange(1, hgt).Draw(t, "crop h")
	j.Crop.X, j.Crop.Y = rapid.IntRange(0, w-j.Crop.W).Draw(t, "crop x"), rapid.IntRange(0, hgt-j.Crop.H).Draw(t, "crop y")
	j.ResizeW, j.ResizeH = j.Crop.W, j.Crop.H
	j.Window = Rect{W: j.ResizeW, H: j.ResizeH}
	j.Visible = j.Window
	j.Dst = make([]byte, 3*j.Crop.W*j.Crop.H)
	return j
}

// decoders are kernels that must give the same pixels: libjpeg-turbo, and the decoder of our own with vector
// instructions and without.
type decoders struct{ plain, vector, scalar *Kernel }

func newDecoders(tb testing.TB) *decoders {
	tb.Helper()
	d := &decoders{New(DefaultLimits()), New(DefaultLimits()), New(DefaultLimits())}
	d.plain.engine.plain = true
	d.scalar.Scalar(true)
	tb.Cleanup(d.plain.Close)
	tb.Cleanup(d.vector.Close)
	tb.Cleanup(d.scalar.Close)
	return d
}

// compare runs j on all. Where libjpeg-turbo gives pixels, all must give the same.
func (d *decoders) compare(t errorer, j *Job) {
	want := j.Dst
	err := d.plain.Run(j)
	for name, k := range map[string]*Kernel{"vector": d.vector, "scalar": d.scalar} {
		j.Dst = make([]byte, len(want))
		switch got := k.Run(j); {
		case err == nil && got != nil:
			t.Errorf("%s: %v", name, got)
		case err == nil && !bytes.Equal(j.Dst, want):
			t.Errorf("%s: other pixels than libjpeg-turbo's of %+v", name, j.Crop)
		case err != nil && got != nil && (errkind.Of(got) != errkind.Of(err) || got.Error() != err.Error()):
			t.Errorf("%s: %v; libjpeg-turbo: %v", name, got, err)
		}
	}
	j.Dst = want
}

type errorer interface {
	Errorf(format string, args ...any)
}

// Any part of any JPEG has libjpeg-turbo's pixels, with vector instructions and without.
func TestAnyPartHasThePixelsOfLibjpeg(t *testing.T) {
	files, d := encodedFiles(t), newDecoders(t)
	rapid.Check(t, func(t *rapid.T) {
		data := anyJPEG(t, files)
		h, err := Probe(data, DefaultLimits())
		if err != nil {
			return
		}
		d.compare(t, anyCrop(t, data, h))
	})
}

// Damage changes nothing about that: what libjpeg-turbo decodes without complaint has its pixels, all else its complaint
// or, where the damage lies outside the part, pixels.
func TestDamageHasThePixelsOfLibjpeg(t *testing.T) {
	files, d := encodedFiles(t), newDecoders(t)
	rapid.Check(t, func(t *rapid.T) {
		data := bytes.Clone(anyJPEG(t, files))
		for range rapid.IntRange(1, 4).Draw(t, "faults") {
			data[rapid.IntRange(2, len(data)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
		}
		h, err := Probe(data, DefaultLimits())
		if err != nil || h.W*h.H > 1<<20 {
			return
		}
		d.compare(t, anyCrop(t, data, h))
	})
}

// A kernel that has done any jobs, of whole and damaged files and at any scale, does the next as a new one does: nothing
// of a file, such as its tables, is left for the one after it.
func TestAUsedKernelDoesAsAFreshOne(t *testing.T) {
	files := encodedFiles(t)
	rapid.Check(t, func(t *rapid.T) {
		used := New(DefaultLimits())
		defer used.Close()
		for range rapid.IntRange(2, 8).Draw(t, "jobs") {
			data := bytes.Clone(anyJPEG(t, files))
			if rapid.IntRange(0, 2).Draw(t, "damage") == 0 {
				data[rapid.IntRange(2, len(data)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
			}
			h, err := Probe(data, DefaultLimits())
			if err != nil || h.W*h.H > 1<<20 {
				continue
			}
			used.engine.plain = rapid.Bool().Draw(t, "plain")
			used.Scalar(rapid.Bool().Draw(t, "scalar"))
			fresh := New(DefaultLimits())
			fresh.engine.plain, fresh.engine.scalar = used.engine.plain, used.engine.scalar
			j := anyCrop(t, data, h)
			again := *j
			again.Dst = make([]byte, len(j.Dst))
			want, got := fresh.Run(j), used.Run(&again)
			fresh.Close()
			if (want == nil) != (got == nil) || want == nil && !bytes.Equal(j.Dst, again.Dst) {
				t.Fatalf("used: %v, fresh: %v; pixels equal: %v", got, want, bytes.Equal(j.Dst, again.Dst))
			}
		}
	})
}
