package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/service"
)

// localServe is what the local command serves.
type localServe struct {
	localOptions
	socket     string
	listen     []string
	workers    int
	watchStdin bool
	idleExit   time.Duration
}

func (a *app) startLocal(ctx context.Context, g *service.Group, m *monitor, o *localServe) error {
	listeners, addresses, err := o.open(ctx)
	if err != nil {
		return err
	}
	idle := newIdleTimer(o.idleExit, g.Stop)
	inner := 1
	if o.workers > 0 {
		inner = 0
	}
	l, done, err := a.newLocal(o.localOptions, inner, listeners, idle.start)
	if err != nil {
		for _, l := range listeners {
			_ = l.Close()
		}
		return err
	}
	idle.busy = func() bool { return l.HasSessions() }
	m.add(l.Collectors()...)
	g.Go(func(ctx context.Context) error { defer done(); defer idle.stop(); return l.Run(ctx) })
	if err := a.startWorkers(g, o, addresses[0]); err != nil {
		return err
	}
	if o.watchStdin {
		watchInput(g, a.in)
	}
	idle.start()
	return a.ready(m, map[string]any{"role": "local", "socket": o.socket, "addresses": addresses, "pid": os.Getpid()})
}

func (o *localServe) open(ctx context.Context) (listeners []net.Listener, addresses []string, err error) {
	addresses = o.listen
	if o.socket != "" {
		path, err := filepath.Abs(o.socket)
		if err != nil {
			return nil, nil, fmt.Errorf("socket %s: %w", o.socket, err)
		}
		o.socket = path
		addresses = append([]string{"unix://" + path}, addresses...)
	}
	for i, address := range addresses {
		l, err := service.Listen(ctx, address)
		if err != nil {
			for _, l := range listeners {
				_ = l.Close()
			}
			return nil, nil, err
		}
		if l.Addr().Network() == "tcp" {
			addresses[i] = l.Addr().String()
		}
		listeners = append(listeners, l)
	}
	return listeners, addresses, nil
}

// startWorkers starts worker processes that connect to the dispatcher at address.
func (a *app) startWorkers(g *service.Group, o *localServe, address string) error {
	if o.workers == 0 {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program to start workers: %w", err)
	}
	dir, err := os.MkdirTemp("", "millrace-workers-")
	if err != nil {
		return fmt.Errorf("making a directory for the sockets of workers: %w", err)
	}
	var running sync.WaitGroup
	slots := max(1, o.slots/o.workers)
	for i := range o.workers {
		running.Add(1)
		g.Go(func(ctx context.Context) error {
			defer running.Done()
			return a.runWorkerProcess(ctx, self, "--dispatcher", address, "--name", fmt.Sprintf("%s/w%d", processName(), i),
				"--listen", "unix://"+filepath.Join(dir, fmt.Sprintf("w%d.sock", i)), "--cpu-slots", fmt.Sprint(slots),
				"--budget", o.budget.String(), "--watch-stdin", "--log-level", a.logLevel, "--cache-dir", a.cacheDir)
		})
	}
	g.Go(func(context.Context) error { running.Wait(); return os.RemoveAll(dir) })
	return nil
}

// runWorkerProcess runs a worker until ctx ends. Its standard input tells it when this process is gone; one that dies
// is started again.
func (a *app) runWorkerProcess(ctx context.Context, self string, args ...string) error {
	for {
		c := exec.CommandContext(ctx, self, append([]string{"worker"}, args...)...) //nolint:gosec // This program itself.
		c.Stderr = a.err
		// Ctrl-C in a terminal reaches a whole process group; workers are told by this process, when trainers are gone.
		c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
		c.WaitDelay = stopGrace
		in, err := c.StdinPipe()
		if err != nil {
			return fmt.Errorf("starting a worker process: %w", err)
		}
		started := time.Now()
		err = c.Run()
		_ = in.Close()
		if ctx.Err() != nil {
			return nil
		}
		how := "exit status 0"
		if err != nil {
			how = err.Error()
		}
		if time.Since(started) < time.Second {
			return errkind.Errorf(errkind.Unavailable, "a worker process ended at once: %s", how)
		}
		_, _ = fmt.Fprintf(a.err, "worker process ended (%s) and is started again\n", how)
	}
}
