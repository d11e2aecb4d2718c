package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/millrace/lookback"
	"github.com/millrace/millrace/cmd/millrace/rederive"
	"github.com/millrace/millrace/cmd/millrace/view"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/lineage"
)

func (a *app) rederiveCmd() *cobra.Command {
	var verify bool
	var inner localOptions
	c := a.partitionCmd(func(ctx context.Context, j *lookback.Job, s *lookback.Source, id lineage.ID) error {
		return a.rederive(ctx, j, s, inner, id, verify)
	})
	c.Use, c.Short = "rederive PARTITION", "Make a partition again from its lineage, and compare it with what was recorded"
	c.Flags().BoolVar(&verify, "verify", false, "compare with what a dispatcher has on record; where it has nothing, make it twice, with and without SIMD")
	inner.register(c)
	return c
}

// rederive makes all outputs of a source partition in this process.
func (a *app) rederive(ctx context.Context, j *lookback.Job, s *lookback.Source, o localOptions, id lineage.ID, verify bool) error {
	record, err := j.Record(s, id)
	if err != nil {
		return err
	}
	made, err := a.makeAgain(ctx, j, s, o, id, a.scalar())
	if err != nil {
		return fmt.Errorf("making partition %s of job %q again: %w", id, j.Name, err)
	}
	verdict, against := "", j.Recorded()
	if verify {
		verdict = "equal to what the dispatcher has on record"
		if len(against) == 0 {
			verdict = "nothing is on record of it: made twice instead, with and without SIMD, and equal"
			if against, err = a.makeAgain(ctx, j, s, o, id, !a.scalar()); err != nil {
				return err
			}
		}
		if what := lookback.Difference(made, against); what != "" {
			return errkind.Errorf(errkind.Internal, "partition %s made again differs: %s. Lineage: %s", id, what, record)
		}
	}
	if a.json {
		return json.NewEncoder(a.out).Encode(map[string]any{"job": j.Name, "partition": id.String(), "outputs": made, "verified": verify})
	}
	return view.Outputs(a.out, made, verdict)
}

// makeAgain has a worker of this process make a source partition.
func (a *app) makeAgain(ctx context.Context, j *lookback.Job, s *lookback.Source, o localOptions, id lineage.ID, scalar bool) ([]view.LineageOutput, error) {
	logger, err := a.logger()
	if err != nil {
		return nil, err
	}
	p, err := j.Plan(s)
	if err != nil {
		return nil, err
	}
	slots := map[string]int{"cpu": o.slots}
	beside, err := o.processes.pools(slots, logger)
	if err != nil {
		return nil, wrongSettings(err)
	}
	defer beside.close()
	for _, stage := range s.Plan.Stages {
		for name, n := range stage.Resources {
			slots[name] = max(slots[name], n)
		}
	}
	outputs, err := rederive.Source(ctx, rederive.Config{
		Plan: p, Manifest: s.Manifest, Resolver: s.Resolver, Cache: s.Cache, Slots: slots, BudgetBytes: int64(o.budget), Scalar: scalar, Logger: logger,
		AllowPython: o.processes.python.allow, Python: beside.python, Isolated: beside.isolated,
	}, id)
	if err != nil {
		return nil, err
	}
	made := make([]view.LineageOutput, len(outputs))
	for i, x := range outputs {
		made[i] = view.LineageOutput{Partition: x.ID.String(), Rows: x.Rows, Bytes: x.Bytes, Hash: fmt.Sprintf("%x", x.Hash)}
	}
	return made, nil
}
