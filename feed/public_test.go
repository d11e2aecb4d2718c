package feed_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/loader/order"
	"github.com/millrace/millrace/preprocess/partition/flightdata"
)

// ticketOf asks for the ticket of rank 0 with record batches of a size.
func ticketOf(t *testing.T, c flight.Client, batchBytes int) map[string]any {
	t.Helper()
	cmd := fmt.Appendf(nil, `{"job": "job", "rank": 0, "batch_bytes": %d}`, batchBytes)
	info, err := c.GetFlightInfo(t.Context(), &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: cmd})
	if err != nil {
		t.Fatal(err)
	}
	var ticket map[string]any
	if err := json.Unmarshal(info.GetEndpoint()[0].GetTicket().GetTicket(), &ticket); err != nil {
		t.Fatal(err)
	}
	return ticket
}

// labelled is a batch as its pieces gave it.
type labelled struct {
	sequence, step uint64
	part           uint32
	labels         []int64
	cursor         string
}

// pieces passes messages on to a stock reader and checks the checksum of each.
type pieces struct {
	t      *testing.T
	stream flight.FlightService_DoGetClient
}

func (p pieces) Recv() (*flight.FlightData, error) {
	d, err := p.stream.Recv()
	if err == nil && len(d.GetAppMetadata()) > 0 {
		if sum := binary.LittleEndian.Uint32(d.GetAppMetadata()[56:]); sum != flightdata.Checksum(d.GetDataHeader(), d.GetDataBody()) {
			p.t.Errorf("a piece has checksum %08x", sum)
		}
	}
	return d, err
}

// readPieces reads the stream of a ticket and puts its batches together. At most rows come in a piece.
func readPieces(t *testing.T, c flight.Client, ticket map[string]any, rows int64) []labelled {
	t.Helper()
	body, err := json.Marshal(ticket)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := c.DoGet(t.Context(), &flight.Ticket{Ticket: body})
	if err != nil {
		t.Fatal(err)
	}
	reader, err := flight.NewRecordReader(pieces{t, stream})
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Release()
	var out []labelled
	var b labelled
	for reader.Next() {
		meta, rec := reader.LatestAppMetadata(), reader.RecordBatch()
		le := binary.LittleEndian
		if meta[0] != 2 || len(meta) != 64+int(le.Uint16(meta[2:])) || rec.NumRows() > rows {
			t.Fatalf("%d rows with header %x", rec.NumRows(), meta)
		}
		if int(le.Uint32(meta[60:])) != len(b.labels) || le.Uint32(meta[40:]) < uint32(len(b.labels))+uint32(rec.NumRows()) {
			t.Fatalf("the rows from %d on came after %d", le.Uint32(meta[60:]), len(b.labels))
		}
		b.labels = append(b.labels, as[interface{ Int64Values() []int64 }](rec.Column(1)).Int64Values()...)
		b.sequence, b.step, b.part, b.cursor = le.Uint64(meta[48:]), le.Uint64(meta[16:]), le.Uint32(meta[4:]), string(meta[64:])
		if meta[1]&4 != 0 {
			if b.cursor != "" {
				t.Error("a cursor came before the end of its batch")
			}
			continue
		}
		if int(le.Uint32(meta[40:])) != len(b.labels) {
			t.Fatalf("a batch of %d rows ended after %d", le.Uint32(meta[40:]), len(b.labels))
		}
		out, b = append(out, b), labelled{}
	}
	if reader.Err() != nil || len(b.labels) != 0 {
		t.Fatalf("the stream ended within a batch, or with %v", reader.Err())
	}
	return out
}

// wantLabelled is all batches of rank 0 of epoch 0.
func wantLabelled(r *rig, parts int) []labelled {
	var out []labelled
	for _, g := range want(r.dispatcher.Data, 8, order.TailPad, 0, 0, 0, 1, parts) {
		b := labelled{sequence: g.sequence, step: g.step, part: g.part, cursor: g.cursor}
		for _, row := range g.rows {
			b.labels = append(b.labels, row.label)
		}
		out = append(out, b)
	}
	return out
}

