package main

import (
	"context"
	"fmt"
	"maps"
	"net"
	"runtime"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/preprocess/exec"
	"github.com/millrace/millrace/preprocess/partition"
	"github.com/millrace/millrace/preprocess/partition/flightdata"
	"github.com/millrace/millrace/preprocess/worker"
)

// besideBudget is what a worker process may take beside its budget before it says so: code, heap, decoders at work.
const besideBudget = 256 << 20

// workerOptions are the flags of the worker command.
type workerOptions struct {
	dispatcher, name, listen, advertise, policy string
	slots                                       int
	resources                                   map[string]int
	budget                                      service.Bytes
	processes                                   processOptions
	drainTimeout                                time.Duration
	watchStdin                                  bool
}

func (a *app) workerCmd() *cobra.Command {
	o := workerOptions{budget: 1 << 30}
	var r roleFlags
	c := &cobra.Command{
		Use:   "worker",
		Short: "Read, decode and augment samples for a dispatcher",
		Args:  usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if o.dispatcher == "" {
				return usageError{errkind.Errorf(errkind.Invalid, "give the dispatcher's address with --dispatcher")}
			}
			return a.serve(c.Context(), r, func(ctx context.Context, g *service.Group, m *monitor) error { return a.startWorker(ctx, g, m, &o) })
		},
	}
	f := c.Flags()
	f.StringVar(&o.dispatcher, "dispatcher", "", "addresses of the dispatcher and its standbys: host:port or unix:///path")
	f.StringVar(&o.name, "name", "", "name among workers (default: host and process)")
	f.StringVar(&o.listen, "listen", "127.0.0.1:0", "address at which sidecars fetch partitions")
	f.StringVar(&o.advertise, "advertise", "", "address that sidecars are told, if they reach it by another one")
	f.IntVar(&o.slots, "cpu-slots", runtime.NumCPU(), "samples decoded at a time, one a core")
	f.StringToIntVar(&o.resources, "slots", nil, "slots of further resources, such as gpu=1")
	f.Var(&o.budget, "budget", "bytes of finished partitions that the worker may hold")
	f.StringVar(&o.policy, "policy", exec.PolicyStreaming.String(), "how stages share the slots: streaming or, for comparison, staged or static")
	f.DurationVar(&o.drainTimeout, "drain-timeout", 25*time.Second, "after SIGTERM, time to finish and hand over what the worker has; 0: stop at once")
	o.processes.register(c)
	f.BoolVar(&o.watchStdin, "watch-stdin", false, "stop when standard input closes")
	r.register(c)
	return c
}

func (a *app) startWorker(ctx context.Context, g *service.Group, m *monitor, o *workerOptions) error {
	logger, err := a.logger()
	if err != nil {
		return err
	}
	policy, err := exec.ParsePolicy(o.policy)
	if err != nil {
		return err
	}
	cache, err := a.openCache()
	if err != nil {
		return err
	}
	t, err := a.encryption()
	if err != nil {
		return err
	}
	control, err := service.DialPeers(o.dispatcher, t)
	if err != nil {
		return usageError{err}
	}
	l, err := listenEncrypted(ctx, t, o.listen)
	if err != nil {
		return err
	}
	address := o.advertise
	if address == "" {
		address = l.Addr().String()
		if l.Addr().Network() == "unix" {
			address = "unix:" + address
		}
	}
	if o.name == "" {
		o.name = processName()
	}
	slots := map[string]int{"cpu": o.slots}
	maps.Copy(slots, o.resources)
	beside, err := o.processes.pools(slots, logger)
	if err != nil {
		_ = l.Close()
		return err
	}
	resolver, pool := a.newResolver(), partition.NewPoolWithin(int64(o.budget))
	w, err := worker.New(worker.Config{
		Name: o.name, DataAddress: address, Slots: slots, BudgetBytes: int64(o.budget), Policy: policy, BlockBytes: int64(a.stores.blocks), ResidentLimit: int64(o.budget) + int64(a.stores.blocks) + besideBudget, Version: version, Scalar: a.scalar(),
		AllowPython: o.processes.python.allow,
	}, worker.Deps{Dispatcher: control, Resolver: resolver, Cache: cache, Pool: pool, Python: beside.python, Isolated: beside.isolated, Logger: logger})
	if err != nil {
		_ = l.Close()
		beside.close()
		return err
	}
	server := grpc.NewServer(slices.Concat(service.ServerOptions(), flightdata.ServerOptions(), t.ServerOptions())...)
	data := partition.NewServer(w.Store())
	data.Register(server)
	service.RegisterHealth(server)
	m.add(w.Collectors()...)
	l = service.Divert(l, partition.ChannelByte, func(c net.Conn) { data.HandleChannel(ctx, c, t.ServerFor(c)) })
	served := make(chan struct{})
	g.Go(func(ctx context.Context) error { defer close(served); return service.ServeGRPC(ctx, server, l) })
	g.Go(func(ctx context.Context) error {
		err := w.Run(ctx)
		logger.Info("worker has ended", "worker", o.name, "samples", w.Samples(), "drained", w.Drained())
		beside.close()
		g.Stop()
		<-served // readers hold buffers of the pool
		_ = control.Close()
		_ = resolver.Close()
		if closeErr := pool.Close(); err == nil && closeErr != nil {
			err = fmt.Errorf("worker %s: %w", o.name, closeErr)
		}
		return err
	})
	if o.watchStdin {
		watchInput(g, a.in)
	}
	a.leaveWithin(o.drainTimeout, g, w.Stop)
	return a.ready(m, map[string]any{"role": "worker", "name": o.name, "address": address})
}
