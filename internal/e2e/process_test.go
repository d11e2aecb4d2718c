package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	// patience bounds every wait. It is far above what anything takes, so a busy machine fails no test.
	patience = 60 * time.Second
	// stopLimit is how long a role may take to end after it was told to.
	stopLimit = 2 * time.Second
)

// place is where the processes of one test live: a home, a cache and a directory for temporary files of their own.
type place struct {
	t     *testing.T
	dir   string
	env   []string
	roles int
}

// newPlace makes a place. Its path is short, since sockets lie in it.
func newPlace(t *testing.T) *place {
	t.Helper()
	dir, err := os.MkdirTemp("", "e2e") //nolint:usetesting // The test's own directory has its name, too long for sockets.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("removing %s: %v", dir, err)
		}
	})
	for _, sub := range []string{"home", "tmp"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return &place{t: t, dir: dir, env: []string{
		"PATH=" + filepath.Dir(millrace()) + string(os.PathListSeparator) + os.Getenv("PATH"),
		"HOME=" + filepath.Join(dir, "home"), "TMPDIR=" + filepath.Join(dir, "tmp"), "LANG=C.UTF-8",
	}}
}

func (p *place) path(elem ...string) string {
	return filepath.Join(append([]string{p.dir}, elem...)...)
}

func (p *place) write(name, text string) string {
	p.t.Helper()
	path := p.path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
	return path
}

// answer is how a command ended.
type answer struct {
	code        int
	out, errors string
}

// run runs a command to its end. env is added to the environment of the place.
func (p *place) run(env []string, name string, args ...string) answer {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	c := exec.CommandContext(ctx, name, args...)
	var out, errs bytes.Buffer
	c.Dir, c.Env, c.Stdout, c.Stderr = p.dir, slices.Concat(p.env, env), &out, &errs
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		p.t.Fatalf("%s %s: %v (%v)\n%s", filepath.Base(name), strings.Join(args, " "), err, ctx.Err(), errs.String())
	}
	return answer{code: c.ProcessState.ExitCode(), out: out.String(), errors: errs.String()}
}

// millrace runs a command of the binary.
func (p *place) millrace(args ...string) answer {
	p.t.Helper()
	return p.run(nil, millrace(), args...)
}

// must runs a command that has to succeed, and is what it answered.
func (p *place) must(args ...string) string {
	p.t.Helper()
	a := p.millrace(args...)
	if a.code != 0 {
		p.t.Fatalf("millrace %s: exit code %d\n%s", strings.Join(args, " "), a.code, a.errors)
	}
	return a.out
}

// role is a process that serves until it is stopped.
type role struct {
	t     *testing.T
	cmd   *exec.Cmd
	mark  string // in the environment of all that it starts
	stdin io.WriteCloser
	errs  *log
	ready map[string]any
	ended chan struct{} // closed when it has ended and its output was read
	extra log           // standard output after the ready line
}

// log is what a process has written so far.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// start starts a role in a process group of its own and waits for its ready line. What is left of it and of what it
// started is killed when the test ends.
func (p *place) start(name string, args ...string) *role { return p.startWith(nil, name, args...) }

func (p *place) startWith(env []string, name string, args ...string) *role {
	p.t.Helper()
	r := &role{t: p.t, cmd: exec.CommandContext(p.t.Context(), name, args...), errs: &log{}, ended: make(chan struct{})}
	p.roles++
	r.mark = fmt.Sprintf("E2E_ROLE=%s:%d", p.dir, p.roles)
	r.cmd.Dir, r.cmd.Env, r.cmd.Stderr = p.dir, append(slices.Concat(p.env, env), r.mark), r.errs
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// A child that outlives the role would hold its standard error open for ever.
	r.cmd.WaitDelay = patience
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if r.stdin, err = r.cmd.StdinPipe(); err != nil {
		p.t.Fatal(err)
	}
	if err := r.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	first := make(chan map[string]any, 1)
	go r.read(out, first)
	p.t.Cleanup(func() {
		_ = r.cmd.Process.Kill()
		for _, pid := range running(p.t, r.mark) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		<-r.ended
	})
	select {
	case r.ready = <-first:
	case <-time.After(patience):
	}
	if r.ready == nil {
		p.t.Fatalf("%s %s did not become ready\n%s", filepath.Base(name), strings.Join(args, " "), r.errs)
	}
	return r
}

// read reads the ready line, then the rest, and waits for the end of the process.
func (r *role) read(out io.Reader, first chan<- map[string]any) {
	defer close(r.ended)
	d := json.NewDecoder(out)
	var ready map[string]any
	if err := d.Decode(&ready); err != nil || ready["ready"] != true {
		ready = nil
	}
	first <- ready
	_, _ = io.Copy(&r.extra, io.MultiReader(d.Buffered(), out))
	_ = r.cmd.Wait() // its exit code is looked at
}

// address is the i-th one of the ready line.
func (r *role) address(i int) string {
	r.t.Helper()
	if a, ok := r.ready["address"].(string); ok {
		return a
	}
	list, _ := r.ready["addresses"].([]any)
	if i >= len(list) {
		r.t.Fatalf("no address %d in %v", i, r.ready)
	}
	a, _ := list[i].(string)
	return a
}

// signal tells the role, and it alone, as a process manager does.
func (r *role) signal(s syscall.Signal) {
	r.t.Helper()
	if err := r.cmd.Process.Signal(s); err != nil {
		r.t.Fatal(err)
	}
}

// wait waits until the role and all that it started have ended, and is its exit code.
func (r *role) wait(limit time.Duration) int {
	r.t.Helper()
	deadline := time.Now().Add(limit)
	select {
	case <-r.ended:
	case <-time.After(limit):
		r.t.Fatalf("pid %d still runs after %s\n%s", r.cmd.Process.Pid, limit, r.errs)
	}
	eventually(r.t, time.Until(deadline), "the end of what the role started", func() bool { return len(running(r.t, r.mark)) == 0 })
	return r.cmd.ProcessState.ExitCode()
}

// running lists the processes with a mark in their environment: a role and all that it has started, wherever they are.
func running(t *testing.T, mark string) (pids []int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		text, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(text, []byte(mark+"\x00")) {
			continue // gone, or of another user
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// stop ends the role as Ctrl-C does, and expects a clean end.
func (r *role) stop() {
	r.t.Helper()
	r.signal(syscall.SIGINT)
	if code := r.wait(stopLimit); code != 0 {
		r.t.Errorf("exit code %d after SIGINT\n%s", code, r.errs)
	}
	if rest := strings.TrimSpace(r.extra.String()); rest != "" {
		r.t.Errorf("more than the ready line on standard output: %s", rest)
	}
}

// eventually waits for a condition.
func eventually(t *testing.T, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	deadline := time.NewTimer(max(limit, time.Millisecond))
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("waited %s in vain for %s", limit, what)
		}
	}
}

// metrics is the address of the role's metrics.
func (r *role) metrics() string {
	r.t.Helper()
	a, _ := r.ready["metrics"].(string)
	if a == "" {
		r.t.Fatalf("no address of metrics in %v", r.ready)
	}
	return a
}
