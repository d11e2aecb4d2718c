package index

import (
	"encoding/binary"
	"hash/crc32"
	"math"

	"github.com/millrace/millrace/internal/errkind"
)

// MaxBytes is the largest index a Builder makes: 2 GiB, some 20 million samples of three fields in one
// shard. It bounds what a hostile archive can make an indexer hold.
const MaxBytes = 2 << 30

// MaxText is the longest key, field name or pin, in bytes.
const MaxText = 64 << 10

// Builder makes an index, sample by sample, in the memory of its encoded form. The zero Builder is ready to use.
type Builder struct {
	samples, fields, names, pins, text []byte

	nameIDs map[string]uint32
	payload int64
	hasPins bool
	first   uint32 // the first field of the sample that is being added
}

// NumSamples is the number of samples added so far.
func (b *Builder) NumSamples() int64 { return int64(len(b.samples) / sampleSize) }

// DataBytes is the sum of the lengths of the fields added so far.
func (b *Builder) DataBytes() int64 { return b.payload }

// Add appends a sample. Its fields keep their order.
func (b *Builder) Add(key string, fields []Field) error {
	size := len(b.samples) + len(b.fields) + len(b.pins) + len(b.names) + len(b.text)
	if size+sampleSize+len(key)+len(fields)*(fieldSize+pinSize) > MaxBytes {
		return errkind.Errorf(errkind.Exhausted, "the index of one shard would pass %d GiB at sample %d", MaxBytes>>30, b.NumSamples())
	}
	if len(key) > MaxText {
		return errkind.Errorf(errkind.BadData, "sample %d: its key has %d bytes, more than %d", b.NumSamples(), len(key), MaxText)
	}
	for _, f := range fields {
		if err := b.addField(key, f); err != nil {
			return err
		}
	}
	b.samples = append32(b.samples, b.intern(key), uint32(len(key)), b.first, uint32(len(fields))) //nolint:gosec // bounded by MaxBytes
	b.first += uint32(len(fields))                                                                 //nolint:gosec // bounded by MaxBytes
	return nil
}

func (b *Builder) addField(key string, f Field) error {
	if len(f.Name) > MaxText || len(f.Pin) > MaxText {
		return errkind.Errorf(errkind.BadData, "sample %s: the name or pin of a field is longer than %d bytes", key, MaxText)
	}
	if f.Offset < 0 || f.Length < 0 || f.Length > math.MaxInt64-f.Offset || f.Length > math.MaxInt64-b.payload {
		return errkind.Errorf(errkind.BadData, "sample %s: field %s can't lie at offset %d with %d bytes", key, f.Name, f.Offset, f.Length)
	}
	id, ok := b.nameIDs[f.Name]
	if !ok {
		if b.nameIDs == nil {
			b.nameIDs = map[string]uint32{}
		}
		id = uint32(len(b.nameIDs)) //nolint:gosec // bounded by MaxBytes
		b.nameIDs[f.Name] = id
		b.names = append32(b.names, b.intern(f.Name), uint32(len(f.Name))) //nolint:gosec // bounded by MaxText
	}
	b.fields = binary.LittleEndian.AppendUint64(b.fields, uint64(f.Offset))
	b.fields = binary.LittleEndian.AppendUint64(b.fields, uint64(f.Length))
	b.fields = append32(b.fields, id)
	b.pins = append32(b.pins, b.intern(f.Pin), uint32(len(f.Pin))) //nolint:gosec // bounded by MaxText
	b.hasPins = b.hasPins || f.Pin != ""
	b.payload += f.Length
	return nil
}

// intern appends s to the text and says where it begins.
func (b *Builder) intern(s string) uint32 {
	if s == "" {
		return 0
	}
	off := uint32(len(b.text)) //nolint:gosec // bounded by MaxBytes
	b.text = append(b.text, s...)
	return off
}

// Bytes encodes the index of a shard that has archiveBytes bytes after decompression.
func (b *Builder) Bytes(archiveBytes int64) []byte {
	pins, flags := b.pins, uint16(flagPins)
	if !b.hasPins {
		pins, flags = nil, 0
	}
	parts := [][]byte{b.samples, b.fields, pins, b.names, b.text}
	size := headerSize + trailerSize
	for _, p := range parts {
		size += len(p)
	}
	out := append(make([]byte, 0, size), magic...)
	out = binary.LittleEndian.AppendUint16(out, Version)
	out = binary.LittleEndian.AppendUint16(out, flags)
	//nolint:gosec // all counts are bounded by MaxBytes, the sizes are not negative
	{
		out = append32(out, uint32(len(b.samples)/sampleSize), uint32(len(b.fields)/fieldSize), uint32(len(b.names)/nameSize), uint32(len(b.text)))
		out = binary.LittleEndian.AppendUint64(out, uint64(archiveBytes))
		out = binary.LittleEndian.AppendUint64(out, uint64(b.payload))
	}
	for _, p := range parts {
		out = append(out, p...)
	}
	return append32(out, crc32.Checksum(out, castagnoli))
}

func append32(b []byte, vs ...uint32) []byte {
	for _, v := range vs {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}
