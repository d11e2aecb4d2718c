package imagekernel

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/millrace/millrace/internal/errkind"
)

// Format is a file format of images.
type Format uint8

const (
	// FormatUnknown is the zero Format.
	FormatUnknown Format = iota
	// FormatJPEG is JPEG.
	FormatJPEG
	// FormatPNG is PNG.
	FormatPNG
	// FormatWebP is WebP, lossy, lossless or animated.
	FormatWebP
	// FormatGIF is GIF.
	FormatGIF
	// FormatBMP is BMP.
	FormatBMP
	// FormatTIFF is TIFF.
	FormatTIFF
	// FormatAVIF is AVIF, one image or a sequence.
	FormatAVIF
)

// Header is what an encoded image says of itself before its pixels.
type Header struct {
	Format Format
	// W and H are as stored, before any orientation.
	W, H int
	// Components is the number of colour components of a JPEG, or of an AVIF with its alpha.
	Components int
	// Progressive says that a JPEG's pixels come in refining scans.
	Progressive bool
	// Orientation is EXIF's, 1 (upright) to 8. Upright says that it belongs to the pixels and is always undone.
	Orientation int
	Upright     bool
	// Ended says that the file has its end marker.
	Ended bool
}

// Size is the width and height, of the upright image if orient.
func (h Header) Size(orient bool) (width, height int) {
	if (orient || h.Upright) && h.Orientation >= 5 {
		return h.H, h.W
	}
	return h.W, h.H
}

// Scratch is the bytes that decoding takes, roughly, beside what it makes: the whole image, but of a JPEG whose rows come one
// after the other.
func (h Header) Scratch() int64 {
	pixels := int64(h.W) * int64(h.H)
	switch {
	case h.Format != FormatJPEG:
		return 12 * pixels // what its decoder makes of it, and four bytes a pixel
	case h.Progressive:
		return 2 * int64(h.Components) * pixels
	}
	return 0
}

// xmpNamespace begins the segment of a JPEG that holds XMP.
const xmpNamespace = "http://ns.adobe.com/xap/1.0/\x00"

const pngSignature = "\x89PNG\r\n\x1a\n"

// Probe reads the header of an encoded image and checks limits. It looks at no pixel and, of JPEG and PNG,
// allocates only for errors.
func Probe(data []byte, limits Limits) (Header, error) {
	if len(data) > limits.EncodedBytes {
		return Header{}, errkind.Errorf(errkind.Exhausted, "image has %d encoded bytes, the limit is %d", len(data), limits.EncodedBytes)
	}
	h, err := probe(formatOf(data), data)
	if err != nil {
		return Header{}, err
	}
	return h, h.check(limits)
}

func (h Header) check(limits Limits) error {
	if h.W <= 0 || h.H <= 0 {
		return errkind.Errorf(errkind.BadData, "image of %dx%d pixels", h.W, h.H)
	}
	if h.W > limits.Dimension || h.H > limits.Dimension {
		return errkind.Errorf(errkind.Exhausted, "image of %dx%d pixels, the limit on each side is %d", h.W, h.H, limits.Dimension)
	}
	if long := max(h.W, h.H); long > limits.Aspect*min(h.W, h.H) {
		return errkind.Errorf(errkind.Exhausted, "image of %dx%d pixels, the limit is a longer side of %d times the shorter one", h.W, h.H, limits.Aspect)
	}
	pixels := int64(h.W) * int64(h.H)
	if pixels > limits.Pixels {
		return errkind.Errorf(errkind.Exhausted, "image of %dx%d = %d pixels, the limit is %d", h.W, h.H, pixels, limits.Pixels)
	}
	if h.Progressive && pixels > limits.ProgressivePixels {
		return errkind.Errorf(errkind.Exhausted, "progressive image of %dx%d = %d pixels, the limit is %d", h.W, h.H, pixels, limits.ProgressivePixels)
	}
	return nil
}

