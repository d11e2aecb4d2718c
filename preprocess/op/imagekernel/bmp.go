package imagekernel

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/millrace/millrace/internal/errkind"
)

// Kinds of compression of a BMP.
const (
	bmpRaw = iota
	bmpRLE8
	bmpRLE4
	bmpMasks
)

// bmpHeader is what stands before the pixels of a BMP, of Windows or of OS/2.
type bmpHeader struct {
	w, h        int
	topDown     bool
	bits        int
	compression uint32
	// masks are red, green, blue and alpha.
	masks [4]uint32
	// colors is the number of entries of the palette, each of entry bytes, from paletteAt on.
	colors, entry, paletteAt int
	// pixelsAt is where pixels begin.
	pixelsAt int
}

// readBMP reads the headers as Pillow does, which also knows which combinations there are.
func readBMP(data []byte) (bmpHeader, error) {
	const fileHeader, coreHeader = 14, 12
	var b bmpHeader
	if len(data) < fileHeader+coreHeader {
		return b, truncatedHeader("BMP")
	}
	size := int(binary.LittleEndian.Uint32(data[fileHeader:]))
	if !slices.Contains([]int{coreHeader, 40, 52, 56, 64, 108, 124}, size) {
		return b, errkind.Errorf(errkind.BadData, "BMP with a header of %d bytes, which no kind of BMP has", size)
	}
	if len(data) < fileHeader+size {
		return b, truncatedHeader("BMP")
	}
	header := data[fileHeader+4 : fileHeader+size]
	b.paletteAt = fileHeader + size
	if size == coreHeader {
		b.w, b.h = int(binary.LittleEndian.Uint16(header)), int(binary.LittleEndian.Uint16(header[2:]))
		b.bits, b.entry = int(binary.LittleEndian.Uint16(header[6:])), 3
	} else {
		b.info(header, data)
	}
	if !slices.Contains([]int{1, 4, 8, 16, 24, 32}, b.bits) {
		return b, errkind.Errorf(errkind.BadData, "BMP of %d bits a pixel, which no BMP has", b.bits)
	}
	if b.colors == 0 && b.bits <= 8 {
		b.colors = 1 << b.bits
	}
	b.pixelsAt = int(binary.LittleEndian.Uint32(data[10:]))
	if b.bits <= 8 && b.pixelsAt == fileHeader+size {
		b.pixelsAt += b.entry * b.colors
	}
	if b.pixelsAt == 0 {
		b.pixelsAt = b.paletteAt
		if b.bits <= 8 {
			b.pixelsAt += b.entry * b.colors
		}
	}
	return b, nil
}

// info reads a header of Windows 3 or later.
func (b *bmpHeader) info(header, data []byte) {
	b.w = int(binary.LittleEndian.Uint32(header))
	height := binary.LittleEndian.Uint32(header[4:])
	if b.topDown = header[7] == 0xFF; b.topDown {
		height = -height
	}
	b.h = int(height)
	b.bits = int(binary.LittleEndian.Uint16(header[10:]))
	b.compression = binary.LittleEndian.Uint32(header[12:])
	b.colors = int(min(binary.LittleEndian.Uint32(header[28:]), math.MaxInt32))
	b.entry = 4
	if b.compression != bmpMasks {
		return
	}
	masks := data[b.paletteAt:]
	count := 3
	if len(header) >= 48 {
		masks = header[36:]
		if len(header) >= 52 {
			count = 4
		}
	} else {
		b.paletteAt += 12
	}
	for i := range count {
		if len(masks) >= 4*i+4 {
			b.masks[i] = binary.LittleEndian.Uint32(masks[4*i:])
		}
	}
}

func probeBMP(data []byte) (Header, error) {
	b, err := readBMP(data)
	return Header{Format: FormatBMP, W: b.w, H: b.h, Orientation: 1, Ended: true}, err
}

// decodeBMP decodes all kinds of BMP that Pillow reads.
func decodeBMP(data []byte, h Header) (raster, error) {
	b, err := readBMP(data)
	if err != nil {
		return raster{}, err
	}
	if b.w != h.W || b.h != h.H || b.pixelsAt > len(data) {
		return raster{}, errkind.Errorf(errkind.BadData, "truncated BMP")
	}
	switch {
	case b.compression == bmpRLE8 && b.bits <= 8, b.compression == bmpRLE4 && b.bits <= 8:
		p := newRaster(b.w, b.h, sampleGray)
		if !b.runs(p.pix, data) {
			return p, errkind.Errorf(errkind.BadData, "truncated BMP")
		}
		return b.indexed(data, p)
	case b.bits <= 8 && b.compression == bmpRaw:
		p := newRaster(b.w, b.h, sampleGray)
		err := b.rows(data, func(y int, row []byte) {
			unpackBits(p.pix[y*b.w:(y+1)*b.w], row, b.bits)
		})
		if err != nil {
			return p, err
		}
		return b.indexed(data, p)
	case b.bits > 8:
		return b.direct(data)
	}
	return raster{}, errkind.Errorf(errkind.BadData, "BMP of %d bits a pixel with compression %d, which is not supported", b.bits, b.compression)
}

