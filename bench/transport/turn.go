package transport

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/millrace/millrace/internal/sleep"
)

// turn measures one side for one window.
func turn(ctx context.Context, s Scenario, kind string, o Options) (sum used, err error) {
	ctx, cancel := context.WithTimeout(ctx, o.WarmUp+o.Window+30*time.Second)
	defer cancel()
	dir, err := os.MkdirTemp("", "millrace-bench-")
	if err != nil {
		return used{}, fmt.Errorf("making a directory for sockets: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	args := []string{"--kind", kind, "--rows", strconv.Itoa(s.Rows), "--network", s.Network, "--dir", dir}
	if o.TLS {
		args = append(args, "--tls")
	}
	if o.Flight {
		args = append(args, "--flight")
	}
	if o.hash {
		args = append(args, "--hash")
	}
	server, err := startSide(ctx, o, append(args, "--role", RoleServer)...)
	if err != nil {
		return used{}, err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	client, err := startSide(ctx, o, append(args, "--role", RoleClient, "--address", server.ready.Address)...)
	if err != nil {
		return used{}, err
	}
	defer func() { err = errors.Join(err, client.stop()) }()
	before, err := askAfter(ctx, o.WarmUp, used{}, client, server)
	if err != nil {
		return used{}, err
	}
	after, err := askAfter(ctx, o.Window, before, client, server)
	if err != nil {
		return used{}, err
	}
	return after.minus(before), nil
}

// again is how long a side that has received nothing yet is left alone.
const again = 20 * time.Millisecond

// askAfter asks after d, or as soon as something was received since before, whatever is later.
func askAfter(ctx context.Context, d time.Duration, before used, client, server *process) (used, error) {
	for {
		if err := sleep.For(ctx, d); err != nil {
			return used{}, err
		}
		now, err := ask(client, server)
		if err != nil || now.Batches > before.Batches {
			return now, err
		}
		d = again
	}
}

// ask is what client and server have used so far, in the time of the client.
func ask(client, server *process) (used, error) {
	c, err := client.ask()
	if err != nil {
		return used{}, err
	}
	s, err := server.ask()
	if err != nil {
		return used{}, err
	}
	c.CPU += s.CPU
	c.Alloc += s.Alloc
	return c, nil
}

// process is one process of a side.
type process struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
	ready sideReady
}

// startSide starts a [Side] and waits until it is ready.
func startSide(ctx context.Context, o Options, args ...string) (*process, error) {
	return start(exec.CommandContext(ctx, o.Program, append(append([]string(nil), o.Args...), args...)...), o.Log) //nolint:gosec // The program is this one.
}

// start starts a process and waits until it is ready. Both processes of a turn write to log, so Run has put a lock before it.
func start(cmd *exec.Cmd, log io.Writer) (*process, error) {
	cmd.Stderr = log
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("starting a side: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("starting a side: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting a side: %w", err)
	}
	p := &process{cmd: cmd, in: in, out: bufio.NewReader(out)}
	if err := p.read(&p.ready); err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return p, nil
}

func (p *process) read(v any) error {
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("reading from a side: %w", err)
	}
	if err := json.Unmarshal(line, v); err != nil {
		return fmt.Errorf("a side said %q: %w", line, err)
	}
	return nil
}

func (p *process) ask() (used, error) {
	if _, err := io.WriteString(p.in, "\n"); err != nil {
		return used{}, fmt.Errorf("asking a side: %w", err)
	}
	var u used
	return u, p.read(&u)
}

// stop lets the process end, which it does when its input closes.
func (p *process) stop() error {
	_ = p.in.Close()
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("a side ended: %w", err)
	}
	return nil
}
