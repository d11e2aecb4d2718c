package partition

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"

	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/grpcerr"
	"github.com/millrace/millrace/preprocess/partition/flightdata"
)

// ChannelByte is the first byte of a connection that asks for slices without HTTP/2. HTTP/2 begins with another one, and
// so does TLS: all can share an address.
const ChannelByte = 'M'

// GreetingBytes is the length of what both ends of a channel say first. It is more than an HTTP/2 server waits for, so one
// that knows nothing of channels hangs up at once.
const GreetingBytes = 32

const (
	channelMagic   = "MRCHANL"
	channelVersion = 1
	channelTLS     = 1
	// greetTimeout is how long the other end may take for its greeting.
	greetTimeout = 10 * time.Second
)

// Greeting is what both ends of a channel say first.
type Greeting struct {
	// TLS says that the handshake of TLS follows. Both ends say what they are set to, so that they can tell if it differs.
	TLS bool
}

// Append appends the encoded form.
func (g Greeting) Append(dst []byte) []byte {
	b := make([]byte, GreetingBytes)
	copy(b, channelMagic)
	b[len(channelMagic)] = channelVersion
	if g.TLS {
		b[len(channelMagic)+1] = channelTLS
	}
	return append(dst, b...)
}

// ParseGreeting reads what [Greeting.Append] writes. Something else is an error of kind Invalid.
func ParseGreeting(b []byte) (Greeting, error) {
	g := Greeting{TLS: len(b) == GreetingBytes && b[len(channelMagic)+1]&channelTLS != 0}
	if !bytes.Equal(b, g.Append(nil)) {
		return Greeting{}, errkind.Errorf(errkind.Invalid, "the other end speaks another protocol or version")
	}
	return g, nil
}

// AppendRequest appends what asks for a ticket.
func AppendRequest(dst, ticket []byte) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(ticket))) //nolint:gosec // At most MaxTicketBytes.
	return append(dst, ticket...)
}

// HandleChannel serves one channel, of which [ChannelByte] was read, until its other end hangs up or conn is closed: for
// each ticket that comes its slices, as flightdata.FrameWriter writes them. With config, the channel has to be encrypted.
func (s *Server) HandleChannel(ctx context.Context, conn net.Conn, config *tls.Config) {
	defer func() { _ = conn.Close() }()
	channel, err := answerGreeting(ctx, conn, config)
	for err == nil {
		err = s.answer(channel)
	}
}

// answerGreeting is the server's half of the beginning. It says what it wants even if the other end wants something else,
// for that one to tell.
func answerGreeting(ctx context.Context, conn net.Conn, config *tls.Config) (net.Conn, error) {
	if err := conn.SetDeadline(time.Now().Add(greetTimeout)); err != nil {
		return nil, err
	}
	b := [GreetingBytes]byte{ChannelByte}
	if _, err := io.ReadFull(conn, b[1:]); err != nil {
		return nil, err
	}
	theirs, err := ParseGreeting(b[:])
	if err != nil {
		return nil, err
	}
	mine := Greeting{TLS: config != nil}
	if _, err := conn.Write(mine.Append(nil)); err != nil {
		return nil, err
	}
	if theirs != mine {
		return nil, errkind.Errorf(errkind.Invalid, "only one end of a channel is set to TLS")
	}
	if config != nil {
		secure := tls.Server(conn, config)
		ctx, cancel := context.WithTimeout(ctx, greetTimeout)
		defer cancel()
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, fmt.Errorf("handshake of TLS: %w", err)
		}
		conn = secure
	}
	return conn, conn.SetDeadline(time.Time{})
}

// answer reads one ticket and sends its slices. Its error ends the channel; one of the ticket does not.
func (s *Server) answer(conn net.Conn) error {
	ticket, err := readRequest(conn)
	if err != nil {
		return err
	}
	w := flightdata.NewFrameWriter(conn)
	t, err := ParseTicket(ticket)
	if err != nil {
		return refuse(w, err)
	}
	r, err := s.store.open(t)
	if err != nil {
		return refuse(w, err)
	}
	defer r.close()
	if err := w.Message(SchemaSlice, flightdata.NewSchema(r.schema())); err != nil {
		return err
	}
	for i := range t.Slices {
		rec, done := r.next(i)
		message, err := flightdata.NewRecord(rec, done)
		if err != nil {
			done()
			return refuse(w, err)
		}
		if err := w.Message(uint32(i), message); err != nil {
			return err
		}
	}
	return w.End()
}

func refuse(w *flightdata.FrameWriter, err error) error {
	return w.Error(status.Convert(grpcerr.ToStatus(err)).Message())
}

func readRequest(conn net.Conn) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(size[:])
	if n > MaxTicketBytes {
		return nil, errkind.Errorf(errkind.Invalid, "ticket has %d bytes; at most %d are accepted", n, MaxTicketBytes)
	}
	ticket := make([]byte, n)
	_, err := io.ReadFull(conn, ticket)
	return ticket, err
}
