package imagekernel

import (
	"bytes"
	"image"
	"image/png"

	"github.com/millrace/millrace/internal/errkind"
)

// DecodePNG decodes a PNG to its stored size in 4-byte pixels (R, G, B, alpha), appended to buf[:0]:
// palettes are looked up and 16-bit samples cut to 8 exactly as Pillow's convert("RGB") does.
func DecodePNG(data []byte, h Header, buf []byte) ([]byte, error) {
	decoded, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		if !h.Ended {
			return nil, errkind.Errorf(errkind.BadData, "truncated PNG")
		}
		return nil, errkind.Errorf(errkind.BadData, "damaged PNG: %w", err)
	}
	if b := decoded.Bounds(); b.Dx() != h.W || b.Dy() != h.H {
		return nil, wrongSize(FormatPNG, h.W, h.H, b)
	}
	pix := grow(buf, h.W*h.H*4)
	if !convertPNG(pix, decoded, data[24] == 16 && data[25] == 0) {
		return nil, errkind.Errorf(errkind.Internal, "PNG decoded to %T", decoded)
	}
	return pix, nil
}

// convertPNG writes the image types that image/png, and the decoders of BMP and TIFF, return as 4-byte pixels. gray16 says that the file is 16-bit grey,
// of which Pillow keeps values below 256 and makes all others 255.
func convertPNG(pix []byte, decoded image.Image, gray16 bool) bool {
	switch m := decoded.(type) {
	case *image.Gray:
		for i, v := range m.Pix {
			put(pix[4*i:], v, v, v)
		}
	case *image.Gray16:
		for i := 0; i < len(m.Pix); i += 2 {
			v := low16(m.Pix[i:])
			put(pix[2*i:], v, v, v)
		}
	case *image.Paletted:
		convertPalette(pix, m)
	case *image.RGBA:
		copy(pix, m.Pix)
	case *image.NRGBA:
		copy(pix, m.Pix)
	case *image.RGBA64:
		highBytes(pix, m.Pix, false)
	case *image.NRGBA64:
		highBytes(pix, m.Pix, gray16)
	default:
		return false
	}
	return true
}

func put(pix []byte, r, g, b byte) {
	_ = pix[3]
	pix[0], pix[1], pix[2], pix[3] = r, g, b, 255
}

func low16(v []byte) byte {
	if v[0] != 0 {
		return 255
	}
	return v[1]
}

// highBytes keeps the high byte of each 16-bit sample. A 16-bit grey image with a transparent value is decoded to this type too.
func highBytes(pix, samples []byte, gray16 bool) {
	for i := range pix {
		pix[i] = samples[2*i]
		if gray16 {
			pix[i] = low16(samples[2*i:])
		}
	}
}

func convertPalette(pix []byte, m *image.Paletted) {
	table := paletteOf(m.Palette)
	for y := range m.Rect.Dy() {
		for x, v := range m.Pix[y*m.Stride : y*m.Stride+m.Rect.Dx()] {
			copy(pix[4*(y*m.Rect.Dx()+x):][:4], table[v][:])
		}
	}
}
