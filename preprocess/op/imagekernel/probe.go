package imagekernel

import (
	"bytes"
	"encoding/binary"

	"github.com/millrace/millrace/internal/errkind"
)

// formatOf tells the format by a file's first bytes.
func formatOf(data []byte) Format {
	begins := func(mark string) bool { return bytes.HasPrefix(data, []byte(mark)) }
	switch {
	case begins("\xFF\xD8"):
		return FormatJPEG
	case begins(pngSignature):
		return FormatPNG
	case begins("RIFF") && len(data) >= 12 && string(data[8:12]) == "WEBP":
		return FormatWebP
	case begins("GIF87a"), begins("GIF89a"):
		return FormatGIF
	case isTIFF(data):
		return FormatTIFF
	case begins("BM"):
		return FormatBMP
	case isAVIF(data):
		return FormatAVIF
	}
	return FormatUnknown
}

func isTIFF(data []byte) bool {
	_, ok := openTIFF(data)
	return ok
}

// probe reads the header of a file of format f.
func probe(f Format, data []byte) (Header, error) {
	switch f {
	case FormatJPEG:
		return probeJPEG(data)
	case FormatPNG:
		return probePNG(data)
	case FormatWebP:
		return probeWebP(data)
	case FormatGIF:
		return probeGIF(data)
	case FormatBMP:
		return probeBMP(data)
	case FormatTIFF:
		return probeTIFF(data)
	case FormatAVIF:
		return probeAVIF(data)
	case FormatUnknown:
	}
	if len(data) == 0 {
		return Header{}, errkind.Errorf(errkind.BadData, "the image is empty (0 bytes)")
	}
	return Header{}, errkind.Errorf(errkind.BadData, "neither JPEG, PNG, WebP, GIF, BMP, TIFF nor AVIF (it begins with %q)", data[:min(len(data), 8)])
}

// probeGIF reads the size of the screen, which is that of the image.
func probeGIF(data []byte) (Header, error) {
	h := Header{Format: FormatGIF, Orientation: 1, Ended: true}
	if len(data) < 10 {
		return h, truncatedHeader("GIF")
	}
	h.W, h.H = int(binary.LittleEndian.Uint16(data[6:])), int(binary.LittleEndian.Uint16(data[8:]))
	return h, nil
}

// A webpChunk is a place in a WebP file: an identifier and what follows it.
type webpChunk struct {
	id   string
	data []byte
}

// nextChunk splits the first chunk off a sequence; ok is false when there is none that is whole.
func nextChunk(data []byte) (c webpChunk, rest []byte, ok bool) {
	if len(data) < 8 {
		return c, nil, false
	}
	size := int(binary.LittleEndian.Uint32(data[4:]))
	if size > len(data)-8 {
		return c, nil, false
	}
	c = webpChunk{id: string(data[:4]), data: data[8 : 8+size]}
	return c, data[min(8+size+size&1, len(data)):], true
}

// webpFrame is a still image in a WebP file, or the first of an animation: where it lies on the canvas, and its chunks.
type webpFrame struct {
	x, y, w, h int
	alpha      []byte
	hasAlpha   bool
	pixels     webpChunk
}

// webpLayout is what a WebP file holds.
type webpLayout struct {
	w, h        int
	orientation int
	frame       webpFrame
}

// readWebP walks the chunks.
func readWebP(data []byte) (webpLayout, error) {
	l := webpLayout{orientation: 1}
	extended := false
	var exif, xmp []byte
	for rest := data[12:]; ; {
		c, after, ok := nextChunk(rest)
		if !ok {
			break
		}
		rest = after
		switch c.id {
		case "VP8X":
			if len(c.data) < 10 {
				return l, truncatedHeader("WebP")
			}
			extended = true
			l.w, l.h = 1+uint24(c.data[4:]), 1+uint24(c.data[7:])
		case "ANMF":
			if l.frame.pixels.id == "" && len(c.data) >= 16 {
				l.frame.x, l.frame.y = 2*uint24(c.data), 2*uint24(c.data[3:])
				l.frame.w, l.frame.h = 1+uint24(c.data[6:]), 1+uint24(c.data[9:])
				for inner := c.data[16:]; ; {
					part, left, ok := nextChunk(inner)
					if !ok {
						break
					}
					inner = left
					l.frame.take(part)
				}
			}
		case "EXIF":
			exif = bytes.TrimPrefix(c.data, []byte("Exif\x00\x00"))
		case "XMP ":
			xmp = c.data
		default:
			l.frame.take(c)
		}
	}
	l.orientation = orientationOf(exif, xmp)
	if l.frame.pixels.id == "" {
		return l, errkind.Errorf(errkind.BadData, "truncated WebP, no image in it is complete")
	}
	w, h := l.frame.pixels.size()
	if l.frame.w == 0 {
		l.frame.w, l.frame.h = w, h
	}
	if !extended {
		l.w, l.h = w, h
	}
	if f := l.frame; w <= 0 || h <= 0 || f.w != w || f.h != h || f.x+w > l.w || f.y+h > l.h {
		return l, errkind.Errorf(errkind.BadData, "damaged WebP: an image of %dx%d pixels in a canvas of %dx%d", w, h, l.w, l.h)
	}
	return l, nil
}

// take keeps the first pixels and the alpha before them.
func (f *webpFrame) take(c webpChunk) {
	if f.pixels.id != "" {
		return
	}
	switch c.id {
	case "ALPH":
		f.alpha, f.hasAlpha = c.data, true
	case "VP8 ", "VP8L":
		f.pixels = c
	}
}

// size is the width and height in a header of pixels, 0 when there is none.
func (c webpChunk) size() (w, h int) {
	const part = 1<<14 - 1
	switch {
	case c.id == "VP8 " && len(c.data) >= 10:
		return int(binary.LittleEndian.Uint16(c.data[6:])) & part, int(binary.LittleEndian.Uint16(c.data[8:])) & part
	case c.id == "VP8L" && len(c.data) >= 5:
		bits := int(binary.LittleEndian.Uint32(c.data[1:]))
		return 1 + bits&part, 1 + bits>>14&part
	}
	return 0, 0
}

func uint24(p []byte) int { return int(p[0]) | int(p[1])<<8 | int(p[2])<<16 }

func probeWebP(data []byte) (Header, error) {
	h := Header{Format: FormatWebP, Ended: true}
	l, err := readWebP(data)
	h.W, h.H, h.Orientation = l.w, l.h, l.orientation
	return h, err
}
