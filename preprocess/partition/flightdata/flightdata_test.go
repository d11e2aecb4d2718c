package flightdata

import (
	"bytes"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/internal/errkind"
)

func record(tb testing.TB, alloc memory.Allocator, rows int) arrow.RecordBatch {
	tb.Helper()
	b := array.NewRecordBuilder(alloc, arrow.NewSchema([]arrow.Field{
		{Name: "n", Type: arrow.PrimitiveTypes.Int64}, {Name: "flag", Type: arrow.FixedWidthTypes.Boolean}, {Name: "text", Type: arrow.BinaryTypes.String},
	}, nil))
	defer b.Release()
	numbers, _ := b.Field(0).(*array.Int64Builder)
	flags, _ := b.Field(1).(*array.BooleanBuilder)
	texts, _ := b.Field(2).(*array.StringBuilder)
	for i := range rows {
		numbers.Append(int64(i))
		flags.Append(i%3 == 0)
		texts.Append(strings.Repeat("x", i%5))
	}
	return b.NewRecordBatch()
}

// replay gives a stock Flight reader the messages of a stream.
type replay struct{ messages [][]byte }

func (r *replay) Recv() (*flight.FlightData, error) {
	var d flight.FlightData
	raw := r.messages[0]
	r.messages = r.messages[1:]
	return &d, encoding.GetCodecV2("proto").Unmarshal(mem.BufferSlice{mem.SliceBuffer(raw)}, &d)
}

// What is sent without copying is read by a stock reader as the same rows, and its buffers are given back exactly when
// gRPC is done with them.
func TestMessagesAreReadByStockReaders(t *testing.T) {
	for _, rows := range []int{0, 1, 7, 100, 5000} {
		alloc := memory.NewCheckedAllocator(memory.DefaultAllocator)
		rec := record(t, alloc, rows)
		want := record(t, memory.DefaultAllocator, rows)
		done := false
		m, err := NewRecord(rec, func() { done = true })
		if err != nil {
			t.Fatal(err)
		}
		m.AppMetadata = []byte("meta")
		rec.Release()
		c := newCodec()
		schema, err := c.Marshal(NewSchema(rec.Schema()))
		if err != nil {
			t.Fatal(err)
		}
		body, err := c.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		reader, err := flight.NewRecordReader(&replay{messages: [][]byte{schema.Materialize(), body.Materialize()}})
		if err != nil {
			t.Fatal(err)
		}
		got, err := reader.Read()
		if err != nil {
			t.Fatal(err)
		}
		if !array.RecordEqual(want, got) || string(reader.LatestAppMetadata()) != "meta" {
			t.Errorf("%d rows came otherwise", rows)
		}
		reader.Release()
		if rows == 5000 && (alloc.CurrentAlloc() == 0 || done) {
			t.Error("buffers were given back before gRPC was done with them")
		}
		body.Free()
		alloc.AssertSize(t, 0)
		if !done {
			t.Error("nobody was told that the message is sent")
		}
	}
}

// Rows cut out of a batch stay in memory until they are sent, though nobody else holds the batch any more.
func TestRowsOfABatchAreHeldUntilSent(t *testing.T) {
	for _, cut := range [][2]int64{{0, 5000}, {0, 2500}, {2500, 5000}, {64, 4999}} {
		alloc := memory.NewCheckedAllocator(memory.DefaultAllocator)
		rec := record(t, alloc, 5000)
		all := alloc.CurrentAlloc()
		rows := rec.NewSlice(cut[0], cut[1])
		rec.Release()
		m, err := NewRecord(rows, func() {})
		if err != nil {
			t.Fatal(err)
		}
		rows.Release()
		body, err := newCodec().Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if held := alloc.CurrentAlloc(); held < all {
			t.Errorf("rows %v: of %d bytes %d are held", cut, all, held)
		}
		body.Free()
		alloc.AssertSize(t, 0)
	}
}

// Buffers that gRPC forgets are given back by the garbage collector.
func TestForgottenMessagesAreReleased(t *testing.T) {
	released := make(chan struct{})
	func() {
		large := make([]byte, 1<<20)
		if _, err := newCodec().Marshal(&Outgoing{header: []byte("h"), body: [][]byte{large}, release: func() { close(released) }}); err != nil {
			t.Fatal(err)
		}
	}()
	for {
		runtime.GC()
		select {
		case <-released:
			return
		default:
			runtime.Gosched()
		}
	}
}

// slab is an allocator of aligned buffers that counts what it has handed out.
type slab struct {
	t     testing.TB
	live  map[*byte]int
	bytes int
	limit int
}

func newSlab(tb testing.TB) *slab {
	tb.Helper()
	return &slab{t: tb, live: map[*byte]int{}, limit: 64 << 20}
}

func (s *slab) Alloc(n int) []byte {
	if s.bytes += n; s.bytes > s.limit {
		s.t.Fatalf("%d bytes are asked for", s.bytes)
	}
	b := memory.NewGoAllocator().Allocate(max(n, 1))
	s.live[&b[:1][0]] = n
	return b[:n]
}

func (s *slab) Free(b []byte) {
	n, ok := s.live[&b[:1][0]]
	if !ok {
		s.t.Fatal("a buffer was given back twice")
	}
	s.bytes -= n
	delete(s.live, &b[:1][0])
}

func (s *slab) Allocate(n int) []byte             { return s.Alloc(n) }
func (s *slab) Reallocate(_ int, b []byte) []byte { return b }

func (s *slab) Buffer(b []byte) *memory.Buffer { return memory.NewBufferWithAllocator(b, s) }

