package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/sleep"
)

// restartPause is the least time between two starts of a worker process.
const restartPause = time.Second

// startWorkers starts worker processes that connect to the dispatcher at address.
func (a *app) startWorkers(g *service.Group, m *monitor, o *localServe, address string) error {
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
	slots, processes := max(1, o.slots/o.workers), max(1, o.processes.python.processes/o.workers)
	for i := range o.workers {
		running.Add(1)
		metrics := filepath.Join(dir, fmt.Sprintf("w%d-metrics.sock", i))
		m.others = append(m.others, newRelay(fmt.Sprintf("w%d", i), metrics))
		g.Go(func(ctx context.Context) error {
			defer running.Done()
			args := []string{
				"--dispatcher", address, "--metrics", "unix://" + metrics, "--name", fmt.Sprintf("%s/w%d", processName(), i),
				"--listen", "unix://" + filepath.Join(dir, fmt.Sprintf("w%d.sock", i)), "--cpu-slots", fmt.Sprint(slots),
				"--budget", o.budget.String(), "--watch-stdin", "--log-level", a.logLevel, "--cache-dir", a.cacheDir,
			}
			args = append(args, o.processes.args(processes)...)
			return a.runWorkerProcess(ctx, self, append(append(args, a.stores.args()...), a.tls.Args()...)...)
		})
	}
	g.Go(func(context.Context) error { running.Wait(); return os.RemoveAll(dir) })
	return nil
}

// runWorkerProcess runs a worker until ctx ends. Its standard input tells it when this process is gone; one that dies
// is started again, unless it never became ready: then the next would fare no better.
func (a *app) runWorkerProcess(ctx context.Context, self string, args ...string) error {
	for {
		c := exec.CommandContext(ctx, self, append([]string{"worker"}, args...)...) //nolint:gosec // This program itself.
		ready := &written{}
		c.Stdout, c.Stderr = ready, a.err
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
		if !ready.Load() {
			return errkind.Errorf(errkind.Unavailable, "a worker process ended before it was ready: %s", how)
		}
		_, _ = fmt.Fprintf(a.err, "worker process ended (%s) and is started again\n", how)
		if err := sleep.For(ctx, restartPause-time.Since(started)); err != nil {
			return nil //nolint:nilerr // Stopped while it waited.
		}
	}
}

// written is true once something was written: the ready line of a role.
type written struct{ atomic.Bool }

// Write takes note.
func (w *written) Write(b []byte) (int, error) {
	w.Store(true)
	return len(b), nil
}
