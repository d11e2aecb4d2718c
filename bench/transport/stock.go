package transport

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// stockServer is a Flight server as Arrow's documentation has it.
type stockServer struct {
	flight.BaseFlightServer

	rec arrow.RecordBatch
}

// DoGet sends the batch until the client hangs up.
func (s *stockServer) DoGet(_ *flight.Ticket, stream flight.FlightService_DoGetServer) error {
	w := flight.NewRecordWriter(stream, ipc.WithSchema(s.rec.Schema()))
	for {
		if err := w.Write(s.rec); err != nil {
			_ = w.Close()
			return err
		}
	}
}

func (s Side) serveStock(ctx context.Context, _ *counters) (string, func() error, error) {
	l, address, err := s.listen(ctx)
	if err != nil {
		return "", nil, err
	}
	config, err := s.serverTLS()
	if err != nil {
		return "", nil, err
	}
	server := grpc.NewServer(encrypted(config)...)
	flight.RegisterFlightServiceServer(server, &stockServer{rec: newBatch(memory.DefaultAllocator, s.Rows)})
	return address, serving(ctx, server, l), nil
}

func (s Side) readStock(ctx context.Context, c *counters) (string, func() error, error) {
	config, err := s.clientTLS()
	if err != nil {
		return "", nil, err
	}
	creds := insecure.NewCredentials()
	if config != nil {
		creds = credentials.NewTLS(config)
	}
	target := "passthrough:///" + s.Address
	if s.Network == "unix" {
		target = "unix://" + filepath.Join(s.Dir, s.Kind+".sock")
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(creds), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)))
	if err != nil {
		return "", nil, fmt.Errorf("connecting to the stock server: %w", err)
	}
	done := make(chan error, 1)
	go func() { done <- readAll(ctx, conn, c) }()
	return "", func() error {
		err := <-done
		if ctx.Err() != nil {
			err = nil
		}
		_ = conn.Close()
		return err
	}, nil
}

func readAll(ctx context.Context, conn *grpc.ClientConn, c *counters) error {
	stream, err := flight.NewClientFromConn(conn, nil).DoGet(ctx, &flight.Ticket{})
	if err != nil {
		return fmt.Errorf("reading from the stock server: %w", err)
	}
	r, err := flight.NewRecordReader(stream)
	if err != nil {
		return fmt.Errorf("reading from the stock server: %w", err)
	}
	defer r.Release()
	for r.Next() {
		c.add(r.RecordBatch())
	}
	return r.Err()
}
