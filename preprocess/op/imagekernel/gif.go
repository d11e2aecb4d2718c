package imagekernel

import (
	"bytes"
	"image"
	"image/color"
	"image/gif"
)

// decodeGIF writes the first image of a GIF, on its screen, as 4-byte pixels. What the image leaves free is its
// transparent colour, else the first of its palette, as in Pillow.
func decodeGIF(data, pix []byte, h Header) error {
	m, transparent, err := readGIF(data, h)
	if err != nil {
		return err
	}
	table := paletteOf(m.Palette)
	if transparent >= 0 {
		table[transparent][3] = 0
	}
	for y := range h.H {
		for x := range h.W {
			copy(pix[4*(y*h.W+x):][:4], table[screenIndex(m, x, y, transparent)][:])
		}
	}
	return nil
}

// readGIF is the first image, within the screen, and its transparent colour, -1 for none.
func readGIF(data []byte, h Header) (m *image.Paletted, transparent int, err error) {
	opaque, transparent := opaqueGIF(data)
	decoded, err := gif.Decode(bytes.NewReader(opaque))
	if err != nil {
		return nil, 0, damaged(FormatGIF, err)
	}
	m, ok := decoded.(*image.Paletted)
	b := decoded.Bounds()
	if !ok || b.Min.X < 0 || b.Min.Y < 0 || b.Max.X > h.W || b.Max.Y > h.H {
		return nil, 0, wrongSize(FormatGIF, h.W, h.H, b)
	}
	return m, transparent, nil
}

// screenIndex is the colour at a place of the screen.
func screenIndex(m *image.Paletted, x, y, transparent int) uint8 {
	if (image.Point{X: x, Y: y}).In(m.Rect) {
		return m.Pix[m.PixOffset(x, y)]
	}
	return uint8(max(transparent, 0)) //nolint:gosec // A byte of the file.
}

// opaqueGIF is data without the marks of transparent colours before its first image, since the decoder would blank
// those colours, and the one that was marked, -1 for none.
func opaqueGIF(data []byte) (opaque []byte, transparent int) {
	const (
		screen                       = 13
		extension, control, fixedLen = 0x21, 0xF9, 4
	)
	transparent = -1
	at := screen
	if len(data) < screen {
		return data, transparent
	}
	if flags := data[10]; flags&0x80 != 0 {
		at += 3 << (1 + flags&7)
	}
	opaque = data
	for at+7 < len(data) && data[at] == extension {
		if data[at+1] == control && data[at+2] == fixedLen && data[at+3]&1 != 0 {
			if transparent < 0 {
				opaque = bytes.Clone(data)
			}
			opaque[at+3] &^= 1
			transparent = int(data[at+6])
		}
		for at += 2; at < len(data) && data[at] != 0; {
			at += 1 + int(data[at])
		}
		at++
	}
	return opaque, transparent
}

// paletteOf is a palette as 4-byte pixels. Entries that it lacks are black.
func paletteOf(p color.Palette) *[256][4]byte {
	var table [256][4]byte
	for i := range table {
		table[i][3] = 255
	}
	for i, c := range p[:min(len(p), len(table))] {
		rgb := rgbOf(c)
		_, _, _, a := c.RGBA()
		table[i] = [4]byte{rgb[0], rgb[1], rgb[2], byte(a >> 8)} //nolint:gosec // RGBA gives 16 bits.
	}
	return &table
}
