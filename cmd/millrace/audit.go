package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/cmd/millrace/lookback"
	"github.com/millrace/millrace/cmd/millrace/view"
)

func (a *app) auditCmd() *cobra.Command {
	var o jobFlags
	var at place
	var inner localOptions
	c := &cobra.Command{
		Use:   "audit [JOB]",
		Short: "Say which samples each rank got in a step, from lineage alone",
		Args:  usage(cobra.MaximumNArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			a.quiet = !c.Flags().Changed("log-level")
			j, err := a.find(c.Context(), o, oneOrNone(args), "")
			if err == nil {
				err = at.check(j)
			}
			if err != nil {
				return err
			}
			return a.audit(c.Context(), j, inner, at)
		},
	}
	at.register(c, -1, "only this rank; -1: all")
	o.register(c)
	inner.register(c)
	return c
}

func (a *app) audit(ctx context.Context, j *lookback.Job, o localOptions, at place) error {
	s, err := a.source(ctx, j)
	if err != nil {
		return err
	}
	defer s.Close()
	stop := func() {}
	defer func() { stop() }()
	rows, err := j.Rows(ctx, s, at.epoch, at.step, at.rank, func() (conn grpc.ClientConnInterface, err error) {
		var started func()
		if conn, started, err = a.startInProcess(ctx, o); err == nil {
			stop = started
		}
		return conn, wrongSettings(err)
	})
	if err != nil {
		return err
	}
	report := view.Audit{Job: j.Name, Epoch: at.epoch, Step: at.step, World: j.World, Manifest: fmt.Sprintf("%x", s.Manifest.ID()), Rows: rows}
	if a.json {
		return json.NewEncoder(a.out).Encode(report)
	}
	return report.Write(a.out)
}
