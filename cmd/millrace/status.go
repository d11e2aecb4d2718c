package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/millrace/view"
	"github.com/millrace/millrace/internal/statusjson"
)

func (a *app) statusCmd() *cobra.Command {
	var endpoint string
	c := &cobra.Command{
		Use:   "status",
		Short: "Show jobs, ranks and workers, and who waits for what",
		Args:  usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.control(c.Context(), endpoint, func(ctx context.Context, ask asker) error {
				s, err := ask.snapshot(ctx)
				if err != nil {
					return err
				}
				if a.json {
					text, err := statusjson.Marshal(s)
					if err == nil {
						_, err = fmt.Fprintln(a.out, string(text))
					}
					return err
				}
				return view.Status(a.out, s)
			})
		},
	}
	endpointFlag(c, &endpoint)
	return c
}

func (a *app) stopCmd() *cobra.Command {
	var endpoint string
	c := &cobra.Command{
		Use:   "stop JOB",
		Short: "End a job and free what it holds",
		Args:  usage(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			return a.control(c.Context(), endpoint, func(ctx context.Context, ask asker) error {
				return ask.stopJob(ctx, args[0])
			})
		},
	}
	endpointFlag(c, &endpoint)
	return c
}

func endpointFlag(c *cobra.Command, endpoint *string) {
	c.Flags().StringVar(endpoint, "endpoint", "", "dispatcher, sidecar or millrace local: unix:///path or host:port")
}
