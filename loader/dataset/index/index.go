// Package index is the binary object that says where the samples of one shard lie.
//
// It is small enough to fetch whole, needs no decoding beyond a check, and is read in place: memory is
// the size of the object, whatever the number of samples. The layout is in docs/formats/index.md.
package index

import (
	"encoding/binary"
	"hash/crc32"
	"math"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/internal/errkind"
)

// Version is the version of the layout that this package writes and the only one it reads.
const Version = 1

const (
	magic       = "MRIX"
	headerSize  = 40
	sampleSize  = 16
	fieldSize   = 20
	nameSize    = 8
	pinSize     = 8
	trailerSize = 4

	flagPins = 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Field is one part of a sample.
type Field struct {
	// Name is the extension, "jpg" or "seg.png".
	Name string
	// Offset and Length are the bytes of the field in the shard; in the decompressed shard where it is compressed.
	Offset, Length int64
	// Pin is the version of the field's own file, for shards whose samples are files; else empty.
	Pin string
}

// Index is a checked index object. It is immutable and may be used by many goroutines at once.
type Index struct {
	raw                  []byte
	names                []string
	samples, fields      []byte // the records
	pins                 []byte // nil without pins
	text                 []byte
	archiveSize, payload int64
}

// Hash identifies an index by its bytes.
func Hash(raw []byte) [16]byte {
	return xxh3.Hash128(raw).Bytes()
}

// NumSamples is the number of samples of the shard.
func (x *Index) NumSamples() int { return len(x.samples) / sampleSize }

// NumFields is the number of fields of all samples together.
func (x *Index) NumFields() int { return len(x.fields) / fieldSize }

// ArchiveBytes is the size of the shard after decompression, in bytes; of all files together for a directory.
func (x *Index) ArchiveBytes() int64 { return x.archiveSize }

// DataBytes is the sum of the lengths of all fields.
func (x *Index) DataBytes() int64 { return x.payload }

// Bytes is the index object itself. It must not be changed.
func (x *Index) Bytes() []byte { return x.raw }

// MemoryBytes is about what the index holds in memory.
func (x *Index) MemoryBytes() int64 { return int64(len(x.raw)) + int64(len(x.names))*32 }

// Names are the distinct field names of the shard, in order of first appearance. They must not be changed.
func (x *Index) Names() []string { return x.names }

// Key is the key of sample i, which is in [0, NumSamples()).
func (x *Index) Key(i int) string {
	r := x.samples[i*sampleSize:]
	off, n := le32(r), le32(r[4:])
	return string(x.text[off : off+n])
}

// Fields calls fn for each field of sample i, in order, with the number of its name in [Index.Names].
// The field's Pin is set only for those that have one.
func (x *Index) Fields(i int, fn func(name int, f Field)) {
	r := x.samples[i*sampleSize:]
	first, n := int(le32(r[8:])), int(le32(r[12:]))
	for j := first; j < first+n; j++ {
		r := x.fields[j*fieldSize:]
		name := int(le32(r[16:]))
		f := Field{Name: x.names[name], Offset: le64(r), Length: le64(r[8:])}
		if x.pins != nil {
			p := x.pins[j*pinSize:]
			off, n := le32(p), le32(p[4:])
			f.Pin = string(x.text[off : off+n])
		}
		fn(name, f)
	}
}

// FirstField is the place of the first field of sample i among all fields.
func (x *Index) FirstField(i int) int { return int(le32(x.samples[i*sampleSize+8:])) }

// Spans calls fn for the place of each field of sample i, in order, with the number of its name in [Index.Names].
func (x *Index) Spans(i int, fn func(name int, off, length int64)) {
	r := x.samples[i*sampleSize:]
	first, n := int(le32(r[8:])), int(le32(r[12:]))
	for j := first; j < first+n; j++ {
		r := x.fields[j*fieldSize:]
		fn(int(le32(r[16:])), le64(r), le64(r[8:]))
	}
}

// Parse checks raw and reads it in place: raw must not be changed afterwards. An object that is not a
// whole index of this version is BadData.
func Parse(raw []byte) (*Index, error) {
	x, err := parse(raw)
	if err != nil {
		return nil, errkind.Errorf(errkind.BadData, "reading a shard index of %d bytes: %w", len(raw), err)
	}
	return x, nil
}

func parse(raw []byte) (*Index, error) {
	if len(raw) < headerSize+trailerSize || string(raw[:4]) != magic {
		return nil, errkind.Errorf(errkind.BadData, "it is no shard index")
	}
	if v := binary.LittleEndian.Uint16(raw[4:]); v != Version {
		return nil, errkind.Errorf(errkind.BadData, "it has version %d, this program reads version %d", v, Version)
	}
	body := raw[:len(raw)-trailerSize]
	if got, want := crc32.Checksum(body, castagnoli), le32(raw[len(body):]); got != want {
		return nil, errkind.Errorf(errkind.BadData, "its checksum is %08x, should be %08x", got, want)
	}
	flags := binary.LittleEndian.Uint16(raw[6:])
	numSamples, numFields, numNames, numText := int64(le32(raw[8:])), int64(le32(raw[12:])), int64(le32(raw[16:])), int64(le32(raw[20:]))
	x := &Index{raw: raw, archiveSize: le64(raw[24:]), payload: le64(raw[32:])}
	rest := body[headerSize:]
	take := func(n int64) []byte {
		part := rest[:n:n]
		rest = rest[n:]
		return part
	}
	want := numSamples*sampleSize + numFields*fieldSize + numNames*nameSize + numText
	if flags&flagPins != 0 {
		want += numFields * pinSize
	}
	if flags&^flagPins != 0 || want != int64(len(rest)) || x.archiveSize < 0 || x.payload < 0 {
		return nil, errkind.Errorf(errkind.BadData, "its header does not fit its size")
	}
	x.samples, x.fields = take(numSamples*sampleSize), take(numFields*fieldSize)
	if flags&flagPins != 0 {
		x.pins = take(numFields * pinSize)
	}
	names := take(numNames * nameSize)
	x.text = rest
	if err := x.check(names); err != nil {
		return nil, err
	}
	return x, nil
}

// check looks at every record once, so that no accessor can reach out of the object.
func (x *Index) check(names []byte) error {
	inText := func(r []byte) bool {
		return uint64(le32(r))+uint64(le32(r[4:])) <= uint64(len(x.text))
	}
	for r := range slices.Chunk(names, nameSize) {
		if !inText(r) {
			return errkind.Errorf(errkind.BadData, "field name %d lies outside", len(x.names))
		}
		x.names = append(x.names, string(x.text[le32(r):le32(r)+le32(r[4:])]))
	}
	var next uint64
	for i := range x.NumSamples() {
		r := x.samples[i*sampleSize:]
		if !inText(r) || uint64(le32(r[8:])) != next {
			return errkind.Errorf(errkind.BadData, "sample %d lies outside", i)
		}
		next += uint64(le32(r[12:]))
	}
	if next != uint64(x.NumFields()) { //nolint:gosec // not negative
		return errkind.Errorf(errkind.BadData, "it has %d fields, its samples %d", x.NumFields(), next)
	}
	var sum int64
	for j := range x.NumFields() {
		r := x.fields[j*fieldSize:]
		off, n := le64(r), le64(r[8:])
		if off < 0 || n < 0 || n > math.MaxInt64-off || n > math.MaxInt64-sum || off+n > x.archiveSize || int(le32(r[16:])) >= len(x.names) {
			return errkind.Errorf(errkind.BadData, "field %d lies outside", j)
		}
		sum += n
		if x.pins != nil && !inText(x.pins[j*pinSize:]) {
			return errkind.Errorf(errkind.BadData, "pin %d lies outside", j)
		}
	}
	if sum != x.payload {
		return errkind.Errorf(errkind.BadData, "it states %d bytes of data, its fields have %d", x.payload, sum)
	}
	return nil
}

func le32(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }

func le64(b []byte) int64 {
	return int64(binary.LittleEndian.Uint64(b)) //nolint:gosec // negative values are refused where they matter
}
