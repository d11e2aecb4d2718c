package partition

import (
	"encoding/binary"
	"hash/crc32"
	"io"
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc"
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

// flightData is a FlightData message whose body lies in the buffers of a record batch.
type flightData struct {
	header      []byte
	appMetadata []byte
	body        [][]byte
	release     func() // called once, when the body is not needed any more
}

// newSchemaData is the first message of a stream.
func newSchemaData(schema *arrow.Schema) *flightData {
	payload := ipc.GetSchemaPayload(schema, memory.DefaultAllocator)
	defer payload.Release()
	meta := payload.Meta()
	defer meta.Release()
	return &flightData{header: slices.Clone(meta.Bytes()), release: func() {}}
}

// newRecordData is the message of slice i. Its release ends with done, after which rec is not needed any more.
func newRecordData(i int, rec arrow.RecordBatch, done func()) (*flightData, error) {
	payload, err := ipc.GetRecordBatchPayload(rec)
	if err != nil {
		return nil, errkind.Errorf(errkind.Internal, "encoding slice %d: %w", i, err)
	}
	meta := payload.Meta()
	var body pieces
	if err := payload.SerializeBody(&body); err != nil {
		meta.Release()
		payload.Release()
		return nil, errkind.Errorf(errkind.Internal, "encoding slice %d: %w", i, err)
	}
	return &flightData{
		header:      meta.Bytes(),
		appMetadata: AppMetadata{Slice: uint32(i), CRC32C: Checksum(meta.Bytes(), body...)}.Append(nil), //nolint:gosec // At most MaxSlices.
		body:        body,
		release: func() {
			meta.Release()
			payload.Release()
			done()
		},
	}, nil
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

// AppMetadata goes with each record batch of a stream, as 8 bytes, little endian.
type AppMetadata struct {
	// Slice is the index of the slice in the ticket.
	Slice uint32
	// CRC32C is the checksum of the message, see [Checksum].
	CRC32C uint32
}

// Append appends the encoded form to dst.
func (a AppMetadata) Append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, a.Slice)
	return binary.LittleEndian.AppendUint32(dst, a.CRC32C)
}

// ParseAppMetadata reads what [AppMetadata.Append] writes. Its error is of kind BadData.
func ParseAppMetadata(b []byte) (AppMetadata, error) {
	if len(b) != 8 {
		return AppMetadata{}, errkind.Errorf(errkind.BadData, "app_metadata of a record batch has %d bytes, not 8", len(b))
	}
	return AppMetadata{Slice: binary.LittleEndian.Uint32(b), CRC32C: binary.LittleEndian.Uint32(b[4:])}, nil
}

// Checksum is the CRC-32C of data_header followed by data_body, which may come in pieces. A receiver checks it before
// it lets Arrow read the header: a damaged one can ask for more memory than there is.
func Checksum(header []byte, body ...[]byte) uint32 {
	table := crc32.MakeTable(crc32.Castagnoli)
	sum := crc32.Update(0, table, header)
	for _, b := range body {
		sum = crc32.Update(sum, table, b)
	}
	return sum
}

// ServerOption makes a gRPC server send record batches without copying them. A server that [Server] is registered
// with needs it. Other messages and other services of the same server are not affected.
func ServerOption() grpc.ServerOption {
	return grpc.ForceServerCodecV2(codec{CodecV2: encoding.GetCodecV2(proto.Name)})
}

// codec encodes flightData without copying its body and leaves everything else to the standard codec.
type codec struct{ encoding.CodecV2 }

// Marshal makes a valid FlightData message: what goes before the body and its small pieces are copied into one
// buffer, large pieces are referred to.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	d, ok := v.(*flightData)
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
	sent := newSent(d)
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
		out = append(out, mem.NewBuffer(&piece, sent.hold()))
	}
	if len(copied) > 0 {
		out = append(out, mem.SliceBuffer(copied))
	}
	sent.done()
	return out, nil
}

func appendField(dst []byte, field protowire.Number, value []byte) []byte {
	dst = protowire.AppendTag(dst, field, protowire.BytesType)
	return protowire.AppendBytes(dst, value)
}

// sent is a message on its way: it is released when gRPC has given back all of its pieces.
//
// gRPC forgets the pieces of messages that are half written when their connection breaks. Then only the garbage
// collector sees that nobody refers to them any more; so gRPC is given a token, and what is left is released when the
// token is collected.
type sent struct {
	*sentState
	token *token
}

type sentState struct {
	pieces   atomic.Int64
	released atomic.Bool
	release  func()
}

// token is the pool that gRPC believes its buffers come from.
type token struct{ state *sentState }

var _ mem.BufferPool = (*token)(nil)

// newSent begins with one piece, that of the caller, so that the message is not released while pieces are added.
func newSent(d *flightData) sent {
	state := &sentState{release: d.release}
	state.pieces.Store(1)
	t := &token{state: state}
	runtime.AddCleanup(t, (*sentState).free, state)
	return sent{sentState: state, token: t}
}

func (s sent) hold() mem.BufferPool {
	s.pieces.Add(1)
	return s.token
}

func (s *sentState) done() {
	if s.pieces.Add(-1) == 0 {
		s.free()
	}
}

func (s *sentState) free() {
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
