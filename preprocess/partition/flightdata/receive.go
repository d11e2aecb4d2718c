package flightdata

import (
	"errors"
	"io"

	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// MaxHeaderBytes bounds the header and the metadata of a message that is received: names and shapes of columns, no data.
const MaxHeaderBytes = 16 << 20

// minHeaderBytes is less than any header has that Arrow writes.
const minHeaderBytes = 8

// chunk is how much of a body is copied before its checksum is taken, so that it is still in the processor's cache.
const chunk = 32 << 10

// Allocator hands out the buffers of bodies, and makes Arrow buffers of them that find their way back.
type Allocator interface {
	// Alloc returns n bytes of any content.
	Alloc(n int) []byte
	// Free takes them back.
	Free(b []byte)
	// Buffer makes an Arrow buffer of b, which is freed when that is released.
	Buffer(b []byte) *memory.Buffer
}

// Incoming is a message to receive, with RecvMsg of a call with [CallOption]. Whoever receives it either makes a
// [Incoming.Message] of it or calls [Incoming.Drop].
type Incoming struct {
	// AppMetadata came with it.
	AppMetadata []byte

	alloc  Allocator
	header []byte
	body   []byte
	sum    uint32
}

// NewIncoming is a message whose body will lie in a buffer of alloc.
func NewIncoming(alloc Allocator) *Incoming { return &Incoming{alloc: alloc} }

// HasHeader says whether the header can be one that Arrow wrote; without, there is nothing to make a message of.
func (m *Incoming) HasHeader() bool { return len(m.header) >= minHeaderBytes }

// Checksum is the [Checksum] of the message as it came. Compare it before Arrow reads the message.
func (m *Incoming) Checksum() uint32 { return m.sum }

// Message gives the message to Arrow: its body is freed when the last buffer that refers to it is released.
func (m *Incoming) Message() *ipc.Message {
	body := memory.NewBufferBytes(nil)
	if m.body != nil {
		body = m.alloc.Buffer(m.body)
		m.body = nil
	}
	header := memory.NewBufferBytes(m.header)
	defer header.Release()
	defer body.Release()
	return ipc.NewMessage(header, body)
}

// Drop gives the body back.
func (m *Incoming) Drop() {
	if m.body != nil {
		m.alloc.Free(m.body)
		m.body = nil
	}
}

// read takes all fields from r. Of a field that comes twice the last one counts, as protobuf has it.
func (m *Incoming) read(r *mem.Reader) error {
	summed := false // the checksum covers the body that is held
	for r.Remaining() > 0 {
		number, typ, err := readTag(r)
		if err != nil {
			return err
		}
		if typ != protowire.BytesType {
			if err := skip(r, typ); err != nil {
				return err
			}
			continue
		}
		size, err := readSize(r)
		if err != nil {
			return err
		}
		switch number {
		case fieldHeader:
			m.header, err = readSmall(r, size)
			summed = false
		case fieldAppMetadata:
			m.AppMetadata, err = readSmall(r, size)
		case fieldBody:
			err = m.readBody(r, size)
			summed = true
		default:
			_, err = r.Discard(size)
		}
		if err != nil {
			return err
		}
	}
	if !summed { // the header came after the body, or there is none
		m.sum = Checksum(m.header, m.body)
	}
	return nil
}

// readBody copies the body to where it stays and takes the checksum of each piece while it is at hand.
func (m *Incoming) readBody(r *mem.Reader, size int) error {
	m.Drop()
	m.body = m.alloc.Alloc(size)
	sum := Checksum(m.header)
	for left := m.body; len(left) > 0; {
		n := min(chunk, len(left))
		if _, err := io.ReadFull(r, left[:n]); err != nil {
			return err
		}
		sum = update(sum, left[:n])
		left = left[n:]
	}
	m.sum = sum
	return nil
}

func readSmall(r *mem.Reader, size int) ([]byte, error) {
	if size > MaxHeaderBytes {
		return nil, errors.New("message with a header of more than 16 MiB")
	}
	b := make([]byte, size)
	_, err := io.ReadFull(r, b)
	return b, err
}

func readTag(r *mem.Reader) (protowire.Number, protowire.Type, error) {
	tag, err := readVarint(r)
	if err != nil {
		return 0, 0, err
	}
	number, typ := protowire.DecodeTag(tag)
	if number < protowire.MinValidNumber {
		return 0, 0, errors.New("message with an impossible field number")
	}
	return number, typ, nil
}

// readSize reads a length, which is at most what remains: what is made room for has come already.
func readSize(r *mem.Reader) (int, error) {
	size, err := readVarint(r)
	if err != nil {
		return 0, err
	}
	if size > uint64(r.Remaining()) { //nolint:gosec // Never negative.
		return 0, io.ErrUnexpectedEOF
	}
	return int(size), nil //nolint:gosec // At most what remains.
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
