package imagekernel

import "image/color"

// rgbOf is the stored colour of a palette entry, whatever its alpha.
func rgbOf(c color.Color) [3]byte {
	switch c := c.(type) {
	case color.RGBA:
		return [3]byte{c.R, c.G, c.B}
	case color.NRGBA:
		return [3]byte{c.R, c.G, c.B}
	}
	r, g, b, _ := c.RGBA()
	return [3]byte{byte(r >> 8), byte(g >> 8), byte(b >> 8)} //nolint:gosec // RGBA gives 16 bits.
}
