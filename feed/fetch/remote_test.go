package fetch

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/lineage"
	"github.com/millrace/millrace/preprocess/partition"
	"github.com/millrace/millrace/preprocess/partition/flightdata"
)

// worker is a data service that sends what it is told to.
type worker struct {
	flight.BaseFlightServer

	messages []*flight.FlightData
	silent   bool
}

func (w *worker) DoGet(_ *flight.Ticket, stream flight.FlightService_DoGetServer) error {
	for _, m := range w.messages {
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	if w.silent {
		<-stream.Context().Done()
	}
	return nil
}

// connect serves w in memory and gives connections to it.
func connect(t *testing.T, register func(*grpc.Server), options ...grpc.ServerOption) (*conns, *partition.Pool) {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	s := grpc.NewServer(options...)
	register(s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	pool := partition.NewPool(0)
	cfg := Config{
		Pool: pool, BudgetBytes: 1, Logger: slog.New(slog.DiscardHandler),
		Dial: func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) },
	}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	c := newConns(&cfg)
	t.Cleanup(func() {
		c.sweep(time.Now().Add(time.Hour))
		s.Stop()
		<-done
		if err := pool.Close(); err != nil {
			t.Error(err)
		}
	})
	return c, pool
}

func record(tb testing.TB, rows int) arrow.RecordBatch {
	tb.Helper()
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema([]arrow.Field{
		{Name: "n", Type: arrow.PrimitiveTypes.Int64}, {Name: "text", Type: arrow.BinaryTypes.String},
	}, nil))
	defer b.Release()
	for i := range rows {
		as[*array.Int64Builder](b.Field(0)).Append(int64(i))
		as[*array.StringBuilder](b.Field(1)).Append("row")
	}
	return b.NewRecordBatch()
}

func ticket(rows ...int64) partition.Ticket {
	t := partition.Ticket{Job: "job"}
	first := int64(0)
	for _, n := range rows {
		t.Slices = append(t.Slices, partition.Slice{ID: lineage.SourceID(0, 0), First: first, Rows: n})
		first += n
	}
	return t
}

func fetchAll(t *testing.T, c *conns, want partition.Ticket, fn func(int, arrow.RecordBatch) error) error {
	t.Helper()
	f, release, err := c.acquire("worker:1")
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	return f.Fetch(t.Context(), want, fn)
}

// Slices of a worker in another process come whole, in buffers of the pool that return there; connections that are idle
// are closed.
func TestRemoteSlices(t *testing.T) {
	store := partition.NewStore("w", partition.Hooks{})
	defer store.Close()
	rec := record(t, 100)
	store.Put("job", 1, partition.New(lineage.SourceID(0, 0), 0, rec))
	c, pool := connect(t, func(s *grpc.Server) { partition.NewServer(store).Register(s) }, flightdata.ServerOptions()...)
	at := int64(0)
	err := fetchAll(t, c, ticket(40, 60), func(_ int, got arrow.RecordBatch) error {
		want := rec.NewSlice(at, at+got.NumRows())
		defer want.Release()
		if !array.RecordEqual(want, got) {
			t.Errorf("rows from %d on differ", at)
		}
		if pool.Stats().LiveBuffers == 0 {
			t.Error("the slice does not lie in the pool")
		}
		at += got.NumRows()
		return nil
	})
	rec.Release()
	if err != nil || at != 100 {
		t.Fatalf("%d rows, %v", at, err)
	}
	if err := fetchAll(t, c, partition.Ticket{Job: "other", Slices: ticket(1).Slices}, nil); errkind.Of(err) != errkind.NotFound {
		t.Errorf("an unknown job: %v", err)
	}
	if c.len() != 1 {
		t.Errorf("%d connections", c.len())
	}
	c.sweep(time.Now().Add(-time.Hour))
	if c.len() != 1 {
		t.Error("a connection that was just used was closed")
	}
	c.sweep(time.Now().Add(time.Hour))
	if c.len() != 0 {
		t.Error("an idle connection was kept")
	}
}

