package fetch

import (
	"errors"
	"io"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/millrace/millrace/internal/errkind"
)

// Fields of arrow.flight.protocol.FlightData.
const (
	fieldHeader      = 2
	fieldAppMetadata = 3
	fieldBody        = 1000
)

// maxHeader bounds the header and the metadata of a message: names and shapes of columns, no data.
const maxHeader = 16 << 20

// flightData is a received FlightData message. Its body lies in a buffer of alloc.
type flightData struct {
	header      []byte
	appMetadata []byte
	body        []byte
	alloc       func(n int) []byte
	free        func([]byte)
}

// codec reads flightData without making garbage of its body and leaves everything else to the standard codec.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{CodecV2: encoding.GetCodecV2(proto.Name)} }

// Unmarshal reads a message into v.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	d, ok := v.(*flightData)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	r := data.Reader()
	err := d.read(r)
	if closeErr := r.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		d.drop()
		return errkind.With(errkind.BadData, err)
	}
	return nil
}

// drop gives the body back.
func (d *flightData) drop() {
	if d.body != nil {
		d.free(d.body)
		d.body = nil
	}
}

// read takes all fields from r. Of a field that comes twice the last one counts, as protobuf has it.
func (d *flightData) read(r *mem.Reader) error {
	for r.Remaining() > 0 {
		tag, err := readVarint(r)
		if err != nil {
			return err
		}
		number, typ := protowire.DecodeTag(tag)
		if number < protowire.MinValidNumber {
			return errors.New("message with an impossible field number")
		}
		if typ != protowire.BytesType {
			if err := skip(r, typ); err != nil {
				return err
			}
			continue
		}
		size, err := readVarint(r)
		if err != nil {
			return err
		}
		if size > uint64(r.Remaining()) { //nolint:gosec // Never negative.
			return io.ErrUnexpectedEOF
		}
		if err := d.field(r, number, int(size)); err != nil { //nolint:gosec // At most what remains.
			return err
		}
	}
	return nil
}

func (d *flightData) field(r *mem.Reader, number protowire.Number, size int) error {
	var to []byte
	switch number {
	case fieldHeader, fieldAppMetadata:
		if size > maxHeader {
			return errors.New("message with a header of more than 16 MiB")
		}
		to = make([]byte, size)
		if number == fieldHeader {
			d.header = to
		} else {
			d.appMetadata = to
		}
	case fieldBody:
		d.drop()
		to = d.alloc(size)
		d.body = to
	default:
		_, err := r.Discard(size)
		return err
	}
	_, err := io.ReadFull(r, to)
	return err
}

func readVarint(r *mem.Reader) (uint64, error) {
	var v uint64
	for shift := uint(0); shift < 64; shift += 7 {
		b, err := r.ReadByte()
		if err != nil {
			return 0, io.ErrUnexpectedEOF
		}
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return v, nil
		}
	}
	return 0, errors.New("message with a number of more than 64 bits")
}

// skip passes over a field that is not a run of bytes; FlightData has none.
func skip(r *mem.Reader, typ protowire.Type) error {
	size := 0
	switch typ {
	case protowire.VarintType:
		_, err := readVarint(r)
		return err
	case protowire.Fixed32Type:
		size = 4
	case protowire.Fixed64Type:
		size = 8
	default:
		return errors.New("message with a field of an unknown form")
	}
	if size > r.Remaining() {
		return io.ErrUnexpectedEOF
	}
	_, err := r.Discard(size)
	return err
}