// probeJPEG walks the markers up to the first scan.
func probeJPEG(data []byte) (Header, error) {
	h := Header{Format: FormatJPEG, Orientation: 1}
	var exif, xmp []byte
	for at := 2; ; {
		skip := bytes.IndexByte(data[at:], 0xFF)
		if skip < 0 {
			return h, truncatedHeader("JPEG")
		}
		at += skip
		for at < len(data) && data[at] == 0xFF {
			at++
		}
		if at >= len(data) {
			return h, truncatedHeader("JPEG")
		}
		marker := data[at]
		at++
		if marker == 0 || marker == 0x01 || marker >= 0xD0 && marker <= 0xD8 {
			continue
		}
		if marker == 0xD9 {
			return h, errkind.Errorf(errkind.BadData, "JPEG ends before its first scan")
		}
		if at+2 > len(data) {
			return h, truncatedHeader("JPEG")
		}
		size := int(binary.BigEndian.Uint16(data[at:]))
		if size < 2 || at+size > len(data) {
			return h, truncatedHeader("JPEG")
		}
		segment := data[at+2 : at+size]
		at += size
		switch {
		case marker == 0xDA:
			if h.W == 0 {
				return h, errkind.Errorf(errkind.BadData, "JPEG has a scan before its frame header")
			}
			h.Ended = bytes.LastIndex(data[at:], []byte{0xFF, 0xD9}) >= 0
			h.Orientation = orientationOf(exif, xmp)
			return h, nil
		case marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC:
			if err := h.frame(marker, segment); err != nil {
				return h, err
			}
		case marker == 0xE1 && exif == nil && bytes.HasPrefix(segment, []byte("Exif\x00\x00")):
			exif = segment[6:]
		case marker == 0xE1 && bytes.HasPrefix(segment, []byte(xmpNamespace)):
			xmp = segment[len(xmpNamespace):]
		}
	}
}

func truncatedHeader(format string) error {
	return errkind.Errorf(errkind.BadData, "truncated %s, the header is incomplete", format)
}

// frame reads a frame header (SOFn).
func (h *Header) frame(marker byte, segment []byte) error {
	if len(segment) < 6 {
		return truncatedHeader("JPEG")
	}
	if h.W != 0 {
		return errkind.Errorf(errkind.BadData, "JPEG has two frame headers")
	}
	if segment[0] != 8 {
		return errkind.Errorf(errkind.BadData, "JPEG of %d bits per sample; only 8 are supported", segment[0])
	}
	h.H, h.W = int(binary.BigEndian.Uint16(segment[1:])), int(binary.BigEndian.Uint16(segment[3:]))
	h.Components = int(segment[5])
	h.Progressive = marker&3 == 2
	if h.W == 0 || h.H == 0 {
		return errkind.Errorf(errkind.BadData, "JPEG of %dx%d pixels", h.W, h.H)
	}
	return nil
}

// probePNG reads IHDR and walks the chunks.
func probePNG(data []byte) (Header, error) {
	h := Header{Format: FormatPNG, Orientation: 1}
	const ihdr = 8 + 8 + 13
	if len(data) < ihdr || string(data[12:16]) != "IHDR" {
		return h, truncatedHeader("PNG")
	}
	w, hgt := binary.BigEndian.Uint32(data[16:]), binary.BigEndian.Uint32(data[20:])
	if w > 1<<31-1 || hgt > 1<<31-1 {
		return h, errkind.Errorf(errkind.BadData, "PNG of %dx%d pixels", w, hgt)
	}
	h.W, h.H = int(w), int(hgt)
	var metadata pngMetadata
	for at := 8; at+12 <= len(data); {
		size := int(binary.BigEndian.Uint32(data[at:]))
		if size > len(data)-at-12 {
			break
		}
		switch id := string(data[at+4 : at+8]); id {
		case "eXIf", "tEXt", "zTXt", "iTXt":
			metadata.take(id, data[at+8:at+8+size])
		case "IEND":
			h.Ended = true
		}
		at += size + 12
	}
	h.Orientation = metadata.orientation()
	return h, nil
}

// String is the format's name in messages.
func (f Format) String() string {
	names := [...]string{"unknown", "JPEG", "PNG", "WebP", "GIF", "BMP", "TIFF", "AVIF"}
	if int(f) < len(names) {
		return names[f]
	}
	return fmt.Sprintf("Format(%d)", uint8(f))
}
