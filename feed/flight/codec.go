package flight

import (
	"io"
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
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

// data is a FlightData message whose body lies in the buffers of a record batch.
type data struct {
	header      []byte
	appMetadata []byte
	body        [][]byte
	release     func() // called once, when the body is not needed any more
}

// schemaData is the first message of a stream.
func schemaData(schema *arrow.Schema) *data {
	payload := ipc.GetSchemaPayload(schema, memory.DefaultAllocator)
	defer payload.Release()
	meta := payload.Meta()
	defer meta.Release()
	return &data{header: slices.Clone(meta.Bytes()), release: func() {}}
}

// recordData is the message of a record batch. It holds references to its buffers until release.
func recordData(rec arrow.RecordBatch, appMetadata []byte) (*data, error) {
	payload, err := ipc.GetRecordBatchPayload(rec)
	if err != nil {
		return nil, errkind.Errorf(errkind.Internal, "encoding a batch: %w", err)
	}
	meta := payload.Meta()
	release := func() {
		meta.Release()
		payload.Release()
	}
	var body pieces
	if err := payload.SerializeBody(&body); err != nil {
		release()
		return nil, errkind.Errorf(errkind.Internal, "encoding a batch: %w", err)
	}
	return &data{header: meta.Bytes(), appMetadata: appMetadata, body: body, release: release}, nil
}

// pieces records what is written to it, without copying: what it is given are Arrow's own buffers, which stay as they
// are until their payload is released.
type pieces [][]byte

var _ io.Writer = (*pieces)(nil)

// Write keeps b itself.
func (p *pieces) Write(b []byte) (int, error) {
	*p = append(*p, b)
	return len(b), nil
}

// codec encodes data without copying its body and leaves everything else to the standard codec.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{CodecV2: encoding.GetCodecV2(proto.Name)} }

// Marshal makes a valid FlightData message: what goes before the body and its small pieces are copied into one
// buffer, large pieces are referred to.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	d, ok := v.(*data)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	size := 0
	for _, b := range d.body {
		size += len(b)
	}
	copied := appendField(nil, fieldHeader, d.header)
	if len(d.appMetadata) > 0 {
		copied = appendField(copied, fieldAppMetadata, d.appMetadata)
	}
	if size > 0 {
		copied = protowire.AppendTag(copied, fieldBody, protowire.BytesType)
		copied = protowire.AppendVarint(copied, uint64(size))
	}
	var out mem.BufferSlice
	sending := newSending(d.release)
	for _, b := range d.body {
		if mem.IsBelowBufferPoolingThreshold(len(b)) { // gRPC never says when it is done with such a buffer
			copied = append(copied, b...)
			continue
		}
		if len(copied) > 0 {
			out = append(out, mem.SliceBuffer(copied))
			copied = nil
		}
		piece := slices.Clip(b)
		out = append(out, mem.NewBuffer(&piece, sending.hold()))
	}
	if len(copied) > 0 {
		out = append(out, mem.SliceBuffer(copied))
	}
	sending.state.done()
	return out, nil
}

func appendField(dst []byte, field protowire.Number, value []byte) []byte {
	dst = protowire.AppendTag(dst, field, protowire.BytesType)
	return protowire.AppendBytes(dst, value)
}

// sending is a message on its way: it is released when gRPC has given back all of its pieces.
//
// gRPC forgets the pieces of messages that are half written when their connection breaks. Then only the garbage
// collector sees that nobody refers to them any more; so gRPC is given a token, and what is left is released when the
// token is collected.
type sending struct {
	state *sendState
	token *token
}

type sendState struct {
	pieces   atomic.Int64
	released atomic.Bool
	release  func()
}

// token is the pool that gRPC believes its buffers come from.
type token struct{ state *sendState }

var _ mem.BufferPool = (*token)(nil)

// newSending begins with one piece, that of the caller, so that the message is not released while pieces are added.
func newSending(release func()) sending {
	state := &sendState{release: release}
	state.pieces.Store(1)
	t := &token{state: state}
	runtime.AddCleanup(t, (*sendState).free, state)
	return sending{state: state, token: t}
}

func (s sending) hold() mem.BufferPool {
	s.state.pieces.Add(1)
	return s.token
}

func (s *sendState) done() {
	if s.pieces.Add(-1) == 0 {
		s.free()
	}
}

func (s *sendState) free() {
	if !s.released.Swap(true) {
		s.release()
	}
}

// Get is never called: buffers are only given back.
func (t *token) Get(n int) *[]byte {
	b := make([]byte, n)
	return &b
}

// Put takes a piece back.
func (t *token) Put(*[]byte) { t.state.done() }
