package imagekernel

import (
	"encoding/binary"
	"math"

	"github.com/millrace/millrace/internal/errkind"
)

// sample is what a raster holds per pixel.
type sample uint8

const (
	// sampleGray is a byte.
	sampleGray sample = iota
	// sampleIndex is a byte that a palette gives a colour.
	sampleIndex
	// sampleIndexAlpha is such a byte, and one of alpha.
	sampleIndexAlpha
	// sampleGray16 is a little-endian uint16, sampleInt32 a little-endian int32, sampleFloat32 a little-endian float32.
	sampleGray16
	sampleInt32
	sampleFloat32
	// sampleColor is red, green, blue and alpha, a byte each.
	sampleColor
	// sampleInk is cyan, magenta, yellow and black, a byte each.
	sampleInk
)

// size is the bytes of a pixel.
func (s sample) size() int { return [...]int{1, 1, 2, 2, 4, 4, 4, 4}[s] }

// A raster is an image as its file holds it, rows without gaps.
type raster struct {
	w, h    int
	kind    sample
	pix     []byte
	palette *[256][4]byte
}

func newRaster(w, h int, kind sample) raster {
	return raster{w: w, h: h, kind: kind, pix: make([]byte, w*h*kind.size())}
}

// color writes 4-byte pixels as Pillow's convert("RGB"), or convert("RGBA"), makes them.
func (p *raster) color(out []byte) {
	for i := range p.w * p.h {
		v := p.pix[i*p.kind.size():]
		to := out[4*i:]
		switch p.kind {
		case sampleGray:
			put(to, v[0], v[0], v[0])
		case sampleIndex:
			copy(to[:4], p.palette[v[0]][:])
		case sampleIndexAlpha:
			copy(to[:3], p.palette[v[0]][:])
			to[3] = v[1]
		case sampleGray16:
			g := byte(min(binary.LittleEndian.Uint16(v), math.MaxUint8))
			put(to, g, g, g)
		case sampleInt32:
			n := int32(binary.LittleEndian.Uint32(v)) //nolint:gosec // The bits of an int32.
			g := byte(min(max(n, 0), math.MaxUint8))
			put(to, g, g, g)
		case sampleFloat32:
			g := byte(min(max(readFloat32(v), 0), math.MaxUint8))
			put(to, g, g, g)
		case sampleColor:
			copy(to[:4], v)
		case sampleInk:
			put(to, cmyk(v[0], v[3]), cmyk(v[1], v[3]), cmyk(v[2], v[3]))
		}
	}
}

// readFloat32 is a float32 of a file; what is no number is 0.
func readFloat32(v []byte) float32 {
	f := math.Float32frombits(binary.LittleEndian.Uint32(v))
	if f != f {
		return 0
	}
	return f
}

// cmyk is Pillow's conversion of one channel from CMYK.
func cmyk(c, k byte) byte {
	nk := 255 - int(k)
	t := int(c)*nk + 128
	return byte(max(nk-((t>>8)+t)>>8, 0)) //nolint:gosec // Between 0 and 255.
}

// indices writes the indices of a palette.
func (p *raster) indices(f Format, out []byte) error {
	if p.kind != sampleIndex {
		return errkind.Errorf(errkind.BadData, "%s without a palette has no indices", f)
	}
	copy(out, p.pix)
	return nil
}
