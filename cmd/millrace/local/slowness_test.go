package local_test

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/internal/rng"
	"github.com/millrace/millrace/internal/sleep"
	"github.com/millrace/millrace/preprocess/partition"
)

// slowness makes the parts of a pipeline slow at random, by a seed: 0 for none.
type slowness struct{ seed uint64 }

// wait takes the n-th pause of a place.
func (s slowness) wait(ctx context.Context, place uint32, n uint64) error {
	draw := rng.Key{Seed: s.seed, Epoch: n, Op: place}.Source()
	if s.seed == 0 || !draw.Bool(0.2) {
		return nil
	}
	return sleep.For(ctx, time.Duration(1+draw.IntN(60))*time.Millisecond)
}

// control delays what workers and sidecar tell the dispatcher and hear from it.
func (s slowness) control() []grpc.DialOption {
	var streams atomic.Uint32
	return []grpc.DialOption{grpc.WithChainStreamInterceptor(
		func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			stream, err := next(ctx, desc, conn, method, opts...)
			return &slowStream{ClientStream: stream, slowness: s, place: 2 + 2*streams.Add(1)}, err
		},
	)}
}

type slowStream struct {
	grpc.ClientStream
	slowness
	place          uint32
	sent, received atomic.Uint64
}

func (s *slowStream) SendMsg(m any) error {
	if err := s.wait(s.Context(), s.place, s.sent.Add(1)); err != nil {
		return err
	}
	return s.ClientStream.SendMsg(m)
}

func (s *slowStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err == nil {
		err = s.wait(s.Context(), s.place+1, s.received.Add(1))
	}
	return err
}

// way delays each slice that the sidecar gets of a worker.
func (s slowness) way(inner partition.Fetcher) partition.Fetcher {
	return &slowWay{inner: inner, slowness: s}
}

type slowWay struct {
	inner partition.Fetcher
	slowness
	slices atomic.Uint64
}

func (w *slowWay) Fetch(ctx context.Context, ticket partition.Ticket, fn func(i int, rec arrow.RecordBatch) error) error {
	return w.inner.Fetch(ctx, ticket, func(i int, rec arrow.RecordBatch) error {
		if err := w.wait(ctx, 1, w.slices.Add(1)); err != nil {
			return err
		}
		return fn(i, rec)
	})
}
