package main

import (
	"context"
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/millrace/lookback"
	"github.com/millrace/millrace/preprocess/lineage"
)

func (a *app) lineageCmd() *cobra.Command {
	var o jobFlags
	var job string
	c := &cobra.Command{
		Use:   "lineage PARTITION",
		Short: "Say what a partition is made from: samples, plan, seed",
		Args:  usage(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			a.quiet = !c.Flags().Changed("log-level")
			id, err := sourceOf(args[0])
			if err != nil {
				return err
			}
			j, err := a.find(c.Context(), o, job, id.String())
			if err != nil {
				return err
			}
			return a.lineage(c.Context(), j, id)
		},
	}
	c.Flags().StringVar(&job, "job", "", "job that the partition is of")
	o.register(c)
	return c
}

// sourceOf is the source partition of a partition, such as 3/1041 of 3/1041/0.
func sourceOf(text string) (lineage.ID, error) {
	id, err := lineage.ParseID(text)
	if err != nil {
		return lineage.ID{}, usageError{err}
	}
	return lineage.SourceID(id.Epoch, id.Source), nil
}

func (a *app) lineage(ctx context.Context, j *lookback.Job, id lineage.ID) error {
	s, err := a.source(ctx, j)
	if err != nil {
		return err
	}
	defer s.Close()
	report, err := j.Lineage(ctx, s, id)
	if err != nil {
		return err
	}
	if a.json {
		return json.NewEncoder(a.out).Encode(report)
	}
	return report.Write(a.out)
}
