//go:build !cgo || purego

package imagekernel

import (
	"bytes"
	"image"
	"image/color"
	"image/jpeg"

	"github.com/millrace/millrace/internal/errkind"
)

// Exact says whether JPEG pixels are libjpeg-turbo's.
const Exact = false

// engine runs jobs in Go. It keeps nothing between them.
type engine struct{ scalar bool }

func (*engine) open()  {}
func (*engine) close() {}

func (*engine) run(k *Kernel, job *Job, visible Rect) error {
	if job.JPEG == nil {
		k.runPixels(job, job.Pix, job.W, job.H, job.C, visible)
		return nil
	}
	pix, err := decodeJPEG(job.JPEG, job.Header, job.Ink)
	if err != nil {
		return err
	}
	k.runPixels(job, pix, job.Header.W, job.Header.H, 4, visible)
	return nil
}

// decodeJPEG decodes a whole JPEG to 4-byte pixels.
func decodeJPEG(data []byte, h Header, ink bool) ([]byte, error) {
	decoded, err := jpeg.Decode(bytes.NewReader(data))
	switch {
	case !h.Ended:
		return nil, errkind.Errorf(errkind.BadData, "truncated JPEG")
	case err != nil:
		return nil, errkind.Errorf(errkind.BadData, "damaged JPEG: %w", err)
	}
	if b := decoded.Bounds(); b.Dx() != h.W || b.Dy() != h.H {
		return nil, errkind.Errorf(errkind.BadData, "damaged JPEG: its header says %dx%d pixels, its data %dx%d", h.W, h.H, b.Dx(), b.Dy())
	}
	pix := make([]byte, h.W*h.H*4)
	for y := range h.H {
		row := pix[y*h.W*4:]
		for x := range h.W {
			c := jpegPixel(decoded, x, y, ink)
			put(row[4*x:], c[0], c[1], c[2])
		}
	}
	return pix, nil
}

func jpegPixel(decoded image.Image, x, y int, ink bool) [3]byte {
	switch m := decoded.(type) {
	case *image.YCbCr:
		c := m.YCbCrAt(x, y)
		r, g, b := color.YCbCrToRGB(c.Y, c.Cb, c.Cr)
		return [3]byte{r, g, b}
	case *image.Gray:
		v := m.GrayAt(x, y).Y
		return [3]byte{v, v, v}
	case *image.CMYK:
		c := m.CMYKAt(x, y)
		if ink { // image/jpeg has turned over what it took for Adobe's.
			c = color.CMYK{C: 255 - c.C, M: 255 - c.M, Y: 255 - c.Y, K: 255 - c.K}
		}
		return [3]byte{cmyk(c.C, c.K), cmyk(c.M, c.K), cmyk(c.Y, c.K)}
	}
	return rgbOf(decoded.At(x, y))
}
