package main

import (
	"context"
	"net"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/preprocess/dispatch"
	"github.com/millrace/millrace/preprocess/dispatch/journal/keep"
)

// dispatcherOptions are the flags of the dispatcher command.
type dispatcherOptions struct {
	listen, log string
	standby     bool
	lease       time.Duration
}

func (a *app) dispatcherCmd() *cobra.Command {
	var o dispatcherOptions
	var r roleFlags
	c := &cobra.Command{
		Use:   "dispatcher",
		Short: "Plan jobs, give work to workers, tell sidecars where every row is",
		Args:  usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if o.standby && o.log == "" {
				return usageError{errkind.Errorf(errkind.Invalid, "a standby watches the log of the dispatcher that leads: give it with --log")}
			}
			if o.lease <= 0 {
				return usageError{errkind.Errorf(errkind.Invalid, "--lease is %s; it has to be above 0", o.lease)}
			}
			return a.serve(c.Context(), r, func(ctx context.Context, g *service.Group, m *monitor) error { return a.startDispatcher(ctx, g, m, &o) })
		},
	}
	f := c.Flags()
	f.StringVar(&o.listen, "listen", "127.0.0.1:7700", "address for workers and sidecars: host:port or unix:///path")
	f.StringVar(&o.log, "log", "", "directory or s3://bucket/prefix that remembers the jobs, so that a dispatcher that is started again goes on with them")
	f.BoolVar(&o.standby, "standby", false, "wait until no dispatcher writes the log, then take over")
	f.DurationVar(&o.lease, "lease", dispatch.DefaultLease, "how long the log shows no sign of life before a standby takes over; the same for all")
	r.register(c)
	return c
}

// startDispatcher serves at once or, as a standby, when its turn comes.
func (a *app) startDispatcher(ctx context.Context, g *service.Group, m *monitor, o *dispatcherOptions) error {
	t, err := a.encryption()
	if err != nil {
		return err
	}
	config, done, err := a.dispatchConfig()
	if err != nil {
		return err
	}
	config.Lease = o.lease
	if o.log != "" {
		if config.Log, err = keep.Open(ctx, config.Resolver, o.log, config.Logger); err != nil {
			done()
			return err
		}
	}
	if o.standby {
		later := prometheus.NewRegistry() // its metrics are there once it leads
		m.others = append(m.others, later)
		g.Go(func(ctx context.Context) error {
			d, l, err := leadDispatcher(ctx, &config, o, t)
			if err != nil {
				done()
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
			config.Logger.Warn("standby has taken over", "address", l.Addr().String())
			for _, c := range d.Collectors() {
				if err := later.Register(c); err != nil {
					config.Logger.Error("a metric is missing", "error", err)
				}
			}
			serveDispatcher(g, d, l, t, done)
			return nil
		})
		return a.ready(m, map[string]any{"role": "dispatcher", "address": o.listen, "standby": true})
	}
	d, l, err := leadDispatcher(ctx, &config, o, t)
	if err != nil {
		done()
		return err
	}
	m.add(d.Collectors()...)
	serveDispatcher(g, d, l, t, done)
	return a.ready(m, map[string]any{"role": "dispatcher", "address": l.Addr().String()})
}

// leadDispatcher takes up the log, if there is one, and opens the door.
func leadDispatcher(ctx context.Context, config *dispatch.Config, o *dispatcherOptions, t *service.TLS) (*dispatch.Dispatcher, net.Listener, error) {
	if config.Log != nil {
		if err := config.Log.Take(ctx, processName(), o.standby, o.lease); err != nil {
			return nil, nil, err
		}
	}
	d, err := dispatch.New(*config)
	if err != nil {
		return nil, nil, err
	}
	if err := d.Restore(ctx); err != nil {
		return nil, nil, err
	}
	l, err := listenEncrypted(ctx, t, o.listen)
	return d, l, err
}

func serveDispatcher(g *service.Group, d *dispatch.Dispatcher, l net.Listener, t *service.TLS, done func()) {
	server := grpc.NewServer(append(service.ServerOptions(), t.ServerOptions()...)...)
	d.Register(server)
	service.RegisterHealth(server)
	g.Go(func(ctx context.Context) error { defer done(); return d.Run(ctx) })
	g.Go(func(ctx context.Context) error { return service.ServeGRPC(ctx, server, l) })
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
