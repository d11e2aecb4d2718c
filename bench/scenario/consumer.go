package scenario

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/millrace/millrace/internal/errkind"
)

// How long a program may take to end: when it is told to, in a hurry, and at the end of its window.
const (
	hurriedExit = time.Second
	calmExit    = 15 * time.Second
)

// consumer is a running program that takes batches.
type consumer struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines *bufio.Scanner
	said  *tail
	held  *orphanage
	hurry *time.Timer // once the context is done, kills all that does not end by itself
}

func startConsumer(ctx context.Context, s side) (*consumer, error) {
	held, err := newOrphanage()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, s.argv[0], s.argv[1:]...) //nolint:gosec // The user names the interpreter.
	cmd.Env = s.env
	// A process group of its own keeps a terminal's Ctrl-C away: the one that tells it to end is this process.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c := &consumer{cmd: cmd, said: &tail{}, held: held, hurry: time.AfterFunc(math.MaxInt64, held.kill)}
	cmd.Cancel = func() error {
		c.hurry.Reset(hurriedExit)
		return cmd.Process.Signal(syscall.SIGTERM)
	}
	cmd.Stderr = c.said
	if c.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", s.name, err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", s.name, err)
	}
	c.lines = bufio.NewScanner(out)
	if err := cmd.Start(); err != nil {
		c.hurry.Stop()
		return nil, errkind.Errorf(errkind.Invalid, "starting %s: %w", s.name, err)
	}
	return c, nil
}

func (c *consumer) pid() int { return c.cmd.Process.Pid }

// read waits for the program's next line.
func (c *consumer) read() (report, error) {
	if c.lines.Scan() {
		return parseReport(c.lines.Bytes())
	}
	if err := c.lines.Err(); err != nil {
		return report{}, fmt.Errorf("reading what the program says: %w", err)
	}
	return report{}, errkind.Errorf(errkind.Unavailable, "it ended early: %s", c.lastWords())
}

// proceed opens the window.
func (c *consumer) proceed() error {
	if _, err := io.WriteString(c.stdin, "go\n"); err != nil {
		return fmt.Errorf("opening the window: %w", err)
	}
	return nil
}

// stop lets the program end, and ends it if it does not, with all processes that it has started.
func (c *consumer) stop() error {
	_ = c.stdin.Close() // This tells the program to end; it may have ended before.
	late := time.AfterFunc(calmExit, c.held.kill)
	err := c.cmd.Wait()
	left := c.held.clear(hurriedExit)
	late.Stop()
	c.hurry.Stop()
	var exit *exec.ExitError
	switch {
	case left != nil:
		return left
	case errors.As(err, &exit):
		return errkind.Errorf(errkind.Unavailable, "it ended with %v: %s", exit, c.lastWords())
	case err != nil:
		return fmt.Errorf("waiting for the program to end: %w", err)
	}
	return nil
}

// lastWords is the end of what the program wrote to standard error.
func (c *consumer) lastWords() string {
	if text := c.said.String(); text != "" {
		return text
	}
	return "it said nothing"
}

// tail keeps the last line of what is written to it, and what came shortly before.
type tail struct {
	mu   sync.Mutex
	text []byte
}

// tailBytes is how much a tail keeps.
const tailBytes = 4096

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if over := len(t.text) - tailBytes; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(p), nil
}

// String is the last line that is not empty.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(t.text)), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}
