package partition

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/lineage"
	"github.com/millrace/millrace/preprocess/partition/flightdata"
)

// serve runs a Server over store and returns a stock Flight client of it.
func serve(t *testing.T, store *Store) (flight.FlightServiceClient, func()) {
	t.Helper()
	lis := bufconn.Listen(1 << 20)
	server := grpc.NewServer(flightdata.ServerOptions()...)
	NewServer(store).Register(server)
	done := make(chan error, 1)
	go func() { done <- server.Serve(lis) }()
	cc, err := grpc.NewClient("passthrough:///store",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cc.Close()
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return flight.NewClientFromConn(cc, nil), func() { _ = cc.Close() }
}

// fetchRemote reads a ticket with Arrow's own reader, checking sums and slice numbers on the way.
func fetchRemote(t *testing.T, client flight.FlightServiceClient, ticket Ticket) ([]arrow.RecordBatch, error) {
	t.Helper()
	b, err := ticket.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	stream, err := client.DoGet(t.Context(), &flight.Ticket{Ticket: b})
	if err != nil {
		return nil, err
	}
	checked := &checkingStream{t: t, stream: stream}
	r, err := flight.NewRecordReader(checked)
	if err != nil {
		return nil, err
	}
	defer r.Release()
	var out []arrow.RecordBatch
	for r.Next() {
		rec := r.RecordBatch()
		rec.Retain()
		out = append(out, rec)
	}
	return out, r.Err()
}

type checkingStream struct {
	t        *testing.T
	stream   flight.FlightService_DoGetClient
	messages uint32
}

func (s *checkingStream) Recv() (*flight.FlightData, error) {
	data, err := s.stream.Recv()
	if err != nil || len(data.GetAppMetadata()) == 0 {
		return data, err
	}
	meta, err := ParseAppMetadata(data.GetAppMetadata())
	if err != nil {
		s.t.Error(err)
	}
	if sum := flightdata.Checksum(data.GetDataHeader(), data.GetDataBody()); meta != (AppMetadata{Slice: s.messages - 1, CRC32C: sum}) {
		s.t.Errorf("message %d with checksum %x says %+v", s.messages, sum, meta)
	}
	s.messages++
	return data, nil
}

func TestRowsAreTheSameByReferenceAndOverFlight(t *testing.T) {
	pool := NewPool(0)
	store := NewStore("w1", Hooks{})
	typ, err := NewTensorType(arrow.PrimitiveTypes.Uint8, []int64{70, 10}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		rec := tensorRecord(t, pool, typ, 8, "x", func(b []byte) {
			for j := range b {
				b[j] = byte(i + j*7)
			}
		})
		store.Put("job", 0, New(lineage.SourceID(0, uint64(i)), 1, rec))
		rec.Release()
	}
	ticket := Ticket{Job: "job", Slices: []Slice{
		{ID: lineage.SourceID(0, 2), Attempt: 1, First: 3, Rows: 5},
		{ID: lineage.SourceID(0, 0), Attempt: 1, First: 0, Rows: 8},
		{ID: lineage.SourceID(0, 1), Attempt: 1, First: 7, Rows: 1},
	}}
	client, _ := serve(t, store)
	remote, err := fetchRemote(t, client, ticket)
	if err != nil || len(remote) != len(ticket.Slices) {
		t.Fatalf("%d record batches: %v", len(remote), err)
	}
	err = Local(store).Fetch(t.Context(), ticket, func(i int, rec arrow.RecordBatch) error {
		if rec.NumRows() != ticket.Slices[i].Rows || Hash(rec) != Hash(remote[i]) {
			t.Errorf("slice %d differs", i)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	for _, rec := range remote {
		rec.Release()
	}
	store.Close()
	for pool.Stats().LiveBuffers != 0 { // gRPC gives its buffers back shortly after the last byte was read
		runtime.Gosched()
	}
	if err := pool.Close(); err != nil {
		t.Error(err)
	}
}

func TestMissingRowsAreNamed(t *testing.T) {
	store := NewStore("w1", Hooks{})
	defer store.Close()
	store.Put("job", 0, numbers(memory.DefaultAllocator, lineage.SourceID(3, 1), 2, 4))
	client, _ := serve(t, store)
	for _, c := range []struct {
		slice Slice
		code  codes.Code
		kind  errkind.Kind
	}{
		{Slice{ID: lineage.SourceID(3, 2), Attempt: 2, Rows: 1}, codes.NotFound, errkind.NotFound},
		{Slice{ID: lineage.SourceID(3, 1), Attempt: 1, Rows: 1}, codes.NotFound, errkind.NotFound},
		{Slice{ID: lineage.SourceID(3, 1), Attempt: 2, First: 2, Rows: 3}, codes.InvalidArgument, errkind.Invalid},
	} {
		ticket := Ticket{Job: "job", Slices: []Slice{c.slice}}
		_, err := fetchRemote(t, client, ticket)
		if status.Code(err) != c.code || !strings.Contains(err.Error(), c.slice.ID.String()) {
			t.Errorf("over Flight: %v", err)
		}
		if c.code == codes.NotFound && !strings.Contains(err.Error(), "w1") {
			t.Errorf("worker is not named: %v", err)
		}
		err = Local(store).Fetch(t.Context(), ticket, func(int, arrow.RecordBatch) error { return nil })
		if errkind.Of(err) != c.kind {
			t.Errorf("by reference: %v", err)
		}
	}
	if _, err := client.DoGet(t.Context(), &flight.Ticket{Ticket: []byte("no ticket")}); err != nil {
		t.Error(err) // errors come with the first message
	}
}

func TestLocalStopsAtTheFirstError(t *testing.T) {
	mem := memory.NewCheckedAllocator(memory.DefaultAllocator)
	defer mem.AssertSize(t, 0)
	store := NewStore("w1", Hooks{})
	defer store.Close()
	ticket := Ticket{Job: "job"}
	for i := range uint64(3) {
		store.Put("job", 0, numbers(mem, lineage.SourceID(0, i), 1, 4))
		ticket.Slices = append(ticket.Slices, Slice{ID: lineage.SourceID(0, i), Attempt: 1, Rows: 4})
	}
	stop := errors.New("enough")
	calls := 0
	err := Local(store).Fetch(t.Context(), ticket, func(int, arrow.RecordBatch) error {
		calls++
		return stop
	})
	if !errors.Is(err, stop) || calls != 1 {
		t.Errorf("%d calls, then %v", calls, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Local(store).Fetch(ctx, ticket, func(int, arrow.RecordBatch) error { return nil }); errkind.Of(err) != errkind.Canceled {
		t.Errorf("cancelled: %v", err)
	}
}

// TestABrokenConnectionLeavesNothingBehind breaks the connection while a message is half written: gRPC forgets such
// buffers, and they must come back all the same.
func TestABrokenConnectionLeavesNothingBehind(t *testing.T) {
	pool := NewPool(0)
	store := NewStore("w1", Hooks{})
	typ, err := NewTensorType(arrow.PrimitiveTypes.Uint8, []int64{1 << 20}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var ticket Ticket
	ticket.Job = "job"
	for i := range uint64(4) {
		rec := tensorRecord(t, pool, typ, 8, "x", func(b []byte) { clear(b) })
		store.Put("job", 0, New(lineage.SourceID(0, i), 1, rec))
		rec.Release()
		ticket.Slices = append(ticket.Slices, Slice{ID: lineage.SourceID(0, i), Attempt: 1, Rows: 8})
	}
	client, hangUp := serve(t, store)
	b, err := ticket.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	stream, err := client.DoGet(t.Context(), &flight.Ticket{Ticket: b})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the schema and one record batch; the next ones are on their way
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	hangUp()
	if _, err := io.ReadAll(readerOf(stream)); err == nil {
		t.Error("the stream went on without its connection")
	}
	store.Close()
	for store.Bytes() != 0 {
		runtime.GC()
	}
	if err := pool.Close(); err != nil {
		t.Error(err)
	}
}

// readerOf reads the bodies of a stream until its error.
func readerOf(stream flight.FlightService_DoGetClient) io.Reader {
	return readFunc(func(p []byte) (int, error) {
		data, err := stream.Recv()
		if err != nil {
			return 0, err
		}
		return bytes.NewReader(data.GetDataBody()).Read(p)
	})
}

type readFunc func(p []byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }
