// Command interop reads a rank from a sidecar with Apache Arrow's Go client of an older major version, and nothing of
// Millrace: it lists jobs, reads an epoch, breaks off and goes on by sequence number, and cancels. It prints what it got as one
// line of JSON. It is a module of its own, since both versions of Arrow register the same protobuf messages.
package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// batch is what there is of one batch.
type batch struct {
	Sequence uint64  `json:"sequence"`
	Labels   []int64 `json:"labels"`
	// Image is the CRC-32 of the bytes of the column image.
	Image uint32 `json:"image"`
}

// answer is all that is printed.
type answer struct {
	Jobs      []string `json:"jobs"`
	Endpoints int      `json:"endpoints"`
	Whole     []batch  `json:"whole"`
	Resumed   []batch  `json:"resumed"`
	Canceled  bool     `json:"canceled"`
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: interop HOST:PORT")
		os.Exit(2)
	}
	a, err := run(context.Background(), os.Args[1])
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(a)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, address string) (*answer, error) {
	c, err := flight.NewClientWithMiddleware(address, nil, nil, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	a := &answer{}
	if a.Jobs, err = jobs(ctx, c); err != nil || len(a.Jobs) == 0 {
		return a, err
	}
	info, err := c.GetFlightInfo(ctx, &flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: []string{a.Jobs[0], "0"}})
	if err != nil {
		return nil, fmt.Errorf("GetFlightInfo: %w", err)
	}
	a.Endpoints = len(info.GetEndpoint())
	ticket := map[string]any{}
	if err := json.Unmarshal(info.GetEndpoint()[0].GetTicket().GetTicket(), &ticket); err != nil {
		return nil, fmt.Errorf("a ticket: %w", err)
	}
	all := func(batch) error { return nil }
	if a.Whole, err = read(ctx, c, ticket, all); err != nil {
		return nil, fmt.Errorf("an epoch: %w", err)
	}
	broken := errors.New("broken off")
	first, err := read(ctx, c, ticket, func(b batch) error {
		if b.Sequence == 1 {
			return broken
		}
		return nil
	})
	if !errors.Is(err, broken) {
		return nil, fmt.Errorf("the beginning of an epoch: %w", err)
	}
	ticket["sequence"] = 2
	rest, err := read(ctx, c, ticket, all)
	if err != nil {
		return nil, fmt.Errorf("the rest of an epoch: %w", err)
	}
	a.Resumed = append(first, rest...)
	ticket["sequence"] = 0
	_, err = read(ctx, c, ticket, func(b batch) error {
		if b.Sequence > 0 {
			return nil
		}
		result, err := c.CancelFlightInfo(ctx, &flight.CancelFlightInfoRequest{Info: info})
		if err == nil && result.GetStatus() != flight.CancelStatusCancelled {
			err = fmt.Errorf("cancelling: %s", result.GetStatus())
		}
		return err
	})
	a.Canceled = status.Code(err) == codes.Canceled
	if !a.Canceled {
		return nil, fmt.Errorf("a stream that was cancelled: %w", err)
	}
	return a, nil
}

func jobs(ctx context.Context, c flight.Client) ([]string, error) {
	list, err := c.ListFlights(ctx, &flight.Criteria{})
	if err != nil {
		return nil, fmt.Errorf("ListFlights: %w", err)
	}
	var names []string
	for {
		info, err := list.Recv()
		if errors.Is(err, io.EOF) {
			return names, nil
		}
		if err != nil {
			return nil, fmt.Errorf("ListFlights: %w", err)
		}
		names = append(names, info.GetFlightDescriptor().GetPath()...)
	}
}

// read reads the batches of a ticket until take returns an error.
func read(ctx context.Context, c flight.Client, ticket map[string]any, take func(batch) error) (out []batch, err error) {
	raw, err := json.Marshal(ticket)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.DoGet(ctx, &flight.Ticket{Ticket: raw})
	if err != nil {
		return nil, err
	}
	r, err := flight.NewRecordReader(stream)
	if err != nil {
		return nil, err
	}
	defer r.Release()
	var b batch
	for r.Next() {
		rec, meta := r.Record(), r.LatestAppMetadata()
		b.Sequence = binary.LittleEndian.Uint64(meta[48:])
		labels, ok := rec.Column(rec.Schema().FieldIndices("label")[0]).(*array.Int64)
		images, isList := storage(rec.Column(rec.Schema().FieldIndices("image")[0])).(*array.FixedSizeList)
		if !ok || !isList {
			return nil, fmt.Errorf("columns of other types: %s", rec.Schema())
		}
		b.Labels = append(b.Labels, labels.Int64Values()...)
		from, _ := images.ValueOffsets(0)
		_, to := images.ValueOffsets(images.Len() - 1)
		pixels, ok := images.ListValues().(*array.Uint8)
		if !ok {
			return nil, fmt.Errorf("pixels of another type: %s", images.DataType())
		}
		b.Image = crc32.Update(b.Image, crc32.IEEETable, pixels.Uint8Values()[from:to])
		if meta[1]&4 != 0 { // more rows of this batch follow
			continue
		}
		out = append(out, b)
		if err := take(b); err != nil {
			return out, err
		}
		b = batch{}
	}
	return out, r.Err()
}

// storage is what lies under an extension type.
func storage(a arrow.Array) arrow.Array {
	if x, ok := a.(array.ExtensionArray); ok {
		return x.Storage()
	}
	return a
}
