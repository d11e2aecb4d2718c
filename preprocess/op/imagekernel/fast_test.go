package imagekernel

import (
	"bytes"
	"image"
	"image/color"
	"image/jpeg"
	"math"
	"testing"

	"pgregory.net/rapid"
)

// picture is a JPEG of w×h pixels with slopes and edges.
func picture(tb testing.TB, w, h int) []byte {
	tb.Helper()
	m := image.NewRGBA(image.Rect(0, 0, w, h))
	for y := range h {
		for x := range w {
			m.SetRGBA(x, y, color.RGBA{R: uint8(x * 255 / w), G: uint8(127 + 100*math.Sin(float64(x+2*y)/40)), B: uint8((x/50 + y/40) % 2 * 200), A: 255})
		}
	}
	var out bytes.Buffer
	if err := jpeg.Encode(&out, m, &jpeg.Options{Quality: 92}); err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}

// wholeJob is the job that resizes all of a JPEG.
func wholeJob(data []byte, h Header, scale, w, hgt int) *Job {
	j := &Job{JPEG: data, Header: h, Scale: scale, ResizeW: w, ResizeH: hgt, Channels: 3}
	j.Crop.W, j.Crop.H = h.Size(false)
	j.Window = Rect{W: w, H: hgt}
	j.Visible = j.Window
	j.Dst = make([]byte, 3*w*hgt)
	return j
}

// A crop that begins and ends on a pixel of the smaller decode gives the bytes of resizing that decode, for every
// orientation, with vector instructions and without.
func TestScaledCropEqualsScaledImage(t *testing.T) {
	if !Exact {
		return // image/jpeg decodes at full size only.
	}
	k, scalar := New(DefaultLimits()), New(DefaultLimits())
	scalar.Scalar(true)
	defer k.Close()
	defer scalar.Close()
	const w, h = 360, 232
	data := picture(t, w, h)
	header, err := Probe(data, DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	small := map[int][]byte{}
	for _, scale := range []int{2, 4, 8} {
		j := wholeJob(data, header, scale, w/scale, h/scale)
		if err := k.Run(j); err != nil {
			t.Fatal(err)
		}
		small[scale] = j.Dst
	}
	rapid.Check(t, func(t *rapid.T) {
		scale := rapid.SampledFrom([]int{2, 4, 8}).Draw(t, "scale")
		j := &Job{JPEG: data, Header: header, Scale: scale, Orient: true, Channels: 3, Filter: rapid.SampledFrom([]Filter{Bilinear, Bicubic, Lanczos}).Draw(t, "filter")}
		j.Header.Orientation = rapid.IntRange(1, 8).Draw(t, "orientation")
		ow, oh := j.Header.Size(true)
		c := &j.Crop
		c.W, c.H = scale*rapid.IntRange(1, ow/scale).Draw(t, "w"), scale*rapid.IntRange(1, oh/scale).Draw(t, "h")
		c.X, c.Y = scale*rapid.IntRange(0, (ow-c.W)/scale).Draw(t, "x"), scale*rapid.IntRange(0, (oh-c.H)/scale).Draw(t, "y")
		j.ResizeW, j.ResizeH = rapid.IntRange(1, 60).Draw(t, "to w"), rapid.IntRange(1, 60).Draw(t, "to h")
		j.Window = Rect{W: j.ResizeW, H: j.ResizeH}
		j.Visible = j.Window
		j.Dst = make([]byte, 3*j.ResizeW*j.ResizeH)
		pixels := *j
		pixels.JPEG, pixels.Scale, pixels.Pix, pixels.W, pixels.H, pixels.C = nil, 0, small[scale], w/scale, h/scale, 3
		pixels.Crop = Rect{X: c.X / scale, Y: c.Y / scale, W: c.W / scale, H: c.H / scale}
		pixels.Dst = make([]byte, len(j.Dst))
		for _, kernel := range []*Kernel{k, scalar} {
			if err := kernel.Run(j); err != nil {
				t.Fatal(err)
			}
			if err := kernel.Run(&pixels); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(j.Dst, pixels.Dst) {
				t.Errorf("crop %+v at 1/%d differs", *c, scale)
			}
		}
	})
}

// Whatever the crop and the size of the image, decoding it smaller shows the same part of it: shifted by so little that
// smooth content differs by a few levels.
func TestScaledCropsLieWhereExactOnesDo(t *testing.T) {
	if !Exact {
		return
	}
	k := New(DefaultLimits())
	defer k.Close()
	rapid.Check(t, func(t *rapid.T) {
		w, h := rapid.IntRange(300, 420).Draw(t, "w"), rapid.IntRange(300, 420).Draw(t, "h")
		m := image.NewRGBA(image.Rect(0, 0, w, h))
		for y := range h {
			for x := range w {
				m.SetRGBA(x, y, color.RGBA{R: uint8(x / 2), G: uint8(y / 2), B: 128, A: 255})
			}
		}
		var data bytes.Buffer
		if err := jpeg.Encode(&data, m, &jpeg.Options{Quality: 100}); err != nil {
			t.Fatal(err)
		}
		header, err := Probe(data.Bytes(), DefaultLimits())
		if err != nil {
			t.Fatal(err)
		}
		header.Orientation = rapid.IntRange(1, 8).Draw(t, "orientation")
		j := wholeJob(data.Bytes(), header, rapid.SampledFrom([]int{2, 4, 8}).Draw(t, "scale"), 16, 16)
		j.Orient = true
		ow, oh := header.Size(true)
		j.Crop.W, j.Crop.H = rapid.IntRange(130, ow).Draw(t, "crop w"), rapid.IntRange(130, oh).Draw(t, "crop h")
		j.Crop.X, j.Crop.Y = rapid.IntRange(0, ow-j.Crop.W).Draw(t, "x"), rapid.IntRange(0, oh-j.Crop.H).Draw(t, "y")
		if err := k.Run(j); err != nil {
			t.Fatal(err)
		}
		exact := *j
		exact.Scale, exact.Dst = 1, make([]byte, len(j.Dst))
		if err := k.Run(&exact); err != nil {
			t.Fatal(err)
		}
		for i := range j.Dst {
			if d := int(j.Dst[i]) - int(exact.Dst[i]); d < -3 || d > 3 {
				t.Fatalf("crop %+v of %dx%d at 1/%d: element %d is %d, not %d", j.Crop, ow, oh, j.Scale, i, j.Dst[i], exact.Dst[i])
			}
		}
	})
}
