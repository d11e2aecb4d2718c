package imagekernel

import (
	"bytes"
	"compress/zlib"
	"io"
	"math/bits"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/image/ccitt"
	"golang.org/x/image/tiff/lzw"

	"github.com/millrace/millrace/internal/errkind"
)

// Compressions of TIFF.
const (
	tiffRaw        = 1
	tiffG3         = 3
	tiffG4         = 4
	tiffLZW        = 5
	tiffJPEG       = 7
	tiffDeflate    = 8
	tiffPackBits   = 32773
	tiffOldDeflate = 32946
	tiffZstd       = 50000
)

// tiffMostWindow bounds the memory of Zstandard; libtiff's levels stay far below.
const tiffMostWindow = 32 << 20

// tiffBlocks are the strips or tiles of an image, of w×h pixels each, those of each plane after those of the one before.
type tiffBlocks struct {
	w, h, across, down int
	offsets, sizes     []int
}

// blocks reads where the pixels are.
func (l *tiffLayout) blocks() (tiffBlocks, error) {
	var b tiffBlocks
	d := l.d
	if offsets := d.ints(tiffTileOffsets); len(offsets) > 0 {
		b = tiffBlocks{w: d.number(tiffTileWidth, 0), h: d.number(tiffTileHeight, 0), offsets: offsets, sizes: d.ints(tiffTileSizes)}
		// A tile may reach over the edge, but what is unpacked is bound by the image.
		if most := 2*max(l.w, l.h) + 1024; b.w > most || b.h > most || b.w < 1 || b.h < 1 || b.w*l.bits*l.pixelSamples()%8 != 0 {
			return b, errkind.Errorf(errkind.BadData, "TIFF of %dx%d pixels in tiles of %dx%d", l.w, l.h, b.w, b.h)
		}
	} else {
		b = tiffBlocks{w: l.w, h: d.number(tiffRowsPerStrip, l.h), offsets: d.ints(tiffStripOffsets), sizes: d.ints(tiffStripSizes)}
		if b.h = min(b.h, l.h); b.h < 1 {
			return b, errkind.Errorf(errkind.BadData, "TIFF in strips of no rows")
		}
	}
	b.across, b.down = (l.w+b.w-1)/b.w, (l.h+b.h-1)/b.h
	if need := b.across * b.down * l.planes(); len(b.offsets) < need {
		return b, errkind.Errorf(errkind.BadData, "TIFF in %d parts, and its pixels need %d", len(b.offsets), need)
	}
	return b, nil
}

// planes is how many planes are stored one after the other, pixelSamples how many samples a pixel has in each.
func (l *tiffLayout) planes() int {
	if l.planar {
		return l.samples
	}
	return 1
}

func (l *tiffLayout) pixelSamples() int { return l.samples / l.planes() }

// stride is the bytes of a row of w pixels of a plane.
func (l *tiffLayout) stride(w int) int { return (w*l.bits*l.pixelSamples() + 7) / 8 }

// unpack is the rows of all planes, as they are after decompression, each of stride bytes.
func (l *tiffLayout) unpack() ([]byte, error) {
	b, err := l.blocks()
	if err != nil {
		return nil, err
	}
	stride, blockStride := l.stride(l.w), l.stride(b.w)
	out := make([]byte, stride*l.h*l.planes())
	block := make([]byte, blockStride*b.h)
	for i := range b.across * b.down * l.planes() {
		plane, at := i/(b.across*b.down), i%(b.across*b.down)
		x, y := at%b.across*blockStride, at/b.across*b.h
		rows := b.h
		if b.w == l.w {
			rows = min(b.h, l.h-y) // The last strip is short; tiles are whole.
		}
		data, err := l.block(&b, i)
		if err != nil {
			return nil, err
		}
		if err := l.decompress(block[:blockStride*rows], data, b.w, rows); err != nil {
			return nil, err
		}
		l.unpredict(block[:blockStride*rows], b.w, rows)
		for row := range min(rows, l.h-y) {
			to := out[(plane*l.h+y+row)*stride:][x:stride]
			copy(to, block[row*blockStride:(row+1)*blockStride])
		}
	}
	return out, nil
}

// block is the stored bytes of block i.
func (l *tiffLayout) block(b *tiffBlocks, i int) ([]byte, error) {
	file := l.d.file.data
	at := b.offsets[i]
	if at > len(file) {
		return nil, errkind.Errorf(errkind.BadData, "truncated TIFF")
	}
	data := file[at:]
	if i < len(b.sizes) && b.sizes[i] > 0 {
		data = data[:min(b.sizes[i], len(data))]
	}
	if l.fillOrder == 2 {
		data = bytes.Clone(data)
		for i, v := range data {
			data[i] = bits.Reverse8(v)
		}
	}
	return data, nil
}

