package flightdata

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"time"

	"github.com/millrace/millrace/internal/errkind"
)

// Frames carry messages over a plain connection, without HTTP/2 between: what is received goes from the kernel to where
// it stays. Each begins with a head of headBytes:
//
//	u8 kind, 3 bytes 0 | u32 bytes of the header | u64 bytes of the body | u32 slice | CRC-32C of all before
//
// Header, body and, for a message, the [Checksum] of both follow. All numbers are little-endian.
const headBytes = 24

// Kinds of frames.
const (
	frameMessage = 1
	frameEnd     = 2
	frameError   = 3
)

const (
	// writeBytes is how much is written in one call of the system, right after its checksum was taken.
	writeBytes = 256 << 10
	// stall is how long the other side may take nothing before it counts as gone.
	stall = 2 * time.Minute
	// maxErrorBytes bounds the text of an error.
	maxErrorBytes = 64 << 10
)

// FrameWriter writes frames.
type FrameWriter struct {
	conn net.Conn
	out  net.Buffers // not yet written
	size int
}

// NewFrameWriter writes to conn.
func NewFrameWriter(conn net.Conn) *FrameWriter { return &FrameWriter{conn: conn} }

// Message writes a message of a slice and gives it up, whatever comes of it.
func (w *FrameWriter) Message(slice uint32, m *Outgoing) error {
	defer m.release()
	size := 0
	for _, b := range m.body {
		size += len(b)
	}
	head := frameHead(frameMessage, len(m.header), size, slice)
	sum := update(0, m.header)
	if err := w.add(head, m.header); err != nil {
		return err
	}
	for _, b := range m.body {
		for len(b) > 0 {
			n := min(len(b), writeBytes)
			sum = update(sum, b[:n])
			if err := w.add(b[:n]); err != nil {
				return err
			}
			b = b[n:]
		}
	}
	if err := w.add(binary.LittleEndian.AppendUint32(nil, sum)); err != nil {
		return err
	}
	return w.flush()
}

// End says that nothing more comes of what was asked for.
func (w *FrameWriter) End() error {
	if err := w.add(frameHead(frameEnd, 0, 0, 0)); err != nil {
		return err
	}
	return w.flush()
}

// Error ends what was asked for with the text of an error.
func (w *FrameWriter) Error(text string) error {
	text = text[:min(len(text), maxErrorBytes)]
	if err := w.add(frameHead(frameError, len(text), 0, 0), []byte(text)); err != nil {
		return err
	}
	return w.flush()
}

func (w *FrameWriter) add(pieces ...[]byte) error {
	for _, b := range pieces {
		w.out = append(w.out, b)
		w.size += len(b)
	}
	if w.size < writeBytes {
		return nil
	}
	return w.flush()
}

func (w *FrameWriter) flush() error {
	if err := w.conn.SetWriteDeadline(time.Now().Add(stall)); err != nil {
		return gone(err)
	}
	rest := w.out
	_, err := rest.WriteTo(w.conn)
	clear(w.out)
	w.out, w.size = w.out[:0], 0
	return gone(err)
}

func frameHead(kind byte, header, body int, slice uint32) []byte {
	head := make([]byte, 0, headBytes)
	head = append(head, kind, 0, 0, 0)
	head = binary.LittleEndian.AppendUint32(head, uint32(header)) //nolint:gosec // Headers are far smaller.
	head = binary.LittleEndian.AppendUint64(head, uint64(body))   //nolint:gosec // Never negative.
	head = binary.LittleEndian.AppendUint32(head, slice)
	return binary.LittleEndian.AppendUint32(head, update(0, head))
}

// FrameReader reads frames.
type FrameReader struct {
	r       *bufio.Reader
	maxBody int
	head    [headBytes]byte
}

// NewFrameReader reads from r, but no message with a body of more than maxBody bytes.
func NewFrameReader(r io.Reader, maxBody int) *FrameReader {
	return &FrameReader{r: bufio.NewReaderSize(r, 4<<10), maxBody: maxBody}
}

// RemoteError is the text with which the other side ended what was asked for.
type RemoteError struct{ Text string }

// Error is the text.
func (e *RemoteError) Error() string { return e.Text }

// Next reads the next message into m and says of which slice it is and which [Checksum] it should have; io.EOF after the
// last one. Lengths are covered by a checksum of their own, so that nothing is made room for that was damaged.
func (r *FrameReader) Next(m *Incoming) (slice, sum uint32, err error) {
	header, body, slice, kind, err := r.readHead()
	if err != nil {
		return 0, 0, err
	}
	if m.header, err = r.read(header); err != nil {
		return 0, 0, err
	}
	switch kind {
	case frameEnd:
		return 0, 0, io.EOF
	case frameError:
		return 0, 0, &RemoteError{Text: string(m.header)}
	}
	if body > 0 {
		m.Drop()
		m.body = m.alloc.Alloc(body)
	}
	m.sum = update(0, m.header)
	for left := m.body; len(left) > 0; {
		n := min(writeBytes, len(left))
		if _, err := io.ReadFull(r.r, left[:n]); err != nil {
			m.Drop()
			return 0, 0, gone(err)
		}
		m.sum = update(m.sum, left[:n])
		left = left[n:]
	}
	var tail [4]byte
	if _, err := io.ReadFull(r.r, tail[:]); err != nil {
		m.Drop()
		return 0, 0, gone(err)
	}
	return slice, binary.LittleEndian.Uint32(tail[:]), nil
}

func (r *FrameReader) readHead() (header, body int, slice uint32, kind byte, err error) {
	head := r.head[:]
	if _, err := io.ReadFull(r.r, head); err != nil {
		return 0, 0, 0, 0, gone(err)
	}
	if sum := crc32.Checksum(head[:headBytes-4], crc32.MakeTable(crc32.Castagnoli)); sum != binary.LittleEndian.Uint32(head[headBytes-4:]) {
		return 0, 0, 0, 0, errkind.Errorf(errkind.BadData, "the head of a message was damaged on the way")
	}
	kind = head[0]
	headerBytes, bodyBytes := binary.LittleEndian.Uint32(head[4:]), binary.LittleEndian.Uint64(head[8:])
	limit, body64 := uint32(MaxHeaderBytes), uint64(r.maxBody) //nolint:gosec // Never negative.
	if kind == frameError {
		limit = maxErrorBytes
	}
	if kind != frameMessage {
		body64 = 0
	}
	if kind < frameMessage || kind > frameError || headerBytes > limit || bodyBytes > body64 {
		return 0, 0, 0, 0, errkind.Errorf(errkind.BadData, "a message of kind %d with %d and %d bytes, more than is accepted", kind, headerBytes, bodyBytes)
	}
	return int(headerBytes), int(bodyBytes), binary.LittleEndian.Uint32(head[16:]), kind, nil //nolint:gosec // Both were compared.
}

// read reads n bytes, for which room is made as they come.
func (r *FrameReader) read(n int) ([]byte, error) {
	b := make([]byte, 0, min(n, 4<<10))
	for len(b) < n {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		k, err := io.ReadFull(r.r, b[len(b):min(n, cap(b))])
		b = b[:len(b)+k]
		if err != nil {
			return nil, gone(err)
		}
	}
	return b, nil
}

// gone is err of a connection: with or without an end of its file, it has broken.
func gone(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errkind.Errorf(errkind.Unavailable, "the connection has ended in the middle of a message")
	}
	return errkind.With(errkind.Unavailable, fmt.Errorf("on the data connection: %w", err))
}
