package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/millrace/lookback"
	"github.com/millrace/millrace/preprocess/lineage"
)

// looker looks at a source partition of a job.
type looker func(ctx context.Context, j *lookback.Job, s *lookback.Source, id lineage.ID) error

// partitionCmd is a command whose argument is a partition of a job. The caller gives it its name and its purpose.
func (a *app) partitionCmd(look looker) *cobra.Command {
	var o jobFlags
	var job string
	c := &cobra.Command{
		Args: usage(cobra.ExactArgs(1)),
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
			s, err := a.source(c.Context(), j)
			if err != nil {
				return err
			}
			defer s.Close()
			return look(c.Context(), j, s, id)
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