// Clients that are no trainers get batches in record batches of the size they ask for, each with a checksum, and go on
// from any sequence number with the same batches under the same numbers, in the middle of a global batch too.
func TestStreamsArePiecesAndGoOnBySequence(t *testing.T) {
	const parts = 2
	r := newRig(t, rigOptions{knownRows: true})
	client := r.client()
	s := r.settings()
	s["accumulation"] = parts
	r.open(client, s, 0, 1)
	all := wantLabelled(r, parts)
	rowBytes := r.dispatcher.Data.TensorBytes + 60
	for _, rows := range []int{1, 3, 100} {
		ticket := ticketOf(t, client, rows*rowBytes)
		for n := 0; n <= len(all); n++ {
			ticket["sequence"] = n
			if n%3 == 1 && rows != 3 {
				continue
			}
			read := readPieces(t, client, ticket, max(int64(rows)*2, 1))
			if d := cmp.Diff(all[n:], read, cmp.AllowUnexported(labelled{}), cmpEmpty()); d != "" {
				t.Fatalf("from sequence number %d in pieces of %d rows (-want +got):\n%s", n, rows, d)
			}
		}
	}
}

// cmpEmpty makes no difference between no batches and none.
func cmpEmpty() cmp.Option {
	return cmp.Transformer("list", func(l []labelled) []labelled { return append([]labelled{}, l...) })
}

// Whoever has a FlightInfo can end the streams that read it; the session stays and can be read again.
func TestStreamsAreCancelled(t *testing.T) {
	r := newRig(t, rigOptions{knownRows: true})
	client := r.client()
	r.open(client, r.settings(), 0, 2) // the other rank never comes, so this one waits
	info, err := client.GetFlightInfo(t.Context(), &flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: []string{"job"}})
	if err != nil {
		t.Fatal(err)
	}
	cancelAll := func() flight.CancelStatus {
		result, err := client.CancelFlightInfo(t.Context(), &flight.CancelFlightInfoRequest{Info: info})
		if err != nil {
			t.Fatal(err)
		}
		return result.GetStatus()
	}
	if s := cancelAll(); s != flight.CancelStatusNotCancellable {
		t.Errorf("with no stream: %v", s)
	}
	stream, err := client.DoGet(t.Context(), info.GetEndpoint()[0].GetTicket())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil { // the schema
		t.Fatal(err)
	}
	if s := cancelAll(); s != flight.CancelStatusCancelled {
		t.Errorf("with a stream: %v", s)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Canceled {
		t.Errorf("the stream ended with %v", err)
	}
	if ticketOf(t, client, 1<<20)["job"] != "job" {
		t.Error("the session is gone")
	}
}

// Jobs are listed by name, the Flight service has its own health, and descriptors that mean nothing are refused.
func TestDiscoveryTakesNamesAndRefusesNonsense(t *testing.T) {
	r := newRig(t, rigOptions{knownRows: true})
	client := r.client()
	r.open(client, r.settings(), 0, 1)
	for _, c := range []struct {
		job  string
		want int
	}{{"job", 1}, {"other", 0}, {"", 1}} {
		flights, err := client.ListFlights(t.Context(), &flight.Criteria{Expression: []byte(c.job)})
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for ; ; n++ {
			info, err := flights.Recv()
			if err != nil {
				break
			}
			if _, err := flight.DeserializeSchema(info.GetSchema(), memory.DefaultAllocator); err != nil {
				t.Error(err)
			}
		}
		if n != c.want {
			t.Errorf("%d jobs match %q", n, c.job)
		}
	}
	for _, service := range []string{"", "arrow.flight.protocol.FlightService"} {
		h, err := healthpb.NewHealthClient(r.conn()).Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
		if err != nil || h.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("health of %q: %v, %v", service, h, err)
		}
	}
	for _, bad := range []string{`{"job": "job", "rank": -1}`, `{"job": "job", "batch_bytes": -1}`, `{"jbo": "job"}`, ""} {
		_, err := client.GetFlightInfo(t.Context(), &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: []byte(bad)})
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("descriptor %s: %v", bad, err)
		}
	}
}
