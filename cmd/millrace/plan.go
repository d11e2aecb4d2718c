package main

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/millrace/lookback"
	"github.com/millrace/millrace/cmd/millrace/view"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/order"
	"github.com/millrace/millrace/preprocess/plan"
	"github.com/millrace/millrace/preprocess/recipe"
)

func (a *app) planCmd() *cobra.Command {
	var shuffle string
	var batch int64
	c := &cobra.Command{
		Use:   "plan RECIPE",
		Short: "Show what a recipe runs: stages, what fuses, sizes, how well the order mixes",
		Args:  usage(cobra.ExactArgs(1)),
		RunE:  func(c *cobra.Command, args []string) error { return a.plan(c, args[0], shuffle, batch) },
	}
	c.Flags().StringVar(&shuffle, "shuffle", "block", "none, block or full")
	c.Flags().Int64Var(&batch, "batch", 256, "global batch for which mixing is told, rows")
	return c
}

func (a *app) plan(c *cobra.Command, path, shuffle string, batch int64) error {
	kind, err := order.ParseShuffle(shuffle)
	if err != nil {
		return usageError{err}
	}
	if batch < 1 {
		return usageError{errkind.Errorf(errkind.Invalid, "--batch is at least 1, not %d", batch)}
	}
	r, _, err := readRecipe(path)
	if err != nil {
		return err
	}
	p, err := a.planned(c.Context(), r, kind)
	if err != nil {
		return fmt.Errorf("recipe %s: %w", path, err)
	}
	defer p.Close()
	if a.json {
		return json.NewEncoder(a.out).Encode(view.PlanJSON(p.Plan, p.Manifest, p.Layout))
	}
	return view.Plan(a.out, view.PlanInput{Name: filepath.Base(path), Plan: p.Plan, Manifest: p.Manifest, Layout: p.Layout, Batch: batch})
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
