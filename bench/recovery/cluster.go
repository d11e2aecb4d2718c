package recovery

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// stopLimit is how long a process may take to end before it is killed.
const stopLimit = 5 * time.Second

// process is a role that was started.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{}
}

// start starts a role and waits until it is ready. It is killed when ctx ends.
func start(ctx context.Context, o Options, args ...string) (*process, error) {
	cmd := exec.CommandContext(ctx, o.Program, args...) //nolint:gosec // The program is this one.
	cmd.Stderr = o.Log
	cmd.WaitDelay = stopLimit
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", args[0], err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", args[0], err)
	}
	p := &process{cmd: cmd, ended: make(chan struct{})}
	reader := bufio.NewReader(out)
	_, err = reader.ReadBytes('\n')
	go func() {
		defer close(p.ended)
		_, _ = io.Copy(io.Discard, reader)
		_ = cmd.Wait() // Some are killed.
	}()
	if err != nil {
		p.stop()
		return nil, fmt.Errorf("%s did not become ready: %w", args[0], err)
	}
	return p, nil
}

func (p *process) signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("signal %v to process %d: %w", s, p.cmd.Process.Pid, err)
	}
	return nil
}

func (p *process) kill() error  { return p.signal(syscall.SIGKILL) }
func (p *process) pause() error { return p.signal(syscall.SIGSTOP) }
func (p *process) resume()      { _ = p.signal(syscall.SIGCONT) } // one that has ended needs none

// stop ends the process and waits until it has.
func (p *process) stop() {
	p.resume()
	_ = p.cmd.Process.Signal(os.Interrupt)
	limit := time.NewTimer(stopLimit)
	defer limit.Stop()
	select {
	case <-p.ended:
	case <-limit.C:
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// cluster is a dispatcher, workers and a sidecar.
type cluster struct {
	dispatcher, sidecar *process
	workers             []*process
	dispatcherAddress   string
	sidecarAddress      string
}

// startCluster starts all roles; what was started is in the cluster after an error too.
func startCluster(ctx context.Context, dir string, o Options) (*cluster, error) {
	socket := func(name string) string { return "unix://" + filepath.Join(dir, name) }
	c := &cluster{dispatcherAddress: socket("d"), sidecarAddress: socket("s")}
	common := []string{"--log-level", "error", "--cache-dir", filepath.Join(dir, "cache")}
	var err error
	if c.dispatcher, err = start(ctx, o, append([]string{"dispatcher", "--listen", c.dispatcherAddress}, common...)...); err != nil {
		return c, err
	}
	for i := range workers {
		w, err := start(ctx, o, append([]string{
			"worker", "--dispatcher", c.dispatcherAddress, "--listen", socket(fmt.Sprint("w", i)), "--name", fmt.Sprint("w", i), "--cpu-slots", fmt.Sprint(slots),
		}, common...)...)
		if err != nil {
			return c, err
		}
		c.workers = append(c.workers, w)
	}
	c.sidecar, err = start(ctx, o, append([]string{"sidecar", "--dispatcher", c.dispatcherAddress, "--listen", c.sidecarAddress}, common...)...)
	return c, err
}

func (c *cluster) stop() {
	if c.sidecar != nil {
		c.sidecar.stop()
	}
	for _, w := range c.workers {
		w.stop()
	}
	if c.dispatcher != nil {
		c.dispatcher.stop()
	}
}
