package e2e

import (
	"errors"
	"io"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// A Flight client that knows nothing of Millrace finds the open jobs and reads a rank, by standard calls alone.
func TestAStockFlightClientReadsARank(t *testing.T) {
	p, recipe := imageSet(t, 2, 40)
	r := p.start(millrace(), "local", "--socket", p.path("s"), "--listen", "127.0.0.1:0")
	s := open(t, dial(t, r.address(0)), ask(t, recipe, "train", 0, 1, 16))
	want := read(t, s, 0)
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	open(t, dial(t, r.address(0)), ask(t, recipe, "flight", 0, 1, 16))

	c, err := flight.NewClientWithMiddleware(r.address(1), nil, nil, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	list, err := c.ListFlights(t.Context(), &flight.Criteria{})
	if err != nil {
		t.Fatal(err)
	}
	listed, err := list.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if path := listed.GetFlightDescriptor().GetPath(); !cmp.Equal(path, []string{"flight"}) {
		t.Errorf("the job that is listed is %v", path)
	}
	if _, err := list.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("more is listed than the open job: %v", err)
	}
	info, err := c.GetFlightInfo(t.Context(), &flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: []string{"flight", "0"}})
	if err != nil {
		t.Fatal(err)
	}
	if len(info.GetEndpoint()) != 1 {
		t.Fatalf("rank 0 has %d endpoints", len(info.GetEndpoint()))
	}
	stream, err := c.DoGet(t.Context(), info.GetEndpoint()[0].GetTicket())
	if err != nil {
		t.Fatal(err)
	}
	reader, err := flight.NewRecordReader(stream)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, stock(t, reader)); diff != "" {
		t.Errorf("the epoch differs from what our own client reads (-own +stock):\n%.4000s", diff)
	}
	if _, err := c.GetFlightInfo(t.Context(), &flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: []string{"nobody"}}); err == nil {
		t.Error("a job that is not open has a flight")
	} else {
		matches(t, err.Error(), `there is no job "nobody" here; open it first`)
	}
	r.stop()
}
