package flightdata

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/mem"

	"github.com/millrace/millrace/internal/errkind"
)

// Fields of arrow.flight.protocol.FlightData.
const (
	fieldHeader      = 2
	fieldAppMetadata = 3
	fieldBody        = 1000
)

const (
	// WindowBytes is the HTTP/2 flow-control window of a data stream and of its connection. A message is admitted whole
	// once the receiver waits for it, so the window only has to cover what is on the way between two messages: 1 MiB is
	// 5 GB/s at 0.2 ms, and 16 streams then take 16 MiB besides their messages instead of the 256 MiB of gRPC's greatest.
	WindowBytes = 1 << 20
	// BufferBytes is what a connection reads or writes in one call of the system.
	BufferBytes = 256 << 10
)

// ServerOptions make a gRPC server send record batches without copying them, in pieces of a fixed size.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		grpc.WriteBufferSize(BufferBytes),
	}
}

// DialOptions are those of a connection that carries data: windows that do not grow, so that what it may take is known.
func DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithStaticStreamWindowSize(WindowBytes),
		grpc.WithStaticConnWindowSize(WindowBytes),
		grpc.WithReadBufferSize(BufferBytes),
		experimental.WithBufferPool(new(frames)),
	}
}

// CallOption makes a call receive into [Incoming] messages.
func CallOption() grpc.CallOption { return grpc.ForceCodecV2(newCodec()) }

// Codec reads [Incoming] and writes [Outgoing] messages, for those who have no connection.
func Codec() encoding.CodecV2 { return newCodec() }

// codec knows Outgoing and Incoming and leaves everything else to the standard codec.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{CodecV2: encoding.GetCodecV2(proto.Name)} }

// Marshal writes v.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if m, ok := v.(*Outgoing); ok {
		return m.marshal(), nil
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal reads a message into v.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*Incoming)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	r := data.Reader()
	err := m.read(r)
	if closeErr := r.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		m.Drop()
		return errkind.With(errkind.BadData, err)
	}
	return nil
}
