// Package tfrecord reads TFRecord files of tf.train.Example messages, plain or compressed as a whole.
//
// A record is a sample, its features are the fields: one value as it is, several as a list in JSON (bytes in base64), none as
// null. The framing is that of https://www.tensorflow.org/tutorials/load_data/tfrecord: the length as u64, its masked
// CRC-32C, the data, its masked CRC-32C, all little endian.
package tfrecord

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"

	"github.com/millrace/millrace/loader/dataset/format"
)

// version of the index.
const version = 1

const (
	headBytes = 12 // length and its checksum
	footBytes = 4  // checksum of the data
	// maxRecord bounds a record, and with it the memory of indexing.
	maxRecord = 512 << 20
	// maxColumns bounds the features of all records together.
	maxColumns = 10_000
)

// Format is TFRecord.
type Format struct{}

// Name implements format.Format.
func (Format) Name() string { return "tfrecord" }

// Suffixes implements format.Format.
func (Format) Suffixes() []string { return []string{".tfrecord", ".tfrecords", ".tfrec"} }

// Compressible implements format.Format.
func (Format) Compressible() bool { return true }

// Index implements format.Format.
func (Format) Index(ctx context.Context, o format.Object, tolerate func(error) error) (format.Indexed, error) {
	return format.IndexRecords(ctx, o, version, func(r *bufio.Reader) format.Cutter { return &records{r: r} }, add, tolerate)
}

// add appends the record whose data, with its checksum, lies at an offset.
func add(x *format.RecordIndex, data []byte, at int64) error {
	// What can't be read is found again, and reported, when the sample is.
	if example, err := checked(data); err == nil {
		_ = features(example, func(name string, v value) error {
			if t, ok := v.kind(); ok && len(x.Columns) < maxColumns {
				x.Column(name, t)
			}
			return nil
		})
	}
	if err := x.Add(at, int64(len(data))); err != nil {
		return err
	}
	x.DataBytes -= footBytes
	return nil
}

// records cuts a stream into records.
type records struct {
	r   *bufio.Reader
	pos int64
	buf []byte
}

// Pos implements format.Cutter.
func (r *records) Pos() int64 { return r.pos }

// Next implements format.Cutter: the data of the next record and its checksum, valid until the next call, and where they begin.
func (r *records) Next() (data []byte, at int64, err error) {
	var head [headBytes]byte
	begin := r.pos
	n, err := io.ReadFull(r.r, head[:])
	r.pos += int64(n)
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, 0, format.Damaged("the record at offset %d is cut off", begin)
	case err != nil:
		return nil, 0, err
	}
	length := binary.LittleEndian.Uint64(head[:])
	if masked(head[:8]) != binary.LittleEndian.Uint32(head[8:]) {
		return nil, 0, format.Damaged("the length of the record at offset %d does not have its checksum: it is damaged, or this is no TFRecord file", begin)
	}
	if length > maxRecord {
		return nil, 0, format.Damaged("the record at offset %d has %d bytes; at most %d are read", begin, length, maxRecord)
	}
	at = r.pos
	if data, err = r.take(int(length) + footBytes); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = format.Damaged("the record at offset %d is cut off", begin)
		}
		return nil, 0, err
	}
	return data, at, nil
}

// take reads n bytes, for which room is made as they come.
func (r *records) take(n int) ([]byte, error) {
	const step = 1 << 20
	r.buf = r.buf[:0]
	for len(r.buf) < n {
		k := min(n-len(r.buf), step)
		from := len(r.buf)
		if cap(r.buf) < from+k {
			r.buf = append(make([]byte, 0, max(2*cap(r.buf), from+k)), r.buf...)
		}
		r.buf = r.buf[:from+k]
		got, err := io.ReadFull(r.r, r.buf[from:])
		r.pos += int64(got)
		if err != nil {
			return nil, err
		}
	}
	return r.buf, nil
}

// checked is data without its checksum, once that was found right.
func checked(data []byte) ([]byte, error) {
	if len(data) < footBytes {
		return nil, format.Damaged("the record is cut off")
	}
	body := data[:len(data)-footBytes]
	if masked(body) != binary.LittleEndian.Uint32(data[len(body):]) {
		return nil, format.Damaged("the record does not have its checksum: it is damaged")
	}
	return body, nil
}

// masked is the checksum of TFRecord: CRC-32C, rotated and shifted so that checksums of checksums are none.
func masked(b []byte) uint32 {
	sum := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
	return (sum>>15 | sum<<17) + 0xa282ead8
}

// Open implements format.Format.
func (Format) Open(raw []byte) (format.Shard, error) {
	r, err := format.OpenRecords(raw, version)
	if err != nil {
		return nil, err
	}
	s := &shard{Records: r, places: map[string]int{}}
	for i, c := range r.Columns() {
		s.places[c.Name] = i
	}
	return s, nil
}

type shard struct {
	format.Records

	places map[string]int
}

// Decode implements format.Shard.
func (s *shard) Decode(_ context.Context, _ format.Unit, wanted []bool, parts [][]byte, _ int64) (format.Block, error) {
	f := &format.Fields{Data: make([][]byte, len(wanted))}
	example, err := checked(parts[0])
	if err == nil {
		err = features(example, func(name string, v value) error {
			if i, ok := s.places[name]; ok && wanted[i] {
				f.Data[i], err = v.decode(s.Columns()[i].Type)
				return err
			}
			return nil
		})
	}
	f.Err = err
	return f, nil
}
