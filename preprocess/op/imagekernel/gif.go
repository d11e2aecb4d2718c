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
	opaque, transparent := opaqueGIF(data)
	decoded, err := gif.Decode(bytes.NewReader(opaque))
	if err != nil {
		return damaged(FormatGIF, err)
	}
	m, ok := decoded.(*image.Paletted)
	b := decoded.Bounds()
	if !ok || b.Min.X < 0 || b.Min.Y < 0 || b.Max.X > h.W || b.Max.Y > h.H {
		return wrongSize(FormatGIF, h.W, h.H, b)
	}
	table := paletteOf(m.Palette)
	free := 0
	if transparent >= 0 {
		free = transparent
		table[transparent][3] = 0
	}
	if b.Dx() != h.W || b.Dy() != h.H {
		for i := 0; i < len(pix); i += 4 {
			copy(pix[i:i+4], table[free][:])
		}
	}
	for y := b.Min.Y; y < b.Max.Y; y++ {
		row := m.Pix[(y-b.Min.Y)*m.Stride:]
		for x := range b.Dx() {
			copy(pix[4*(y*h.W+b.Min.X+x):][:4], table[row[x]][:])
		}
	}
	return nil
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
