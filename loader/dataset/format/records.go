package format

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"slices"
)

// MaxIndexBytes bounds the index of one shard, and so what a hostile shard can make an indexer hold.
const MaxIndexBytes = 1 << 30

// RecordIndex builds the index of a shard whose samples are records one after the other: 12 bytes each.
type RecordIndex struct {
	// Columns are those known so far.
	Columns []Column
	// DataBytes is the number of payload bytes.
	DataBytes int64

	spans []byte
	end   int64
}

// recordSize is the size of an entry: offset u64, length u32.
const recordSize = 12

// NumSamples is the number of records added so far.
func (x *RecordIndex) NumSamples() int64 { return int64(len(x.spans) / recordSize) }

// Add appends a record. Records ascend and do not overlap.
func (x *RecordIndex) Add(off, length int64) error {
	if len(x.spans)+recordSize > MaxIndexBytes {
		return Damaged("it has more than %d records, which is too much for one shard", x.NumSamples())
	}
	if off < x.end || length < 0 || length > math.MaxUint32 || off > math.MaxInt64-length {
		return Damaged("record %d can't have %d bytes at offset %d", x.NumSamples(), length, off)
	}
	x.spans = binary.LittleEndian.AppendUint64(x.spans, uint64(off)) //nolint:gosec // not negative
	x.spans = binary.LittleEndian.AppendUint32(x.spans, uint32(length))
	x.end = off + length
	x.DataBytes += length
	return nil
}

// Column adds a column unless it is there. One that comes with two types is Text if it is one of them and scalars
// or Bytes are the other, Float64 for numbers, else JSON.
func (x *RecordIndex) Column(name string, t Type) {
	i := slices.IndexFunc(x.Columns, func(c Column) bool { return c.Name == name })
	if i < 0 {
		x.Columns = append(x.Columns, Column{Name: name, Type: t})
		return
	}
	x.Columns[i].Type = join(x.Columns[i].Type, t)
}

func join(a, b Type) Type {
	numbers := func(t Type) bool { return t == Int64 || t == Float64 }
	switch {
	case a == b:
		return a
	case numbers(a) && numbers(b):
		return Float64
	case a == JSON || b == JSON:
		return JSON
	case a == Bytes || b == Bytes:
		return Bytes
	}
	return Text
}

// Cutter cuts a stream into records.
type Cutter interface {
	// Next is the next record, valid until the next call, and where it begins. After the last it is io.EOF.
	Next() (record []byte, at int64, err error)
	// Pos is how far the stream was read.
	Pos() int64
}

// cutBuffer is the read-ahead of a Cutter.
const cutBuffer = 256 << 10

// IndexRecords indexes a shard of records, which add takes up one after the other. Damage ends the shard where it is tolerated.
func IndexRecords(
	ctx context.Context, o Object, version uint32, cut func(*bufio.Reader) Cutter,
	add func(x *RecordIndex, record []byte, at int64) error, tolerate func(error) error,
) (_ Indexed, err error) {
	body, err := o.Open(ctx)
	if err != nil {
		return Indexed{}, err
	}
	defer func() { err = errors.Join(err, body.Close()) }()
	x := &RecordIndex{}
	c := cut(bufio.NewReaderSize(body, cutBuffer))
	for {
		record, at, err := c.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = add(x, record, at)
		}
		if err != nil {
			if err = tolerate(err); err != nil {
				return Indexed{}, err
			}
			break
		}
	}
	return x.Seal(version, nil, c.Pos()), nil
}

// Seal is the index; head is what the format needs beside the records.
func (x *RecordIndex) Seal(version uint32, head []byte, content int64) Indexed {
	b := binary.AppendUvarint(nil, uint64(len(head)))
	b = append(b, head...)
	b = binary.AppendUvarint(b, uint64(len(x.Columns)))
	for _, c := range x.Columns {
		b = append(AppendText(b, c.Name), byte(c.Type))
	}
	return Indexed{Raw: Seal(version, b, x.spans), Samples: x.NumSamples(), DataBytes: x.DataBytes, Content: content}
}

// Records is an opened index of records. A format's Shard embeds it and adds Decode.
type Records struct {
	// Head is what the format kept.
	Head    []byte
	columns []Column
	spans   []byte
}

// OpenRecords reads what RecordIndex.Seal wrote.
func OpenRecords(raw []byte, version uint32) (Records, error) {
	head, spans, err := Unseal(raw, version)
	if err != nil {
		return Records{}, err
	}
	r := &Reader{Rest: head}
	out := Records{Head: []byte(r.Text()), spans: spans}
	for range r.Int(int64(len(head))) {
		c := Column{Name: r.Text()}
		if len(r.Rest) == 0 || Type(r.Rest[0]) > JSON {
			return Records{}, Damaged("its columns do not fit its size")
		}
		c.Type, r.Rest = Type(r.Rest[0]), r.Rest[1:]
		out.columns = append(out.columns, c)
	}
	if r.Bad || len(r.Rest) > 0 || len(spans)%recordSize != 0 {
		return Records{}, Damaged("its header does not fit its size")
	}
	end := int64(0)
	for i := range out.NumSamples() {
		off, n := out.span(i)
		if off < end || off > math.MaxInt64-n {
			return Records{}, Damaged("record %d lies before the one before it", i)
		}
		end = off + n
	}
	return out, nil
}

func (s *Records) span(row int64) (off, length int64) {
	e := s.spans[row*recordSize:]
	return int64(binary.LittleEndian.Uint64(e)), int64(binary.LittleEndian.Uint32(e[8:])) //nolint:gosec // OpenRecords refuses negative ones
}

// NumSamples is the number of records.
func (s *Records) NumSamples() int64 { return int64(len(s.spans) / recordSize) }

// MemoryBytes is about what the index holds in memory.
func (s *Records) MemoryBytes() int64 {
	return int64(len(s.spans)+len(s.Head)) + int64(len(s.columns))*64
}

// Columns are the fields that records may have.
func (s *Records) Columns() []Column { return s.columns }

// Units is one unit for each row.
func (s *Records) Units(rows []int64, _ []bool) ([]Unit, error) {
	units := make([]Unit, len(rows))
	ranges := make([]Range, len(rows))
	for i, row := range rows {
		ranges[i].Off, ranges[i].Len = s.span(row)
		units[i] = Unit{ID: row, First: row, Count: 1, Ranges: ranges[i : i+1 : i+1]}
	}
	return units, nil
}

// Fields is the block of one record: values by column, nil where there is none, or what is wrong with the record.
type Fields struct {
	Data [][]byte
	Err  error
}

// Values implements Block.
func (f *Fields) Values(_ int64, fn func(column int, data []byte)) error {
	if f.Err != nil {
		return f.Err
	}
	for i, d := range f.Data {
		if d != nil {
			fn(i, d)
		}
	}
	return nil
}

// MemoryBytes implements Block.
func (f *Fields) MemoryBytes() int64 {
	n := int64(0)
	for _, d := range f.Data {
		n += int64(cap(d)) + 24
	}
	return n
}
