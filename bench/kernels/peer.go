package kernels

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/millrace/millrace/bench/peers"
	"github.com/millrace/millrace/internal/errkind"
)

// What the peer's program can do: all on PIL images, all on tensors, and nothing but bringing PIL images to tensors.
const (
	peerPillow = "pillow+torchvision"
	peerTensor = "torchvision.io"
	peerPlain  = "nothing"
)

// peer is a process of the peer's program. It answers each line of JSON with one.
type peer struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines *bufio.Reader
	said  *bytes.Buffer
}

// exitGrace is how long the program may take to end when its input has ended.
const exitGrace = 5 * time.Second

func command(ctx context.Context, o Options, dir, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, o.Python, append([]string{filepath.Join(dir, program)}, args...)...) //nolint:gosec // The user names the interpreter.
	cmd.Env = append(o.Env, "OMP_NUM_THREADS=1", "PYTHONDONTWRITEBYTECODE=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = exitGrace
	return cmd
}

func startPeer(ctx context.Context, o Options, dir string, cpu int) (*peer, error) {
	p := &peer{cmd: command(ctx, o, dir, peers.Kernels, strconv.Itoa(cpu)), said: &bytes.Buffer{}}
	p.cmd.Stderr = p.said
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("connecting to the peer: %w", err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("connecting to the peer: %w", err)
	}
	p.lines = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		return nil, errkind.Errorf(errkind.Invalid, "starting the peer: %w", err)
	}
	return p, nil
}

// stop ends the process.
func (p *peer) stop() {
	_ = p.stdin.Close()
	late := time.AfterFunc(exitGrace, func() { _ = p.cmd.Process.Kill() })
	defer late.Stop()
	_ = p.cmd.Wait() // How it ends is no part of the outcome.
}

// ask sends one order and reads the answer.
func (p *peer) ask(order map[string]any, answer any) error {
	line, err := json.Marshal(order)
	if err != nil {
		return fmt.Errorf("asking the peer: %w", err)
	}
	if _, err := p.stdin.Write(append(line, '\n')); err != nil {
		return p.gone(err)
	}
	got, err := p.lines.ReadBytes('\n')
	if err != nil {
		return p.gone(err)
	}
	if err := json.Unmarshal(got, answer); err != nil {
		return errkind.Errorf(errkind.Internal, "the peer said %q: %w", got, err)
	}
	return nil
}

// gone is the error of a peer that has ended; its last words tell why.
func (p *peer) gone(err error) error {
	_ = p.cmd.Wait() // Its errors have been read to the end then.
	words := strings.Split(strings.TrimSpace(p.said.String()), "\n")
	if last := words[len(words)-1]; last != "" {
		return errkind.Errorf(errkind.Unavailable, "the peer ended: %s", last)
	}
	return errkind.Errorf(errkind.Unavailable, "the peer ended: %w", err)
}

func (p *peer) prepare(id string, files []string, s Scenario, draws [][][]json.RawMessage) error {
	return p.ask(map[string]any{"do": "prepare", "id": id, "files": files, "ready": s.ready, "steps": s.steps, "draws": draws}, &struct{}{})
}

// pixels writes the results of all passes to a file.
func (p *peer) pixels(id, file string) error {
	return p.ask(map[string]any{"do": "pixels", "id": id, "file": file}, &struct{}{})
}

// timing is what a turn of the peer took, in seconds.
type timing struct {
	CPU    float64 `json:"cpu"`
	Images int     `json:"images"`
}

// timed is the peer's processor time for an image, in µs, over all passes.
func (p *peer) timed(id, variant string) (float64, error) {
	var t timing
	if err := p.ask(map[string]any{"do": "time", "id": id, "variant": variant}, &t); err != nil {
		return 0, err
	}
	if t.Images < 1 {
		return 0, errkind.Errorf(errkind.Internal, "the peer made no image")
	}
	return t.CPU * 1e6 / float64(t.Images), nil
}

// together is the time by the clock for an image while all processes work.
func together(all []*peer, id, variant string) (float64, error) {
	errs, times := make([]error, len(all)), make([]timing, len(all))
	began := time.Now()
	var group sync.WaitGroup
	for i, p := range all {
		group.Go(func() {
			errs[i] = p.ask(map[string]any{"do": "time", "id": id, "variant": variant}, &times[i])
		})
	}
	group.Wait()
	spent := time.Since(began)
	images := 0
	for i, err := range errs {
		if err != nil {
			return 0, err
		}
		images += times[i].Images
	}
	if images < 1 {
		return 0, errkind.Errorf(errkind.Internal, "the peer made no image")
	}
	return micros(spent) / float64(images), nil
}
