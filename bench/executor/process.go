package executor

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
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
		_ = cmd.Wait() // A worker over its limit was killed; the runner knows.
	}()
	if err != nil {
		p.stop()
		return nil, fmt.Errorf("%s did not become ready: %w", args[0], err)
	}
	return p, nil
}

// stop ends the process and waits until it has.
func (p *process) stop() {
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

// cpu is what the process has used, once it was waited for.
func (p *process) cpu() float64 {
	<-p.ended
	s := p.cmd.ProcessState
	return (s.UserTime() + s.SystemTime()).Seconds()
}
