package imagekernel

import (
	"encoding/binary"
	"math"

	"github.com/millrace/millrace/internal/errkind"
)

// Tags of a TIFF directory.
const (
	tiffWidth           = 256
	tiffHeight          = 257
	tiffBits            = 258
	tiffCompression     = 259
	tiffPhotometric     = 262
	tiffFillOrder       = 266
	tiffStripOffsets    = 273
	tiffOrientation     = 274
	tiffSamples         = 277
	tiffRowsPerStrip    = 278
	tiffStripSizes      = 279
	tiffPlanar          = 284
	tiffT4Options       = 292
	tiffPredictor       = 317
	tiffColorMap        = 320
	tiffTileWidth       = 322
	tiffTileHeight      = 323
	tiffTileOffsets     = 324
	tiffTileSizes       = 325
	tiffExtraSamples    = 338
	tiffSampleFormat    = 339
	tiffJPEGTables      = 347
	tiffMostTags        = 4096
	tiffMostPixelFields = 16
)

// tiffFile is a TIFF, classic or big, and where its first directory lies.
type tiffFile struct {
	data  []byte
	order binary.ByteOrder
	big   bool
	at    uint64
}

// openTIFF reads the header.
func openTIFF(data []byte) (tiffFile, bool) {
	if len(data) < 8 {
		return tiffFile{}, false
	}
	t := tiffFile{data: data, order: binary.LittleEndian}
	switch string(data[:4]) {
	case "II*\x00", "II\x00*":
	case "MM\x00*", "MM*\x00":
		t.order = binary.BigEndian
	case "II+\x00":
		t.big = true
	case "MM\x00+":
		t.order, t.big = binary.BigEndian, true
	default:
		return t, false
	}
	if t.big {
		if len(data) < 16 {
			return t, false
		}
		t.at = t.order.Uint64(data[8:])
	} else {
		t.at = uint64(t.order.Uint32(data[4:]))
	}
	return t, true
}

// tiffDirectory is the fields of a directory: of each its type, count and value, or where the values are.
type tiffDirectory struct {
	file   *tiffFile
	fields map[uint16]tiffField
}

type tiffField struct {
	kind  uint16
	count uint64
	// value is the field's own bytes: the values if they fit, else their place.
	value []byte
}

// directory reads the directory at the file's mark, and moves the mark to the next one, which is 0 after the last.
func (t *tiffFile) directory() (tiffDirectory, error) {
	d := tiffDirectory{file: t, fields: map[uint16]tiffField{}}
	head, entry, tail := uint64(2), uint64(12), uint64(4)
	if t.big {
		head, entry, tail = 8, 20, 8
	}
	size := uint64(len(t.data))
	if t.at > size-min(size, head) {
		return d, truncatedHeader("TIFF")
	}
	count := uint64(t.order.Uint16(t.data[t.at:]))
	if t.big {
		count = t.order.Uint64(t.data[t.at:])
	}
	if count > tiffMostTags {
		return d, errkind.Errorf(errkind.BadData, "TIFF with a directory of %d fields", count)
	}
	at := t.at + head
	for range count {
		if at > size-min(size, entry) {
			return d, truncatedHeader("TIFF")
		}
		e := t.data[at : at+entry]
		f := tiffField{kind: t.order.Uint16(e[2:])}
		if t.big {
			f.count, f.value = t.order.Uint64(e[4:]), e[12:]
		} else {
			f.count, f.value = uint64(t.order.Uint32(e[4:])), e[8:]
		}
		d.fields[t.order.Uint16(e)] = f
		at += entry
	}
	t.at = 0
	if at <= size-min(size, tail) && !t.big {
		t.at = uint64(t.order.Uint32(t.data[at:]))
	} else if at <= size-min(size, tail) {
		t.at = t.order.Uint64(t.data[at:])
	}
	return d, nil
}

// bytes are the values of a field, of size bytes each, and how many there are. It is nil where the file ends before them.
func (d *tiffDirectory) bytes(tag uint16) (values []byte, size int) {
	f, ok := d.fields[tag]
	if !ok {
		return nil, 0
	}
	sizes := [...]int{1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
	if int(f.kind) >= len(sizes) || sizes[f.kind] == 0 {
		return nil, 0
	}
	size = sizes[f.kind]
	if f.count > uint64(len(d.file.data)/size) { //nolint:gosec // Not negative.
		return nil, 0
	}
	n := int(f.count) * size //nolint:gosec // No longer than the file.
	if n <= len(f.value) {
		return f.value[:n], size
	}
	at := uint64(d.file.order.Uint32(f.value))
	if d.file.big {
		at = d.file.order.Uint64(f.value)
	}
	if at > uint64(len(d.file.data)-n) { //nolint:gosec // Not negative: n is no longer than the file.
		return nil, 0
	}
	return d.file.data[at:][:n], size
}

// ints are the values of a field of integers.
func (d *tiffDirectory) ints(tag uint16) []int {
	values, size := d.bytes(tag)
	if size == 0 {
		return nil
	}
	out := make([]int, 0, len(values)/size)
	for ; len(values) >= size; values = values[size:] {
		var v uint64
		switch size {
		case 1:
			v = uint64(values[0])
		case 2:
			v = uint64(d.file.order.Uint16(values))
		case 4:
			v = uint64(d.file.order.Uint32(values))
		default:
			v = d.file.order.Uint64(values)
		}
		out = append(out, int(min(v, math.MaxInt32)))
	}
	return out
}

// number is the first value of a field, or other when it isn't there.
func (d *tiffDirectory) number(tag uint16, other int) int {
	if values := d.ints(tag); len(values) > 0 {
		return values[0]
	}
	return other
}

// probeTIFF reads the first directory. Its orientation is always undone, as Pillow does.
func probeTIFF(data []byte) (Header, error) {
	h := Header{Format: FormatTIFF, Orientation: 1, Ended: true}
	file, ok := openTIFF(data)
	if !ok {
		return h, truncatedHeader("TIFF")
	}
	d, err := file.directory()
	if err != nil {
		return h, err
	}
	h.W, h.H = d.number(tiffWidth, 0), d.number(tiffHeight, 0)
	if o := d.number(tiffOrientation, 1); o >= 1 && o <= 8 {
		h.Orientation, h.Upright = o, true
	}
	return h, nil
}
