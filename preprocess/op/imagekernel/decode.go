package imagekernel

import (
	"bytes"
	"errors"
	"image"
	"image/png"
	"io"

	"github.com/millrace/millrace/internal/errkind"
)

// Decode decodes a file other than a JPEG to its stored size in 4-byte pixels (R, G, B, alpha), appended to buf[:0].
// Palettes are looked up and 16-bit samples cut to 8 as Pillow's convert("RGB") does; of an animation it is the first
// image. h is what Probe said of it.
func Decode(data []byte, h Header, buf []byte) ([]byte, error) {
	if h.Format == FormatPNG {
		return DecodePNG(data, h, buf)
	}
	pix := grow(buf, h.W*h.H*4)
	switch h.Format {
	case FormatWebP:
		return pix, decodeWebP(data, pix, h)
	case FormatGIF:
		return pix, decodeGIF(data, pix, h)
	case FormatAVIF:
		return pix, decodeAVIF(data, pix, h)
	default:
	}
	p, err := decodeRaster(data, h)
	if err != nil {
		return nil, err
	}
	p.color(pix)
	return pix, nil
}

// decodeRaster decodes the formats whose decoders are here.
func decodeRaster(data []byte, h Header) (raster, error) {
	switch h.Format {
	case FormatBMP:
		return decodeBMP(data, h)
	case FormatTIFF:
		return decodeTIFF(data, h)
	default:
	}
	return raster{}, errkind.Errorf(errkind.Internal, "no decoder for %s", h.Format)
}

func wrongSize(f Format, w, h int, b image.Rectangle) error {
	return errkind.Errorf(errkind.BadData, "damaged %s: its header says %dx%d pixels, its data %dx%d", f, w, h, b.Dx(), b.Dy())
}

// damaged is the error for what a decoder says.
func damaged(f Format, err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return errkind.Errorf(errkind.BadData, "truncated %s", f)
	}
	return errkind.Errorf(errkind.BadData, "damaged %s: %w", f, err)
}

// DecodeIndices decodes a file with a palette to the palette's indices, one byte a pixel, appended to buf[:0]: Pillow's
// mode P.
func DecodeIndices(data []byte, h Header, buf []byte) ([]byte, error) {
	pix := grow(buf, h.W*h.H)
	switch h.Format {
	case FormatPNG:
		return pix, indicesPNG(data, h, pix)
	case FormatGIF:
		m, transparent, err := readGIF(data, h)
		if err != nil {
			return nil, err
		}
		for i := range pix {
			pix[i] = screenIndex(m, i%h.W, i/h.W, transparent)
		}
		return pix, nil
	case FormatBMP, FormatTIFF:
		p, err := decodeRaster(data, h)
		if err != nil {
			return nil, err
		}
		return pix, p.indices(h.Format, pix)
	case FormatUnknown, FormatJPEG, FormatWebP, FormatAVIF:
	}
	return nil, errkind.Errorf(errkind.BadData, "%s without a palette has no indices", h.Format)
}

func indicesPNG(data []byte, h Header, pix []byte) error {
	decoded, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		return damaged(FormatPNG, err)
	}
	m, ok := decoded.(*image.Paletted)
	if !ok {
		return errkind.Errorf(errkind.BadData, "PNG without a palette has no indices")
	}
	if b := m.Bounds(); b.Dx() != h.W || b.Dy() != h.H {
		return wrongSize(h.Format, h.W, h.H, b)
	}
	for y := range h.H {
		copy(pix[y*h.W:(y+1)*h.W], m.Pix[y*m.Stride:])
	}
	return nil
}

// Compose lays 4-byte pixels on a grey ground by their alpha, as Pillow's alpha_composite does.
func Compose(pix []byte, ground uint8) {
	for i := 0; i+4 <= len(pix); i += 4 {
		p := pix[i : i+4]
		a := uint32(p[3])
		for c := range 3 {
			v := uint32(p[c])*(a*128) + uint32(ground)*((255-a)*128) + 0x80<<7
			p[c] = byte((v>>8 + v) >> 8 >> 7) //nolint:gosec // A weighted mean of bytes.
		}
		p[3] = 255
	}
}