// messagesOf is what a well-behaved worker sends for rec.
func messagesOf(tb testing.TB, rec arrow.RecordBatch) []*flight.FlightData {
	tb.Helper()
	schema := ipc.GetSchemaPayload(rec.Schema(), memory.DefaultAllocator)
	defer schema.Release()
	payload, err := ipc.GetRecordBatchPayload(rec)
	if err != nil {
		tb.Fatal(err)
	}
	defer payload.Release()
	var body bytes.Buffer
	if err := payload.SerializeBody(&body); err != nil {
		tb.Fatal(err)
	}
	schemaMeta, meta := schema.Meta(), payload.Meta()
	defer schemaMeta.Release()
	defer meta.Release()
	schemaHeader, header := bytes.Clone(schemaMeta.Bytes()), bytes.Clone(meta.Bytes())
	sum := flightdata.Checksum(header, body.Bytes())
	return []*flight.FlightData{
		{DataHeader: schemaHeader, AppMetadata: partition.AppMetadata{Slice: partition.SchemaSlice, CRC32C: flightdata.Checksum(schemaHeader)}.Append(nil)},
		{DataHeader: header, DataBody: body.Bytes(), AppMetadata: partition.AppMetadata{CRC32C: sum}.Append(nil)},
	}
}

// What is damaged on the way, or is not what was asked for, is an error with a cause, and no buffer is lost.
func TestDamagedSlicesAreErrors(t *testing.T) {
	for name, change := range map[string]func([]*flight.FlightData) []*flight.FlightData{
		"body": func(m []*flight.FlightData) []*flight.FlightData {
			m[1].DataBody[3] ^= 1
			return m
		},
		"schema": func(m []*flight.FlightData) []*flight.FlightData {
			m[0].DataHeader[40] ^= 1
			return m
		},
		"schema without a checksum": func(m []*flight.FlightData) []*flight.FlightData {
			m[0].AppMetadata = nil
			return m
		},
		"header": func(m []*flight.FlightData) []*flight.FlightData {
			m[1].DataHeader[9] ^= 1
			return m
		},
		"no checksum": func(m []*flight.FlightData) []*flight.FlightData {
			m[1].AppMetadata = nil
			return m
		},
		"other slice": func(m []*flight.FlightData) []*flight.FlightData {
			m[1].AppMetadata[0] = 5
			return m
		},
		"no header": func(m []*flight.FlightData) []*flight.FlightData {
			m[1].DataHeader = nil
			return m
		},
		"no schema": func(m []*flight.FlightData) []*flight.FlightData { return m[1:] },
		"garbage that passes its checksum": func(m []*flight.FlightData) []*flight.FlightData {
			m[1].DataHeader = bytes.Repeat([]byte{0xfe, 3}, 100)
			m[1].AppMetadata = partition.AppMetadata{CRC32C: flightdata.Checksum(m[1].GetDataHeader(), m[1].GetDataBody())}.Append(nil)
			return m
		},
		"one too many": func(m []*flight.FlightData) []*flight.FlightData {
			more := proto.CloneOf(m[1])
			more.AppMetadata[0] = 1
			return append(m, more)
		},
	} {
		t.Run(name, func(t *testing.T) {
			rec := record(t, 50)
			defer rec.Release()
			w := &worker{messages: change(messagesOf(t, rec))}
			c, _ := connect(t, func(s *grpc.Server) { flight.RegisterFlightServiceServer(s, w) })
			err := fetchAll(t, c, ticket(50), func(int, arrow.RecordBatch) error { return nil })
			if err == nil {
				t.Error("it was accepted")
			}
		})
	}
}

// An attempt in which nothing comes is given up and says so.
func TestSilenceIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &worker{silent: true}
		c, _ := connect(t, func(s *grpc.Server) { flight.RegisterFlightServiceServer(s, w) })
		began := time.Now()
		err := fetchAll(t, c, ticket(1), nil)
		if errkind.Of(err) != errkind.Unavailable || time.Since(began) != c.cfg.SilenceTimeout {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
	})
}

// as is v, which is known to be a T.
func as[T any](v any) T {
	t, ok := v.(T)
	if !ok {
		panic(fmt.Sprintf("%T is no %T", v, t))
	}
	return t
}