// rows calls use for each row as it is stored, by its place in the image.
func (b *bmpHeader) rows(data []byte, use func(y int, row []byte)) error {
	stride := (b.w*b.bits + 31) / 32 * 4
	pixels := data[b.pixelsAt:]
	need := stride*(b.h-1) + (b.w*b.bits+7)/8
	if len(pixels) < need {
		return errkind.Errorf(errkind.BadData, "truncated BMP")
	}
	for i := range b.h {
		y := b.h - 1 - i
		if b.topDown {
			y = i
		}
		use(y, pixels[i*stride:])
	}
	return nil
}

// unpackBits writes samples of 1, 2, 4 or 8 bits as a byte each, the high bits first.
func unpackBits(out, row []byte, bits int) {
	if bits == 8 {
		copy(out, row)
		return
	}
	per, mask := 8/bits, byte(1<<bits-1)
	for x := range out {
		out[x] = row[x/per] >> (8 - bits - x%per*bits) & mask
	}
}

// indexed gives p, which holds indices, its palette. One that is just the greys in order is dropped, as in Pillow.
func (b *bmpHeader) indexed(data []byte, p raster) (raster, error) {
	const mostColors = 1 << 16
	if b.colors <= 0 || b.colors > mostColors {
		return p, errkind.Errorf(errkind.BadData, "BMP with a palette of %d colours", b.colors)
	}
	var table [256][4]byte
	gray, step := true, 1
	if b.colors == 2 {
		step = 255
	}
	for i := range b.colors {
		at := b.paletteAt + i*b.entry
		var c [3]byte // Entries that the file lacks are black.
		if at+b.entry <= len(data) {
			copy(c[:], data[at:])
		}
		gray = gray && c == [3]byte{byte(i * step), byte(i * step), byte(i * step)} && i*step < 256 //nolint:gosec // Checked at the end of the line.
		if i < len(table) {
			table[i] = [4]byte{c[2], c[1], c[0], 255}
		}
	}
	for i := b.colors; i < len(table); i++ {
		table[i] = [4]byte{0, 0, 0, 255}
	}
	switch {
	case gray && b.colors == 2 && b.bits == 1:
		for i, v := range p.pix {
			p.pix[i] = -v
		}
	case gray && b.bits == 8:
	case b.colors > len(table):
		return p, errkind.Errorf(errkind.BadData, "BMP with a palette of %d colours", b.colors)
	default:
		p.kind, p.palette = sampleIndex, &table
	}
	return p, nil
}

// direct decodes pixels of 16, 24 or 32 bits.
func (b *bmpHeader) direct(data []byte) (raster, error) {
	order, alpha, err := b.channels()
	if err != nil {
		return raster{}, err
	}
	p := newRaster(b.w, b.h, sampleColor)
	size := b.bits / 8
	err = b.rows(data, func(y int, row []byte) {
		for x := range b.w {
			out, in := p.pix[4*(y*b.w+x):], row[x*size:]
			if b.bits == 16 {
				v := uint32(in[0]) | uint32(in[1])<<8
				green := uint32(0x1F)
				if b.masks[1] == 0x7E0 {
					green = 0x3F
				}
				red := v >> 10 & 0x1F
				if green == 0x3F {
					red = v >> 11 & 0x1F
				}
				put(out, byte(red*255/0x1F), byte(v>>5&green*255/green), byte(v&0x1F*255/0x1F)) //nolint:gosec // Fractions of 255.
				continue
			}
			put(out, in[order[0]], in[order[1]], in[order[2]])
			if alpha >= 0 {
				out[3] = in[alpha]
			}
		}
	})
	return p, err
}