// stockMessage is what a stock server sends for rec.
func stockMessage(tb testing.TB, rec arrow.RecordBatch) *flight.FlightData {
	tb.Helper()
	payload, err := ipc.GetRecordBatchPayload(rec)
	if err != nil {
		tb.Fatal(err)
	}
	defer payload.Release()
	var body bytes.Buffer
	if err := payload.SerializeBody(&body); err != nil {
		tb.Fatal(err)
	}
	meta := payload.Meta()
	defer meta.Release()
	return &flight.FlightData{DataHeader: bytes.Clone(meta.Bytes()), AppMetadata: []byte("meta"), DataBody: body.Bytes()}
}

// cut is raw in pieces of n bytes.
func cut(raw []byte, n int) mem.BufferSlice {
	var out mem.BufferSlice
	for len(raw) > 0 {
		k := min(n, len(raw))
		out = append(out, mem.SliceBuffer(raw[:k]))
		raw = raw[k:]
	}
	return out
}

// What a stock server sends is received into the buffer of the receiver, aligned, in whatever pieces it comes, and its
// checksum is that of the message.
func TestMessagesOfStockServersAreReceived(t *testing.T) {
	rec := record(t, memory.DefaultAllocator, 20_000)
	defer rec.Release()
	stock := stockMessage(t, rec)
	raw, err := proto.Marshal(stock)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{1, 100, 16 << 10, len(raw)} {
		s := newSlab(t)
		in := NewIncoming(s)
		if err := newCodec().Unmarshal(cut(raw, n), in); err != nil {
			t.Fatal(err)
		}
		if !in.HasHeader() || string(in.AppMetadata) != "meta" || in.Checksum() != Checksum(stock.GetDataHeader(), stock.GetDataBody()) {
			t.Errorf("in pieces of %d it is another message", n)
		}
		if at := uintptr(unsafe.Pointer(&in.body[0])); at%64 != 0 { //nolint:gosec // Where it lies is what matters.
			t.Errorf("the body lies at %x", at)
		}
		m := in.Message()
		in.Drop() // does nothing: the body is the message's
		if len(s.live) != 1 || !bytes.Equal(in.header, stock.GetDataHeader()) {
			t.Error("the message does not hold the body")
		}
		m.Release()
		if len(s.live) != 0 {
			t.Error("the body was not given back")
		}
	}
}

// A message without a body has a checksum too, and one whose fields come in another order has the same.
func TestChecksumDoesNotDependOnTheOrderOfFields(t *testing.T) {
	header, body := []byte("a header"), []byte("the body")
	forward := appendField(appendField(nil, fieldHeader, header), fieldBody, body)
	backward := appendField(appendField(nil, fieldBody, body), fieldHeader, header)
	for _, raw := range [][]byte{forward, backward} {
		in := NewIncoming(newSlab(t))
		if err := newCodec().Unmarshal(cut(raw, 3), in); err != nil {
			t.Fatal(err)
		}
		if in.Checksum() != Checksum(header, body) {
			t.Errorf("checksum %08x", in.Checksum())
		}
		in.Drop()
	}
	in := NewIncoming(newSlab(t))
	if err := newCodec().Unmarshal(cut(appendField(nil, fieldHeader, header), 3), in); err != nil || in.Checksum() != Checksum(header) {
		t.Errorf("without a body: %v", err)
	}
}

// Whatever bytes come, reading them ends in a message or an error, agrees with protobuf on what is well formed, asks for
// no more memory than there are bytes, and keeps no buffer.
func FuzzReceive(f *testing.F) {
	good, err := proto.Marshal(&flight.FlightData{
		FlightDescriptor: &flight.FlightDescriptor{Cmd: []byte("x")}, DataHeader: []byte("header"), AppMetadata: []byte("meta"), DataBody: []byte("body"),
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good, uint8(3))
	f.Add(good[:len(good)-2], uint8(1))
	f.Add([]byte{0x08, 0x01, 0x15, 1, 2, 3, 4, 0x19, 1, 2, 3, 4, 5, 6, 7, 8}, uint8(200))
	f.Add([]byte{0xc2, 0x3e, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}, uint8(2))
	f.Add([]byte{0xc2, 0x3e, 0xff, 0xff, 0xff, 0x7f}, uint8(2))
	f.Fuzz(func(t *testing.T, raw []byte, pieces uint8) {
		s := newSlab(t)
		s.limit = min(s.limit, len(raw))
		in := NewIncoming(s)
		err := newCodec().Unmarshal(cut(raw, int(pieces)+1), in)
		var want flight.FlightData
		wantErr := proto.Unmarshal(raw, &want)
		switch {
		case err != nil && errkind.Of(err) != errkind.BadData:
			t.Errorf("an error of kind %s: %v", errkind.Of(err), err)
		case err != nil && wantErr == nil && !mayHaveGroups(raw):
			t.Errorf("refused what protobuf reads: %v", err)
		case err == nil && wantErr == nil:
			if !bytes.Equal(in.header, want.GetDataHeader()) || !bytes.Equal(in.AppMetadata, want.GetAppMetadata()) || !bytes.Equal(in.body, want.GetDataBody()) {
				t.Errorf("read %q %q %q, protobuf has %q %q %q", in.header, in.AppMetadata, in.body, want.GetDataHeader(), want.GetAppMetadata(), want.GetDataBody())
			}
			if in.Checksum() != Checksum(want.GetDataHeader(), want.GetDataBody()) {
				t.Errorf("checksum %08x", in.Checksum())
			}
		}
		in.Drop()
		if len(s.live) != 0 {
			t.Error("a buffer was kept")
		}
	})
}

// mayHaveGroups says whether raw may hold groups, an old form that protobuf skips and this codec refuses.
func mayHaveGroups(raw []byte) bool {
	for _, b := range raw {
		if b&7 == 3 {
			return true
		}
	}
	return false
}
