package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/feed/client"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/service"
)

// runOptions are the flags of the run command.
type runOptions struct {
	endpoint, to, job, shuffle, tail string
	epochs                           int
	batch, prefetch                  int64
	seed                             uint64
	local                            localOptions
}

func (a *app) runCmd() *cobra.Command {
	var o runOptions
	c := &cobra.Command{
		Use:   "run RECIPE",
		Short: "Drain a recipe without a trainer and say how fast it went",
		Args:  usage(cobra.ExactArgs(1)),
		RunE:  func(c *cobra.Command, args []string) error { return a.drain(c.Context(), args[0], o) },
	}
	f := c.Flags()
	f.StringVar(&o.endpoint, "endpoint", "", "sidecar to read from; empty: all roles in this process")
	f.StringVar(&o.to, "to", "null", "where batches go: null")
	f.StringVar(&o.job, "job", "run", "name of the job")
	f.StringVar(&o.shuffle, "shuffle", "block", "none, block or full")
	f.StringVar(&o.tail, "tail", "pad", "pad, drop or short")
	f.IntVar(&o.epochs, "epochs", 1, "number of epochs")
	f.Int64Var(&o.batch, "batch", 64, "rows of a batch")
	f.Int64Var(&o.prefetch, "prefetch", 2, "batches made ready ahead")
	f.Uint64Var(&o.seed, "seed", 0, "seed of the order and of random operators")
	o.local.register(c)
	return c
}

// drained is what a drain has seen.
type drained struct {
	Epochs  int     `json:"epochs"`
	Batches int64   `json:"batches"`
	Rows    int64   `json:"rows"`
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"`
	First   float64 `json:"first_batch_s"`
}

func (a *app) drain(ctx context.Context, path string, o runOptions) error {
	if o.to != "null" {
		return usageError{errkind.Errorf(errkind.Invalid, "--to %q: batches can only go to null", o.to)}
	}
	_, text, err := readRecipe(path)
	if err != nil {
		return err
	}
	conn, stop, err := a.connect(ctx, o)
	if err != nil {
		return err
	}
	defer stop()
	s, err := client.Open(ctx, conn, client.OpenRequest{
		Job: o.job, Recipe: string(text), WorldSize: 1,
		Settings: client.Settings{
			Seed: o.seed, Shuffle: o.shuffle, GlobalBatch: o.batch, Accumulation: 1, Tail: o.tail, OnError: "raise",
			Prefetch: o.prefetch, Epochs: uint64(max(0, o.epochs)), //nolint:gosec // Not negative.
		},
	})
	if err != nil {
		return fmt.Errorf("recipe %s: %w", path, err)
	}
	result, err := a.drainEpochs(ctx, s, o.epochs)
	closeCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if closeErr := s.Close(closeCtx); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("recipe %s: %w", path, err)
	}
	return a.tellDrained(result)
}

// connect reaches the sidecar at the endpoint, or one that runs in this process.
func (a *app) connect(ctx context.Context, o runOptions) (grpc.ClientConnInterface, func(), error) {
	if o.endpoint != "" {
		conn, err := service.Dial(o.endpoint, client.DialOptions()...)
		if err != nil {
			return nil, nil, usageError{err}
		}
		return conn, func() { _ = conn.Close() }, nil
	}
	return a.startInProcess(ctx, o.local)
}

func (a *app) drainEpochs(ctx context.Context, s *client.Session, epochs int) (drained, error) {
	bar := progress.New(a.err, "reading", "rows")
	defer bar.Close()
	started := time.Now()
	result, at := drained{}, s.Info.Start
	for range epochs {
		err := s.Read(ctx, at, func(b client.Batch) error {
			if result.Batches == 0 {
				result.First = time.Since(started).Seconds()
			}
			result.Batches++
			result.Rows += int64(b.Meta.ValidRows)
			result.Bytes += client.DataBytes(b.Record)
			bar.Set(progress.State{Done: result.Rows, Total: max(0, s.Info.Rows) * int64(epochs)})
			at = b.Meta.Next()
			return nil
		})
		if err != nil {
			return result, err
		}
		result.Epochs++
	}
	result.Seconds = time.Since(started).Seconds()
	return result, nil
}

func (a *app) tellDrained(r drained) error {
	if a.json {
		return json.NewEncoder(a.out).Encode(r)
	}
	_, err := fmt.Fprintf(a.out, "%d epochs · %s rows in %s batches · %.0f rows/s · %s/s · first batch after %.2f s\n", r.Epochs,
		progress.Count(r.Rows), progress.Count(r.Batches), float64(r.Rows)/r.Seconds, progress.Size(int64(float64(r.Bytes)/r.Seconds)), r.First)
	return err
}
