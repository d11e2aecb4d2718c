package main

import (
	"context"
	"path/filepath"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/preprocess/dispatch"
)

func (a *app) dispatcherCmd() *cobra.Command {
	var listen string
	var r roleFlags
	c := &cobra.Command{
		Use:   "dispatcher",
		Short: "Plan jobs, give work to workers, tell sidecars where every row is",
		Args:  usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.serve(c.Context(), r, func(ctx context.Context, g *service.Group, m *monitor) error {
				d, done, err := a.newDispatcher()
				if err != nil {
					return err
				}
				t, err := a.encryption()
				if err != nil {
					done()
					return err
				}
				l, err := listenEncrypted(ctx, t, listen)
				if err != nil {
					done()
					return err
				}
				server := grpc.NewServer(append(service.ServerOptions(), t.ServerOptions()...)...)
				d.Register(server)
				service.RegisterHealth(server)
				m.add(d.Collectors()...)
				g.Go(func(ctx context.Context) error { defer done(); return d.Run(ctx) })
				g.Go(func(ctx context.Context) error { return service.ServeGRPC(ctx, server, l) })
				return a.ready(m, map[string]any{"role": "dispatcher", "address": l.Addr().String()})
			})
		},
	}
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:7700", "address for workers and sidecars: host:port or unix:///path")
	r.register(c)
	return c
}

// newDispatcher makes a dispatcher over the stores that this binary knows; done closes them.
func (a *app) newDispatcher() (*dispatch.Dispatcher, func(), error) {
	config, done, err := a.dispatchConfig()
	if err != nil {
		return nil, nil, err
	}
	d, err := dispatch.New(config)
	if err != nil {
		done()
		return nil, nil, err
	}
	return d, done, nil
}

// dispatchConfig is a dispatcher's configuration over the stores that this binary knows; done closes them.
func (a *app) dispatchConfig() (dispatch.Config, func(), error) {
	logger, err := a.logger()
	if err != nil {
		return dispatch.Config{}, nil, err
	}
	cache, err := a.openCache()
	if err != nil {
		return dispatch.Config{}, nil, err
	}
	dir, err := a.cachePath()
	if err != nil {
		return dispatch.Config{}, nil, err
	}
	bars, resolver := newIndexBars(a.err), a.newResolver()
	return dispatch.Config{
		Version: version, Resolver: resolver, Cache: cache, PlanDir: filepath.Join(dir, "plans"), OnIndexing: bars.show, Logger: logger,
	}, func() { bars.close(); _ = resolver.Close() }, nil
}
