// Package rederive makes a source partition again by a worker of this process, which is given nothing else to do.
package rederive

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/store"
	"github.com/millrace/millrace/preprocess/isolate"
	"github.com/millrace/millrace/preprocess/lineage"
	"github.com/millrace/millrace/preprocess/partition"
	"github.com/millrace/millrace/preprocess/pypool"
	"github.com/millrace/millrace/preprocess/worker"
	workerv1 "github.com/millrace/millrace/proto/millrace/worker/v1"
)

// connBytes is the size of the connection in memory. Only metadata passes, and the manifest in pieces.
const connBytes = 256 << 10

// Config is what a partition is made again from.
type Config struct {
	// Plan is the job, as workers are told it.
	Plan *workerv1.JobPlan
	// Manifest is that of the plan, Resolver opens its stores, Cache has its indexes.
	Manifest *dataset.Manifest
	Resolver *store.Resolver
	Cache    *dataset.Cache
	// Slots have to be enough for one task of each stage.
	Slots map[string]int
	// BudgetBytes is what partitions may take while they are made.
	BudgetBytes int64
	// Scalar keeps image kernels from using SIMD.
	Scalar bool
	// AllowPython says which functions of users run; others than none need the pool.
	AllowPython string
	Python      *pypool.Pool
	// Isolated decodes images in other processes; nil: all are decoded in this one.
	Isolated *isolate.Pool
	Logger   *slog.Logger
}

// Output is one output partition.
type Output struct {
	ID lineage.ID
	// Rows, and Bytes of its buffers.
	Rows, Bytes int64
	// Hash is the xxh3-128 of its canonical buffers.
	Hash [16]byte
}

// Source makes a source partition and gives its outputs in order. A sample that can't be processed is an error of the kind
// that the worker gives it.
func Source(ctx context.Context, cfg Config, id lineage.ID) ([]Output, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d := &dispatcher{cfg: cfg, id: id, ended: make(chan struct{})}
	listener := bufconn.Listen(connBytes)
	server := grpc.NewServer()
	workerv1.RegisterWorkerServiceServer(server, d)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	defer serving.Wait()
	defer server.Stop()
	conn, err := grpc.NewClient("passthrough:memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		return nil, fmt.Errorf("connecting to the worker of this process: %w", err)
	}
	defer func() { _ = conn.Close() }()
	pool := partition.NewPool(cfg.BudgetBytes)
	defer func() { _ = pool.Close() }()
	w, err := worker.New(worker.Config{
		Name: "rederive", DataAddress: "local:rederive", Slots: cfg.Slots, BudgetBytes: cfg.BudgetBytes, Version: "rederive", Scalar: cfg.Scalar,
		AllowPython: cfg.AllowPython,
	}, worker.Deps{Dispatcher: conn, Resolver: cfg.Resolver, Cache: cfg.Cache, Pool: pool, Python: cfg.Python, Isolated: cfg.Isolated, Logger: cfg.Logger})
	if err != nil {
		return nil, err
	}
	var working sync.WaitGroup
	working.Go(func() { _ = w.Run(ctx) })
	defer working.Wait()
	defer cancel()
	select {
	case <-d.ended:
		slices.SortFunc(d.outputs, func(a, b Output) int { return a.ID.Compare(b.ID) })
		return d.outputs, d.failed
	case <-ctx.Done():
		return nil, errkind.With(errkind.Canceled, fmt.Errorf("making partition %s again: %w", id, ctx.Err()))
	}
}
