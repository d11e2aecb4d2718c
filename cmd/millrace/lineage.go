package main

import (
	"context"
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/millrace/lookback"
	"github.com/millrace/millrace/preprocess/lineage"
)

func (a *app) lineageCmd() *cobra.Command {
	c := a.partitionCmd(a.lineage)
	c.Use, c.Short = "lineage PARTITION", "Say what a partition is made from: samples, plan, seed"
	return c
}

func (a *app) lineage(ctx context.Context, j *lookback.Job, s *lookback.Source, id lineage.ID) error {
	report, err := j.Lineage(ctx, s, id)
	if err != nil {
		return err
	}
	if a.json {
		return json.NewEncoder(a.out).Encode(report)
	}
	return report.Write(a.out)
}