// decompress fills out, rows of w pixels.
func (l *tiffLayout) decompress(out, data []byte, w, rows int) error {
	var r io.Reader
	switch l.compression {
	case tiffRaw:
		if copy(out, data) < len(out) {
			return errkind.Errorf(errkind.BadData, "truncated TIFF")
		}
		return nil
	case tiffPackBits:
		if unpackRuns(out, data) < len(out) {
			return errkind.Errorf(errkind.BadData, "truncated TIFF")
		}
		return nil
	case tiffLZW:
		lr := lzw.NewReader(bytes.NewReader(data), lzw.MSB, 8)
		defer func() { _ = lr.Close() }()
		r = lr
	case tiffDeflate, tiffOldDeflate:
		zr, err := zlib.NewReader(bytes.NewReader(data))
		if err != nil {
			return damaged(FormatTIFF, err)
		}
		r = zr
	case tiffZstd:
		zr, err := zstd.NewReader(bytes.NewReader(data), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(tiffMostWindow), zstd.WithDecoderLowmem(true))
		if err != nil {
			return damaged(FormatTIFF, err)
		}
		defer zr.Close()
		r = zr
	case tiffG3, tiffG4:
		sub := ccitt.Group4
		if l.compression == tiffG3 {
			sub = ccitt.Group3
			if l.d.number(tiffT4Options, 0)&1 != 0 {
				return errkind.Errorf(errkind.BadData, "TIFF with two-dimensional Group 3 compression, which is not supported")
			}
		}
		r = ccitt.NewReader(bytes.NewReader(data), ccitt.MSB, sub, w, rows, &ccitt.Options{Invert: true})
	default:
		return errkind.Errorf(errkind.BadData, "TIFF with compression %d, which is not supported", l.compression)
	}
	if _, err := io.ReadFull(r, out); err != nil {
		return damaged(FormatTIFF, err)
	}
	return nil
}

// unpackRuns is PackBits. It returns how much of out was filled.
func unpackRuns(out, data []byte) int {
	n := 0
	for len(data) > 0 && n < len(out) {
		count := int(int8(data[0])) //nolint:gosec // The byte is signed.
		data = data[1:]
		switch {
		case count >= 0:
			count = min(count+1, len(data))
			n += copy(out[n:], data[:count])
			data = data[count:]
		case count > -128 && len(data) > 0:
			for range 1 - count {
				if n < len(out) {
					out[n] = data[0]
					n++
				}
			}
			data = data[1:]
		}
	}
	return n
}

// unpredict undoes the differences that some compressions are given instead of samples.
func (l *tiffLayout) unpredict(block []byte, w, rows int) {
	const horizontal, float = 2, 3
	if l.predictor != horizontal && l.predictor != float || l.compression != tiffLZW && l.compression != tiffDeflate && l.compression != tiffOldDeflate && l.compression != tiffZstd {
		return
	}
	stride, step := l.stride(w), l.pixelSamples()
	for y := range rows {
		row := block[y*stride : (y+1)*stride]
		switch {
		case l.predictor == float:
			unpredictFloat(row, step, l.bits/8, l.d.file.big2())
		case l.bits == 8:
			for i := step; i < len(row); i++ {
				row[i] += row[i-step]
			}
		case l.bits == 16:
			for i := 2 * step; i+2 <= len(row); i += 2 {
				l.d.file.order.PutUint16(row[i:], l.d.file.order.Uint16(row[i:])+l.d.file.order.Uint16(row[i-2*step:]))
			}
		case l.bits == 32:
			for i := 4 * step; i+4 <= len(row); i += 4 {
				l.d.file.order.PutUint32(row[i:], l.d.file.order.Uint32(row[i:])+l.d.file.order.Uint32(row[i-4*step:]))
			}
		}
	}
}

// big2 says whether numbers in the file have their high byte first.
func (t *tiffFile) big2() bool { return t.order.Uint16([]byte{0, 1}) == 1 }

// unpredictFloat adds up the bytes of a row and puts those of each number together: they are stored by significance.
func unpredictFloat(row []byte, step, size int, bigEndian bool) {
	if size == 0 {
		return
	}
	for i := step; i < len(row); i++ {
		row[i] += row[i-step]
	}
	bytewise := bytes.Clone(row)
	n := len(row) / size
	for i := range n {
		for b := range size {
			to := i*size + size - 1 - b
			if bigEndian {
				to = i*size + b
			}
			row[to] = bytewise[b*n+i]
		}
	}
}
