package flightdata

import (
	"io"
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/millrace/millrace/internal/errkind"
)

// Outgoing is a message to send once, with SendMsg of a stream whose server has [ServerOptions].
type Outgoing struct {
	// AppMetadata goes with it.
	AppMetadata []byte

	header  []byte
	body    [][]byte
	release func() // called once, when the body is not needed any more
}

// NewSchema is the first message of a stream.
func NewSchema(schema *arrow.Schema) *Outgoing {
	payload := ipc.GetSchemaPayload(schema, memory.DefaultAllocator)
	defer payload.Release()
	meta := payload.Meta()
	defer meta.Release()
	return &Outgoing{header: slices.Clone(meta.Bytes()), release: func() {}}
}

// NewRecord is the message of a record batch. It holds a reference to the batch until it was sent or dropped, and then
// calls done. Where it cannot be made, done is not called.
//
// The reference is to the batch itself: Arrow's payload of rows cut out of a batch refers to their memory without
// holding the buffers that it belongs to.
func NewRecord(rec arrow.RecordBatch, done func()) (*Outgoing, error) {
	payload, err := ipc.GetRecordBatchPayload(rec)
	if err != nil {
		return nil, errkind.Errorf(errkind.Internal, "encoding a record batch: %w", err)
	}
	meta := payload.Meta()
	var body pieces
	if err := payload.SerializeBody(&body); err != nil {
		meta.Release()
		payload.Release()
		return nil, errkind.Errorf(errkind.Internal, "encoding a record batch: %w", err)
	}
	rec.Retain()
	return &Outgoing{header: meta.Bytes(), body: body, release: func() {
		meta.Release()
		payload.Release()
		rec.Release()
		done()
	}}, nil
}

// Checksum is the [Checksum] of the message.
func (m *Outgoing) Checksum() uint32 { return Checksum(m.header, m.body...) }

// Drop gives up a message that will not be sent.
func (m *Outgoing) Drop() { m.release() }

// pieces records what is written to it, without copying: what it is given are Arrow's own buffers, which stay as they
// are until their payload is released.
type pieces [][]byte

var _ io.Writer = (*pieces)(nil)

// Write keeps b itself.
func (p *pieces) Write(b []byte) (int, error) {
	*p = append(*p, b)
	return len(b), nil
}

// marshal copies what goes before the body and its small pieces into one buffer and refers to large pieces.
func (m *Outgoing) marshal() mem.BufferSlice {
	size := 0
	for _, b := range m.body {
		size += len(b)
	}
	copied := appendField(nil, fieldHeader, m.header)
	if len(m.AppMetadata) > 0 {
		copied = appendField(copied, fieldAppMetadata, m.AppMetadata)
	}
	if size > 0 {
		copied = protowire.AppendTag(copied, fieldBody, protowire.BytesType)
		copied = protowire.AppendVarint(copied, uint64(size))
	}
	var out mem.BufferSlice
	sending := newSending(m.release)
	for _, b := range m.body {
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
	return out
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
