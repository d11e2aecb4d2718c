package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/millrace/lookback"
	"github.com/millrace/millrace/feed/client"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/order"
	"github.com/millrace/millrace/preprocess/recipe"
	statusv1 "github.com/millrace/millrace/proto/millrace/status/v1"
)

// jobFlags say which stream a command looks into: that of a job which a dispatcher knows, or that of a recipe.
type jobFlags struct {
	endpoint, recipe, shuffle, tail, state string
	batch, accumulation                    int64
	world                                  int
	seed                                   uint64
}

func (o *jobFlags) register(c *cobra.Command) {
	f := c.Flags()
	endpointFlag(c, &o.endpoint)
	f.StringVar(&o.recipe, "recipe", "", "recipe of a job that nobody runs; it takes the flags below")
	f.StringVar(&o.state, "state", "", "state from which the job went on; empty: the beginning")
	f.StringVar(&o.shuffle, "shuffle", "block", "none, block or full")
	f.StringVar(&o.tail, "tail", "pad", "pad, drop or short")
	f.Int64Var(&o.batch, "global-batch", 64, "rows of a global batch, of all ranks")
	f.Int64Var(&o.accumulation, "accumulation", 1, "batches that a rank takes for one global batch")
	f.IntVar(&o.world, "world-size", 1, "number of ranks")
	f.Uint64Var(&o.seed, "seed", 0, "seed of the order and of random operators")
}

// find is the job of that name at the endpoint, with what is recorded of a partition, or the recipe's.
func (a *app) find(ctx context.Context, o jobFlags, name, partition string) (*lookback.Job, error) {
	if o.recipe == "" {
		if name == "" {
			return nil, usageError{errkind.Errorf(errkind.Invalid, "name a job, or give its --recipe and settings")}
		}
		var j *statusv1.GetJobResponse
		err := a.control(ctx, o.endpoint, func(ctx context.Context, ask asker) (err error) { j, err = ask.job(ctx, name, partition); return err })
		if err != nil {
			return nil, err
		}
		return lookback.FromWire(j), nil
	}
	_, text, err := readRecipe(o.recipe)
	if err != nil {
		return nil, err
	}
	if name == "" {
		name = o.recipe
	}
	j := &lookback.Job{Name: name, Recipe: text, World: o.world, State: o.state, Settings: client.Settings{
		Seed: o.seed, Shuffle: o.shuffle, GlobalBatch: o.batch, Accumulation: o.accumulation, Tail: o.tail, OnError: "raise", Prefetch: 1,
	}}
	if err := j.Validate(); err != nil {
		return nil, usageError{err}
	}
	return j, nil
}

// source is the very dataset that a job reads, with its plan. The caller closes it.
func (a *app) source(ctx context.Context, j *lookback.Job) (*lookback.Source, error) {
	r, err := recipe.Parse(j.Recipe)
	if err != nil {
		return nil, fmt.Errorf("recipe of job %q: %w", j.Name, err)
	}
	shuffle, err := order.ParseShuffle(j.Settings.Shuffle)
	if err != nil {
		return nil, err
	}
	s, err := a.planned(ctx, r, shuffle)
	if err != nil {
		return nil, fmt.Errorf("recipe of job %q: %w", j.Name, err)
	}
	if err := j.Policy(s); err != nil {
		s.Close()
		return nil, err
	}
	id := s.Manifest.ID()
	if err := j.CheckManifest(hex.EncodeToString(id[:])); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// place is the epoch and step of a command, and the rank where it takes one.
type place struct {
	epoch uint64
	step  int64
	rank  int
}

func (p *place) register(c *cobra.Command, rank int, usage string) {
	c.Flags().Uint64Var(&p.epoch, "epoch", 0, "epoch, from 0")
	c.Flags().Int64Var(&p.step, "step", 0, "step of the epoch, from 0")
	c.Flags().IntVar(&p.rank, "rank", rank, usage)
}

func (p *place) check(j *lookback.Job) error {
	if p.step < 0 {
		return usageError{errkind.Errorf(errkind.Invalid, "--step is at least 0, not %d", p.step)}
	}
	if p.rank >= j.World {
		return usageError{errkind.Errorf(errkind.Invalid, "job %q has %d ranks; there is no rank %d", j.Name, j.World, p.rank)}
	}
	return nil
}

// oneOrNone is the argument of a command that takes at most one.
func oneOrNone(args []string) string { return strings.Join(args, "") }