// channels is where red, green and blue lie in a pixel, and alpha, which is -1 when there is none.
func (b *bmpHeader) channels() (order [3]int, alpha int, err error) {
	m := b.masks
	const low, second, third, high = 0xFF, 0xFF00, 0xFF0000, 0xFF000000
	switch {
	case b.compression == bmpRaw:
		return [3]int{2, 1, 0}, -1, nil
	case b.compression != bmpMasks:
	case b.bits == 16 && ([3]uint32(m[:3]) == [3]uint32{0xF800, 0x7E0, 0x1F} || [3]uint32(m[:3]) == [3]uint32{0x7C00, 0x3E0, 0x1F}),
		b.bits == 24 && [3]uint32(m[:3]) == [3]uint32{third, second, low}:
		return [3]int{2, 1, 0}, -1, nil
	case b.bits == 32:
		for _, known := range []struct {
			masks [4]uint32
			order [3]int
			alpha int
		}{
			{[4]uint32{third, second, low, 0}, [3]int{2, 1, 0}, -1},
			{[4]uint32{high, third, second, 0}, [3]int{3, 2, 1}, -1},
			{[4]uint32{high, second, low, 0}, [3]int{3, 1, 0}, -1},
			{[4]uint32{high, third, second, low}, [3]int{3, 2, 1}, 0},
			{[4]uint32{low, second, third, high}, [3]int{0, 1, 2}, 3},
			{[4]uint32{third, second, low, high}, [3]int{2, 1, 0}, 3},
			{[4]uint32{high, second, low, third}, [3]int{3, 1, 0}, 2},
			{[4]uint32{}, [3]int{2, 1, 0}, 3},
		} {
			if m == known.masks {
				return known.order, known.alpha, nil
			}
		}
	}
	return order, -1, errkind.Errorf(errkind.BadData, "BMP of %d bits a pixel with compression %d and masks %x, which is not supported", b.bits, b.compression, m)
}

// runs unpacks run lengths to indices. It is false when there are too few.
func (b *bmpHeader) runs(out, data []byte) bool {
	r := bmpRuns{data: data, at: b.pixelsAt, w: b.w, nibbles: b.compression == bmpRLE4, out: out}
	for r.n < len(out) && r.at+2 <= len(data) {
		count, v := int(data[r.at]), data[r.at+1]
		r.at += 2
		if count > 0 {
			r.repeat(count, v)
		} else if !r.escape(v) {
			break
		}
	}
	if r.n < len(out) {
		return false
	}
	if !b.topDown {
		for top, bottom := 0, b.h-1; top < bottom; top, bottom = top+1, bottom-1 {
			upper, lower := out[top*b.w:(top+1)*b.w], out[bottom*b.w:(bottom+1)*b.w]
			for i := range upper {
				upper[i], lower[i] = lower[i], upper[i]
			}
		}
	}
	return true
}

// bmpRuns is run lengths on their way: n pixels are written, x is the place in the row.
type bmpRuns struct {
	data    []byte
	at      int
	w       int
	nibbles bool
	out     []byte
	n, x    int
}

func (r *bmpRuns) add(v byte) {
	if r.n < len(r.out) {
		r.out[r.n] = v
		r.n++
	}
}

func (r *bmpRuns) repeat(count int, v byte) {
	count = min(count, max(r.w-r.x, 0))
	for i := range count {
		switch {
		case !r.nibbles:
			r.add(v)
		case i%2 == 0:
			r.add(v >> 4)
		default:
			r.add(v & 15)
		}
	}
	r.x += count
}

// escape does what follows a zero. It is false at the end of the bitmap.
func (r *bmpRuns) escape(v byte) bool {
	switch v {
	case 0:
		for r.n%r.w != 0 {
			r.add(0)
		}
		r.x = 0
	case 1:
		return false
	case 2:
		if r.at+2 > len(r.data) {
			return false
		}
		for range int(r.data[r.at]) + int(r.data[r.at+1])*r.w {
			r.add(0)
		}
		r.at += 2
		r.x = r.n % r.w
	default:
		return r.literal(int(v))
	}
	return true
}

// literal copies count pixels, padded to an even place in the file.
func (r *bmpRuns) literal(count int) bool {
	pixels := min(count, len(r.out)-r.n)
	size := pixels
	if r.nibbles {
		size = (pixels + 1) / 2
	}
	if r.at+size > len(r.data) {
		return false
	}
	for i := range pixels {
		switch {
		case !r.nibbles:
			r.add(r.data[r.at+i])
		case i%2 == 0:
			r.add(r.data[r.at+i/2] >> 4)
		default:
			r.add(r.data[r.at+i/2] & 15)
		}
	}
	r.x += count
	r.at += size + (r.at+size)%2
	return r.n < len(r.out)
}
