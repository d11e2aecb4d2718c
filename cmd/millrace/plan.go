package main

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/millrace/lookback"
	"github.com/millrace/millrace/cmd/millrace/measure"
	"github.com/millrace/millrace/cmd/millrace/view"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/order"
	"github.com/millrace/millrace/preprocess/plan"
	"github.com/millrace/millrace/preprocess/recipe"
)

// planOptions are the flags of the plan command.
type planOptions struct {
	shuffle   string
	batch     int64
	samples   int
	rate      string
	processes processOptions
}

// measureLimit is how long a plan is measured: a few samples of slow operators say as much as many of fast ones.
const measureLimit = time.Second

func (a *app) planCmd() *cobra.Command {
	var o planOptions
	c := &cobra.Command{
		Use:   "plan RECIPE",
		Short: "Show what a recipe runs: stages, what fuses, time and size of each, how well the order mixes",
		Args:  usage(cobra.ExactArgs(1)),
		RunE:  func(c *cobra.Command, args []string) error { return a.plan(c.Context(), args[0], o) },
	}
	f := c.Flags()
	f.StringVar(&o.shuffle, "shuffle", "block", "none, block or full")
	f.Int64Var(&o.batch, "batch", 256, "global batch for which mixing is told, rows")
	f.IntVar(&o.samples, "measure", 128, "samples on which time and size are measured, within a second or so; 0: none")
	f.StringVar(&o.rate, "for", "", "samples a second for which cores and bandwidth are told, as 2500/s")
	o.processes.register(c)
	return c
}

// check says what is wrong with the flags, and what rate is asked for.
func (o *planOptions) check() (kind order.Shuffle, rate float64, err error) {
	if kind, err = order.ParseShuffle(o.shuffle); err != nil {
		return kind, 0, err
	}
	if o.batch < 1 {
		return kind, 0, errkind.Errorf(errkind.Invalid, "--batch is at least 1, not %d", o.batch)
	}
	if o.samples < 0 {
		return kind, 0, errkind.Errorf(errkind.Invalid, "--measure is at least 0, not %d", o.samples)
	}
	if o.rate != "" {
		rate, err = strconv.ParseFloat(strings.TrimSuffix(o.rate, "/s"), 64)
		if err != nil || !(rate > 0 && rate < 1e12) {
			return kind, 0, errkind.Errorf(errkind.Invalid, "--for %q is no number of samples a second, such as 2500/s", o.rate)
		}
		if o.samples == 0 {
			return kind, 0, errkind.Errorf(errkind.Invalid, "--for needs measured times; leave --measure 0 out")
		}
	}
	return kind, rate, o.processes.check()
}

func (a *app) plan(ctx context.Context, path string, o planOptions) error {
	kind, rate, err := o.check()
	if err != nil {
		return usageError{err}
	}
	r, _, err := readRecipe(path)
	if err != nil {
		return err
	}
	p, err := a.planned(ctx, r, kind)
	if err != nil {
		return fmt.Errorf("recipe %s: %w", path, err)
	}
	defer p.Close()
	in := view.PlanInput{Name: filepath.Base(path), Plan: p.Plan, Manifest: p.Manifest, Layout: p.Layout, Batch: o.batch, Rate: rate}
	if o.samples > 0 {
		if in.Measured, err = a.measure(ctx, p, o); err != nil && ctx.Err() == nil {
			in.Unmeasured = err.Error() // the plan is worth showing all the same
		}
	}
	if a.json {
		return json.NewEncoder(a.out).Encode(view.PlanJSON(p.Plan, p.Manifest, p.Layout, in.Measured))
	}
	return view.Plan(a.out, in)
}

// measure runs the plan on some samples.
func (a *app) measure(ctx context.Context, s *lookback.Source, o planOptions) (*measure.Result, error) {
	logger, err := a.logger()
	if err != nil {
		return nil, err
	}
	python, outside, done, err := o.processes.session(s.Plan, logger)
	if err != nil {
		return nil, err
	}
	defer done()
	return measure.Plan(ctx, measure.Options{
		Plan: s.Plan, Manifest: s.Manifest, Resolver: s.Resolver, Cache: s.Cache,
		Samples: o.samples, Limit: measureLimit, Scalar: a.scalar(), Python: python, Outside: outside,
	})
}

// planned plans a recipe over its source, which is indexed first if need be. The caller closes what it gets.
func (a *app) planned(ctx context.Context, r *recipe.Recipe, shuffle order.Shuffle) (_ *lookback.Source, err error) {
	if _, err := plan.New(r); err != nil { // before a long listing begins
		return nil, err
	}
	cache, err := a.openCache()
	if err != nil {
		return nil, err
	}
	s := &lookback.Source{Resolver: a.newResolver(), Cache: cache}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	show, done := a.indexBar()
	s.Manifest, err = dataset.BuildOrLoad(ctx, s.Resolver, r.Source, cache, dataset.BuildOptions{OnProgress: show})
	done()
	if err != nil {
		return nil, err
	}
	if s.Plan, err = plan.For(ctx, r, s.Manifest, s.Resolver, cache); err != nil {
		return nil, err
	}
	s.Layout, err = s.Plan.Layout(s.Manifest, shuffle)
	return s, err
}
