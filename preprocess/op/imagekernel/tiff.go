package imagekernel

import (
	"encoding/binary"
	"math"

	"github.com/millrace/millrace/internal/errkind"
)

// decodeTIFF decodes the first image of all kinds of TIFF that Pillow reads, but those with colours in L*a*b* or YCbCr
// (JPEG's excepted), and those compressed by LZMA, WebP, CCITT's older methods or JPEG's first.
func decodeTIFF(data []byte, h Header) (raster, error) {
	file, ok := openTIFF(data)
	if !ok {
		return raster{}, truncatedHeader("TIFF")
	}
	d, err := file.directory()
	if err != nil {
		return raster{}, err
	}
	l, err := readTIFFLayout(&d)
	if err != nil {
		return raster{}, err
	}
	kind, ok := l.kind()
	if !ok || l.w != h.W || l.h != h.H {
		return raster{}, l.unsupported()
	}
	p := newRaster(l.w, l.h, kind)
	if l.compression == tiffJPEG {
		return p, l.jpeg(&p)
	}
	raw, err := l.unpack()
	if err != nil {
		return p, err
	}
	if kind == sampleIndex || kind == sampleIndexAlpha {
		if p.palette = l.colorMap(); p.palette == nil {
			return p, errkind.Errorf(errkind.BadData, "truncated TIFF, its palette is missing")
		}
	}
	l.fill(&p, raw)
	return p, nil
}

// colorMap is the palette, nil when there is none.
func (l *tiffLayout) colorMap() *[256][4]byte {
	var table [256][4]byte
	values := l.d.ints(tiffColorMap)
	n := len(values) / 3
	if n == 0 {
		return nil
	}
	for i := range table {
		table[i] = [4]byte{0, 0, 0, 255}
		for c := range 3 {
			if i < n {
				table[i][c] = byte(values[c*n+i] / 256) //nolint:gosec // Values have 16 bits.
			}
		}
	}
	return &table
}

// fill turns unpacked rows into pixels.
func (l *tiffLayout) fill(p *raster, raw []byte) {
	stride := l.stride(l.w)
	row := make([]byte, l.w*l.samples)
	for y := range l.h {
		switch p.kind {
		case sampleGray, sampleIndex:
			in := raw[y*stride:]
			if l.bits == 8 {
				for x := range l.w {
					row[x] = in[x*l.pixelSamples()]
				}
			} else {
				unpackBits(row[:l.w], in, l.bits)
			}
			l.gray(p.pix[y*l.w:(y+1)*l.w], row, p.kind)
		case sampleGray16:
			l.wide(p.pix[2*y*l.w:], raw[y*stride:])
		case sampleInt32, sampleFloat32:
			l.words(p.pix[4*y*l.w:], raw[y*stride:])
		default:
			l.highBytes(row, raw, y)
			l.colors(p.pix[y*l.w*p.kind.size():], row, p.kind)
		}
	}
}

// gray brings samples to bytes from black to white, or leaves them as indices.
func (l *tiffLayout) gray(out, row []byte, kind sample) {
	for x := range out {
		v := row[x]
		if kind == sampleGray && l.bits < 8 {
			v *= byte(255 / (1<<l.bits - 1))
		}
		if l.photometric == tiffWhiteIsZero {
			v = 255 - v
		}
		out[x] = v
	}
}

// wide brings samples of 12 or 16 bits to little-endian ones of 16.
func (l *tiffLayout) wide(out, in []byte) {
	for x := range l.w {
		v := uint16(0)
		switch {
		case l.bits == 16:
			v = l.d.file.order.Uint16(in[2*x:])
		case x&1 == 0:
			v = uint16(in[x/2*3])<<4 | uint16(in[x/2*3+1])>>4
		default:
			v = uint16(in[x/2*3+1]&15)<<8 | uint16(in[x/2*3+2])
		}
		binary.LittleEndian.PutUint16(out[2*x:], v)
	}
}

// words brings integers and floats to little-endian ones of 32 bits.
func (l *tiffLayout) words(out, in []byte) {
	for x := range l.w {
		var v uint32
		if l.bits == 16 {
			v = uint32(int32(int16(l.d.file.order.Uint16(in[2*x:])))) //nolint:gosec // The sign is kept.
		} else {
			v = l.d.file.order.Uint32(in[4*x:])
		}
		binary.LittleEndian.PutUint32(out[4*x:], v)
	}
}

