package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/cmd/millrace/local"
	"github.com/millrace/millrace/feed/client"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/service"
)

// localOptions are the flags of everything that runs all roles in one process.
type localOptions struct {
	slots            int
	budget, feedSize service.Bytes
	processes        processOptions
}

func (o *localOptions) register(c *cobra.Command) {
	o.budget, o.feedSize = 48<<20, 256<<20
	c.Flags().IntVar(&o.slots, "cpu-slots", runtime.NumCPU(), "samples decoded at a time, one a core")
	c.Flags().Var(&o.budget, "worker-budget", "bytes of finished partitions that a worker may hold")
	o.processes.register(c)
	c.Flags().Var(&o.feedSize, "feed-budget", "bytes that the sidecar may hold: slices, batches, windows of data streams")
}

func (a *app) localCmd() *cobra.Command {
	var o localServe
	var r roleFlags
	c := &cobra.Command{
		Use:   "local",
		Short: "Run dispatcher, workers and sidecar in one process",
		Args:  usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if o.socket == "" && len(o.listen) == 0 {
				return usageError{errkind.Errorf(errkind.Invalid, "give --socket PATH or --listen ADDRESS for trainers")}
			}
			return a.serve(c.Context(), r, func(ctx context.Context, g *service.Group, m *monitor) error { return a.startLocal(ctx, g, m, &o) })
		},
	}
	f := c.Flags()
	f.StringVar(&o.socket, "socket", "", "Unix socket for trainers, an absolute path")
	f.StringSliceVar(&o.listen, "listen", nil, "more addresses for trainers and workers: host:port or unix:///path")
	f.IntVar(&o.workers, "workers", 0, "worker processes to start; 0: work in this process")
	f.BoolVar(&o.watchStdin, "watch-stdin", false, "stop when standard input closes")
	f.DurationVar(&o.idleExit, "idle-exit", 0, "stop when no session has been open for this long; 0: never")
	o.register(c)
	r.register(c)
	return c
}

// newLocal makes all roles with listeners; done closes what they stand on.
func (a *app) newLocal(o localOptions, workers int, listeners []net.Listener, t *service.TLS, onIdle func()) (*local.Local, func(), error) {
	config, done, err := a.dispatchConfig()
	if err != nil {
		return nil, nil, err
	}
	slots := map[string]int{"cpu": o.slots}
	beside, err := o.processes.pools(slots, config.Logger)
	if err != nil {
		done()
		return nil, nil, err
	}
	l, err := local.New(local.Config{
		Name: processName(), Dispatch: config, Workers: workers, Slots: slots, AllowPython: o.processes.python.allow, Python: beside.python, Isolated: beside.isolated,
		BlockBytes: int64(a.stores.blocks), WorkerBytes: int64(o.budget), FeedBytes: int64(o.feedSize), Scalar: a.scalar(), Streams: 8, Listeners: listeners, TLS: t, OnIdle: onIdle,
	})
	if err != nil {
		beside.close()
		done()
		return nil, nil, err
	}
	return l, done, nil
}

// processName tells processes apart in status and logs.
func processName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "local"
	}
	return fmt.Sprintf("%s-%d", host, os.Getpid())
}

// scalar says whether image kernels should leave SIMD alone, for comparison: the bytes are the same.
func (a *app) scalar() bool {
	v, _ := a.lookup("MILLRACE_SIMD")
	return v == "scalar"
}

// startInProcess runs all roles for a command and connects to them.
func (a *app) startInProcess(ctx context.Context, o localOptions) (grpc.ClientConnInterface, func(), error) {
	l, done, err := a.newLocal(o, 1, nil, nil, nil)
	if err != nil {
		return nil, nil, err
	}
	g := service.NewGroup(ctx)
	g.Go(l.Run)
	conn, err := l.Dial(client.DialOptions()...)
	stop := func() {
		if conn != nil {
			_ = conn.Close()
		}
		g.Stop()
		_ = g.Wait(stopGrace)
		done()
	}
	if err != nil {
		stop()
		return nil, nil, err
	}
	return conn, stop, nil
}

// watchInput ends the group when the input does: that of a parent process which is gone.
func watchInput(g *service.Group, in io.Reader) {
	go func() {
		_, _ = io.Copy(io.Discard, in)
		g.Stop()
	}()
}
