package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/feed"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/service"
)

func (a *app) sidecarCmd() *cobra.Command {
	var dispatcher, name string
	var listen []string
	budget := service.Bytes(512 << 20)
	var r roleFlags
	c := &cobra.Command{
		Use:   "sidecar",
		Short: "Feed the ranks of one host",
		Args:  usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if dispatcher == "" || len(listen) == 0 {
				return usageError{errkind.Errorf(errkind.Invalid, "give the dispatcher's address with --dispatcher, and addresses for trainers with --listen")}
			}
			logger, err := a.logger()
			if err != nil {
				return err
			}
			if name == "" {
				name = processName()
			}
			t, err := a.encryption()
			if err != nil {
				return err
			}
			return a.serve(c.Context(), r, func(ctx context.Context, g *service.Group, m *monitor) error {
				s, addresses, done, err := feed.Open(ctx, dispatcher, listen, t, feed.Config{Name: name, BudgetBytes: int64(budget), Logger: logger})
				if err != nil {
					return err
				}
				m.add(s.Collectors()...)
				g.Go(func(ctx context.Context) error { defer done(); return s.Run(ctx) })
				return a.ready(m, map[string]any{"role": "sidecar", "name": name, "addresses": addresses})
			})
		},
	}
	f := c.Flags()
	f.StringVar(&dispatcher, "dispatcher", "", "addresses of the dispatcher and its standbys: host:port or unix:///path")
	f.StringVar(&name, "name", "", "name among sidecars (default: host and process)")
	f.StringSliceVar(&listen, "listen", nil, "addresses for trainers: unix:///path or host:port")
	f.Var(&budget, "budget", "bytes that the sidecar may hold: slices, batches, windows of data streams")
	r.register(c)
	return c
}
