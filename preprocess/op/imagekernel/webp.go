package imagekernel

import (
	"bytes"
	"encoding/binary"
	"image"

	"golang.org/x/image/webp"

	"github.com/millrace/millrace/internal/errkind"
)

// decodeWebP writes a WebP file's image, or the first of an animation on its transparent canvas, as 4-byte pixels.
func decodeWebP(data, pix []byte, h Header) error {
	l, err := readWebP(data)
	if err != nil {
		return err
	}
	decoded, err := webp.Decode(bytes.NewReader(l.frame.still()))
	if err != nil {
		return damaged(FormatWebP, err)
	}
	f := l.frame
	if b := decoded.Bounds(); b.Dx() != f.w || b.Dy() != f.h {
		return wrongSize(FormatWebP, f.w, f.h, b)
	}
	if f.w != h.W || f.h != h.H {
		clear(pix)
	}
	out := canvas{pix: pix[4*(f.y*h.W+f.x):], stride: 4 * h.W}
	switch m := decoded.(type) {
	case *image.YCbCr:
		out.putWebP(m, nil, 0)
	case *image.NYCbCrA:
		out.putWebP(&m.YCbCr, m.A, m.AStride)
	case *image.NRGBA:
		for y := range f.h {
			copy(out.row(y)[:4*f.w], m.Pix[y*m.Stride:])
		}
	default:
		return errkind.Errorf(errkind.Internal, "WebP decoded to %T", decoded)
	}
	return nil
}

// still is a file of one image of f alone.
func (f *webpFrame) still() []byte {
	var flags byte
	if f.hasAlpha {
		flags = 1 << 4
	}
	size := f.w - 1 | (f.h-1)<<24
	var header [10]byte
	header[0] = flags
	for i := range 6 {
		header[4+i] = byte(size >> (8 * i)) //nolint:gosec // The byte is what is meant.
	}
	out := []byte("RIFF\x00\x00\x00\x00WEBP")
	out = appendChunk(out, webpChunk{"VP8X", header[:]})
	if f.hasAlpha {
		out = appendChunk(out, webpChunk{"ALPH", f.alpha})
	}
	out = appendChunk(out, f.pixels)
	binary.LittleEndian.PutUint32(out[4:], uint32(len(out)-8)) //nolint:gosec // Below the limit on encoded bytes.
	return out
}

func appendChunk(out []byte, c webpChunk) []byte {
	out = append(out, c.id...)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(c.data))) //nolint:gosec // Below the limit on encoded bytes.
	out = append(out, c.data...)
	if len(c.data)&1 == 1 {
		out = append(out, 0)
	}
	return out
}

// canvas is 4-byte pixels, rows stride bytes apart.
type canvas struct {
	pix    []byte
	stride int
}

func (c canvas) row(y int) []byte { return c.pix[y*c.stride:] }

// putWebP converts m as libwebp does: chroma interpolated between the four samples around a pixel, weights of 9, 3, 3
// and 1 sixteenths, and its own fixed-point matrix.
func (c canvas) putWebP(m *image.YCbCr, alpha []byte, alphaStride int) {
	b := m.Bounds()
	w, h := b.Dx(), b.Dy()
	rows := (h + 1) / 2
	at := func(y int) []byte { return m.Y[y*m.YStride : y*m.YStride+w] }
	chroma := func(y int) (cb, cr []byte) {
		y = min(max(y, 0), rows-1) * m.CStride
		return m.Cb[y : y+(w+1)/2], m.Cr[y : y+(w+1)/2]
	}
	for y := range h {
		// The nearer row of chroma samples, and the one on the other side of the pixel's middle.
		nearCb, nearCr := chroma(y / 2)
		farCb, farCr := chroma(y/2 - 1 + 2*(y&1))
		out := c.row(y)
		for x, luma := range at(y) {
			near, far := x/2, min(max(x/2-1+2*(x&1), 0), (w+1)/2-1)
			u := between(nearCb[near], nearCb[far], farCb[near], farCb[far])
			v := between(nearCr[near], nearCr[far], farCr[near], farCr[far])
			p := out[4*x : 4*x+4]
			l := int(luma) * 19077 >> 8
			p[0] = webpClip(l + v*26149>>8 - 14234)
			p[1] = webpClip(l - u*6419>>8 - v*13320>>8 + 8708)
			p[2] = webpClip(l + u*33050>>8 - 17685)
			p[3] = 255
			if alpha != nil {
				p[3] = alpha[y*alphaStride+x]
			}
		}
	}
}

// between is the chroma at a pixel: a is the nearest sample, d the farthest. The two roundings are libwebp's.
func between(a, b, c, d byte) int {
	sum := int(a) + int(b) + int(c) + int(d) + 8
	return ((sum+2*(int(b)+int(c)))>>3 + int(a)) >> 1
}

// webpClip drops the six fraction bits and cuts to a byte.
func webpClip(v int) byte { return byte(min(max(v>>6, 0), 255)) }
