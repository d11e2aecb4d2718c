package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/feed/client"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/loader/order"
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
		RunE: func(c *cobra.Command, args []string) error {
			a.quiet = !c.Flags().Changed("log-level")
			return a.drain(c.Context(), args[0], o)
		},
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

// check says what is wrong with the flags.
func (o *runOptions) check() error {
	if o.to != "null" {
		return errkind.Errorf(errkind.Invalid, "--to %q: batches can only go to null", o.to)
	}
	if o.epochs < 1 || o.batch < 1 || o.prefetch < 1 {
		return errkind.Errorf(errkind.Invalid, "--epochs, --batch and --prefetch are at least 1, not %d, %d and %d", o.epochs, o.batch, o.prefetch)
	}
	if _, err := order.ParseShuffle(o.shuffle); err != nil {
		return err
	}
	_, err := order.ParseTail(o.tail)
	return err
}

func (a *app) drain(ctx context.Context, path string, o runOptions) error {
	if err := o.check(); err != nil {
		return usageError{err}
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
			Prefetch: o.prefetch, Epochs: uint64(o.epochs), //nolint:gosec // At least 1.
		},
	})
	if dead(conn) {
		return noAnswer(o.endpoint, err)
	}
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
		t, err := a.encryption()
		if err != nil {
			return nil, nil, err
		}
		conn, err := service.Dial(o.endpoint, t, client.DialOptions()...)
		if err != nil {
			return nil, nil, usageError{err}
		}
		return conn, func() { _ = conn.Close() }, nil
	}
	conn, stop, err := a.startInProcess(ctx, o.local)
	return conn, stop, wrongSettings(err)
}