// highBytes is row y, of one or several planes, with one byte a sample.
func (l *tiffLayout) highBytes(row, raw []byte, y int) {
	size := l.bits / 8
	high := 0
	if size == 2 && !l.d.file.big2() {
		high = 1
	}
	stride, per := l.stride(l.w), l.pixelSamples()
	for plane := range l.planes() {
		in := raw[(plane*l.h+y)*stride:]
		for i := range l.w * per {
			row[i/per*l.samples+plane+i%per] = in[i*size+high]
		}
	}
}

// colors brings samples of a byte to pixels.
func (l *tiffLayout) colors(out, row []byte, kind sample) {
	const associated = 1
	for x := range l.w {
		in, to := row[x*l.samples:(x+1)*l.samples], out[x*kind.size():]
		switch {
		case kind == sampleIndexAlpha:
			copy(to, in[:2])
		case kind == sampleInk:
			copy(to, in[:4])
		case l.samples == 2:
			put(to, in[0], in[0], in[0])
			if l.extra[0] != 0 {
				to[3] = in[1]
			}
		case l.samples == 3 || len(l.extra) > 0 && l.extra[0] == 0:
			put(to, in[0], in[1], in[2])
		default:
			copy(to, in[:4])
			if len(l.extra) > 0 && l.extra[0] == associated {
				divideAlpha(to)
			}
		}
	}
}

// divideAlpha undoes a multiplication of the colours by alpha, as Pillow does when it reads.
func divideAlpha(p []byte) {
	a := int(p[3])
	for c := range 3 {
		switch a {
		case 0:
			p[c] = 0
		case math.MaxUint8:
		default:
			p[c] = byte(min(int(p[c])*255/a, 255)) //nolint:gosec // A fraction of 255.
		}
	}
}

// jpeg decodes strips or tiles that are JPEGs, whose tables may be kept apart.
func (l *tiffLayout) jpeg(p *raster) error {
	b, err := l.blocks()
	if err != nil {
		return err
	}
	if l.planar && l.samples > 1 {
		return errkind.Errorf(errkind.BadData, "TIFF with a JPEG for each plane, which is not supported")
	}
	tables, _ := l.d.bytes(tiffJPEGTables)
	kernel := New(DefaultLimits())
	defer kernel.Close()
	block := make([]byte, 0)
	for i := range b.across * b.down {
		data, err := l.block(&b, i)
		if err != nil {
			return err
		}
		data = l.wholeJPEG(tables, data)
		header, err := Probe(data, DefaultLimits())
		if err != nil {
			return err
		}
		x, y := i%b.across*b.w, i/b.across*b.h
		w, h := min(b.w, l.w-x), min(b.h, l.h-y)
		if header.W < w || header.W > b.w || header.H < h || header.H > b.h || header.Components != l.samples {
			return errkind.Errorf(errkind.BadData, "TIFF with a JPEG of %dx%d pixels for a part of %dx%d", header.W, header.H, w, h)
		}
		size := p.kind.size()
		channels := min(size, 3)
		block = grow(block, w*h*channels)
		whole := Rect{W: w, H: h}
		err = kernel.Run(&Job{
			JPEG: data, Header: header, Ink: p.kind == sampleInk, Crop: whole, ResizeW: w, ResizeH: h, Window: whole, Visible: whole, Channels: channels, Dst: block,
		})
		if err != nil {
			return err
		}
		for row := range h {
			for column := range w {
				to := p.pix[((y+row)*l.w+x+column)*size:]
				copy(to, block[(row*w+column)*channels:][:channels])
				if size == 4 {
					to[3] = 255
				}
			}
		}
	}
	if p.kind == sampleInk {
		p.kind = sampleColor // The kernel has mixed the inks.
	}
	return nil
}

// wholeJPEG is a strip as a JPEG of its own: with the tables, and a marker that says which colours it has.
func (l *tiffLayout) wholeJPEG(tables, data []byte) []byte {
	transform := byte(0)
	if l.photometric == tiffYCbCr {
		transform = 1
	}
	out := append([]byte{0xFF, 0xD8, 0xFF, 0xEE, 0, 14}, "Adobe\x00\x64\x00\x00\x00\x00"...)
	out = append(out, transform)
	if len(tables) > 4 {
		out = append(out, tables[2:len(tables)-2]...)
	}
	if len(data) > 2 {
		out = append(out, data[2:]...)
	}
	return out
}
