package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/millrace/view"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/order"
	"github.com/millrace/millrace/preprocess/plan"
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
	if _, err := plan.New(r); err != nil {
		return fmt.Errorf("recipe %s: %w", path, err)
	}
	cache, err := a.openCache()
	if err != nil {
		return err
	}
	resolver := newResolver()
	defer func() { _ = resolver.Close() }()
	show, done := a.indexBar()
	m, err := dataset.BuildOrLoad(c.Context(), resolver, r.Source, cache, dataset.BuildOptions{OnProgress: show})
	done()
	if err != nil {
		return err
	}
	made, err := plan.For(c.Context(), r, m, resolver, cache)
	if err != nil {
		return fmt.Errorf("recipe %s: %w", path, err)
	}
	layout, err := made.Layout(m, kind)
	if err != nil {
		return fmt.Errorf("recipe %s: %w", path, err)
	}
	if a.json {
		return json.NewEncoder(a.out).Encode(view.PlanJSON(made, m, layout))
	}
	return view.Plan(a.out, view.PlanInput{Name: filepath.Base(path), Plan: made, Manifest: m, Layout: layout, Batch: batch})
}
