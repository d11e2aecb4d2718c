package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/feed/fetch"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/preprocess/lineage"
	"github.com/millrace/millrace/preprocess/partition"
	"github.com/millrace/millrace/preprocess/partition/flightdata"
)

const (
	job = "bench"
	// ticketBytes is about what one ticket asks for, in as many slices as that takes.
	ticketBytes = 1 << 30
	// idleBytes are kept by the receiver between batches: two of the largest of a scenario, or two where they are larger.
	idleBytes = 96 << 20
)

// serveOurs serves the batch as a worker does.
func (s Side) serveOurs(ctx context.Context, _ *counters) (string, func() error, error) {
	l, address, err := s.listen(ctx)
	if err != nil {
		return "", nil, err
	}
	config, err := s.serverTLS()
	if err != nil {
		return "", nil, err
	}
	pool := partition.NewPool(idleBytes)
	rec := newBatch(pool, s.Rows)
	store := partition.NewStore("worker", partition.Hooks{})
	store.Put(job, 0, partition.New(lineage.SourceID(0, 0), 0, rec))
	rec.Release()
	server := grpc.NewServer(append(append(service.ServerOptions(), flightdata.ServerOptions()...), encrypted(config)...)...)
	data := partition.NewServer(store)
	data.Register(server)
	if !s.Flight {
		l = service.Divert(l, partition.ChannelByte, func(c net.Conn) { data.HandleChannel(ctx, c, config) })
	}
	return address, serving(ctx, server, l), nil
}

// serving serves until ctx ends; what it returns waits for that.
func serving(ctx context.Context, server *grpc.Server, l net.Listener) func() error {
	done := make(chan error, 1)
	go func() { done <- service.ServeGRPC(ctx, server, l) }()
	return func() error { return <-done }
}

func (s Side) listen(ctx context.Context) (net.Listener, string, error) {
	address := "127.0.0.1:0"
	if s.Network == "unix" {
		address = "unix://" + filepath.Join(s.Dir, s.Kind+".sock")
	}
	l, err := service.Listen(ctx, address)
	if err != nil {
		return nil, "", err
	}
	if s.Network != "unix" {
		address = l.Addr().String()
	}
	return l, address, nil
}

// readOurs reads the batch again and again as a sidecar does, over one stream.
func (s Side) readOurs(ctx context.Context, c *counters) (string, func() error, error) {
	config, err := s.clientTLS()
	if err != nil {
		return "", nil, err
	}
	pool := partition.NewPool(max(idleBytes, 9*int64(s.Rows)*imageBytes/4))
	queue, err := fetch.NewQueue(fetch.Config{Streams: 1, BudgetBytes: 1 << 40, Pool: pool, TLS: func() *tls.Config { return config }})
	if err != nil {
		return "", nil, err
	}
	slice := partition.Slice{ID: lineage.SourceID(0, 0), Rows: int64(s.Rows)}
	bytes := slice.Rows * (imageBytes + 8)
	count := max(1, min(partition.MaxSlices/4, ticketBytes/int(bytes)))
	request := fetch.Request{Job: job, Worker: "worker", Address: s.Address, Ahead: func() int64 { return 0 }}
	for range count {
		request.Slices, request.Bytes = append(request.Slices, slice), append(request.Bytes, bytes)
	}
	var left sync.WaitGroup
	more := make(chan struct{}, 3)
	request.Arrived = func(i int, rec arrow.RecordBatch) {
		c.add(rec)
		if s.Hash {
			partition.Hash(rec)
		}
		queue.Add(-bytes)
		if i == count-1 {
			more <- struct{}{}
		}
	}
	left.Go(func() { queue.Run(ctx) })
	left.Go(func() {
		for range 2 {
			queue.Submit(request)
		}
		for {
			select {
			case <-more:
				queue.Submit(request)
			case <-ctx.Done():
				return
			}
		}
	})
	return "", func() error {
		left.Wait()
		if err := pool.Close(); err != nil {
			return fmt.Errorf("after the last batch: %w", errors.Join(err))
		}
		return nil
	}, nil
}
