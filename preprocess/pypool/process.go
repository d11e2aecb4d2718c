package pypool

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/op"
)

// endGrace is how long the output of a process is read after its end: something it has started may still hold it.
const endGrace = time.Second

// maxPieceBytes bounds what comes back at a time.
const maxPieceBytes = 1 << 30

// process is one Python process with the functions that it has loaded. It belongs to one caller at a time.
type process struct {
	session   *Session
	functions map[*op.PythonFunction]int // by number, from 1
	cmd       *exec.Cmd
	conn      *net.UnixConn
	out       *outMemory
	in        *inMemory // nil until the first call
	errors    *lines
	exited    chan struct{} // closed when it has ended
	status    error         // of its end, then
	endOnce   sync.Once
}

// errCrashed is a process that has ended in the middle of something.
type errCrashed struct{ how string }

func (e *errCrashed) Error() string { return e.how }

// errTimeout is a call that took too long.
var errTimeout = errors.New("it took too long")

// launch starts a process, which has loaded nothing yet.
func (s *Session) launch(c *op.PythonCall) (x *process, err error) {
	cfg := &s.pool.cfg
	x = &process{session: s, functions: map[*op.PythonFunction]int{}, exited: make(chan struct{})}
	defer func() {
		if err != nil {
			x.closeFiles()
			err = errkind.With(errkind.Unavailable, fmt.Errorf("starting a Python process for %s: %w", c.Function.Call, err))
		}
	}()
	if x.out, err = newOutMemory(); err != nil {
		return x, err
	}
	var theirs *os.File
	if x.conn, theirs, err = socketPair(); err != nil {
		return x, err
	}
	defer func() { _ = theirs.Close() }()
	x.cmd = exec.Command(cfg.Executable, "-u", "-X", "faulthandler", "-m", "millrace._operators") //nolint:gosec,noctx // The operator of the worker names the interpreter; the process outlives the call.
	x.cmd.Env = cfg.Env
	x.cmd.ExtraFiles = []*os.File{theirs, x.out.file}
	x.cmd.SysProcAttr = ofItsOwn()
	x.cmd.WaitDelay = endGrace
	x.errors = &lines{log: cfg.Logger.With("stream", "stderr")}
	x.cmd.Stdout, x.cmd.Stderr = &lines{log: cfg.Logger.With("stream", "stdout")}, x.errors
	if err := s.pool.spawn.Start(x.cmd); err != nil {
		return x, err
	}
	go func() {
		x.status = x.cmd.Wait()
		killGroup(x.cmd) // what it has started
		close(x.exited)
	}()
	s.charge(x.out.size())
	return x, nil
}

// open has the process load the function.
func (x *process) open(ctx context.Context, c *op.PythonCall) error {
	f := c.Function
	frame := openFrame{
		Type: "open", Function: len(x.functions) + 1, Call: f.Call, Pickle: f.Pickle, Mode: f.Mode, Format: f.Format, KeepsRows: f.KeepsRows, Args: f.Args, Index: f.Index,
		Inputs: []fieldFrame{}, Out: []fieldFrame{}, MaxBytes: maxPieceBytes,
	}
	for _, at := range c.Inputs {
		frame.Inputs = append(frame.Inputs, newFieldFrame(c.Batch.Columns[at].Field, false))
	}
	for _, out := range c.Out {
		in := c.Batch.Column(out.Name)
		frame.Out = append(frame.Out, newFieldFrame(out, in == nil || !in.Field.Equal(out)))
	}
	var answer answerFrame
	err := x.converse(ctx, f.OpenTimeout, frame, &answer)
	switch {
	case errors.Is(err, errTimeout):
		return errkind.Errorf(errkind.Invalid, "python %s: it could not be loaded within %s; open_timeout sets another limit", f.Call, f.OpenTimeout)
	case err != nil:
		return err
	case answer.Type == "failed":
		return errkind.Errorf(errkind.Invalid, "python %s: it can't be loaded: %s", f.Call, withTraceback(&answer))
	case answer.Type != "ready":
		return errkind.Errorf(errkind.Invalid, "python %s: the process answered %.40q; do its package millrace and this program belong together?", f.Call, answer.Type)
	}
	x.functions[f] = frame.Function
	return nil
}

func newFieldFrame(f op.Field, made bool) fieldFrame {
	shape := f.Shape
	if shape == nil {
		shape = []int64{}
	}
	return fieldFrame{Name: f.Name, Kind: f.Kind.String(), DType: f.DType.String(), Shape: shape, Made: made}
}

// maxTraceback bounds the traceback in an error, which travels in headers of limited size: its end is kept.
const maxTraceback = 2000

// withTraceback is the cause, one line, and below it the traceback.
func withTraceback(a *answerFrame) string {
	text := strings.Join(strings.Fields(a.Error), " ")
	if len(text) > maxTraceback {
		text = strings.ToValidUTF8(text[:maxTraceback], "") + "…"
	}
	trace := strings.TrimRight(a.Traceback, "\n ")
	if trace == "" {
		return text
	}
	if len(trace) > maxTraceback {
		trace = "…" + strings.ToValidUTF8(trace[len(trace)-maxTraceback:], "")
	}
	return text + "\n" + trace
}

// converse writes a frame and reads the answer. The process may take so long; one that does not, or whose caller has gone,
// is killed.
func (x *process) converse(ctx context.Context, timeout time.Duration, frame any, answer *answerFrame) error {
	return x.exchange(ctx, timeout, func() error { return writeFrame(x.conn, frame) }, answer)
}

func (x *process) exchange(ctx context.Context, timeout time.Duration, send func() error, answer *answerFrame) error {
	stop := context.AfterFunc(ctx, x.kill)
	defer stop()
	watch := newWatch(x, timeout)
	err := send()
	if err == nil {
		err = readFrame(x.conn, answer)
	}
	late := watch.stop()
	if err == nil {
		return nil
	}
	x.kill()
	<-x.exited
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case late:
		return errTimeout
	}
	return &errCrashed{how: x.obituary()}
}

// obituary says how the process ended, and its last words: those of Python itself where it crashed.
func (x *process) obituary() string {
	how := "exit status 0"
	if x.status != nil {
		how = x.status.Error()
	}
	words := x.errors.words()
	if len(words) == 0 {
		return how
	}
	last := words[len(words)-1]
	for _, w := range words {
		if strings.HasPrefix(w, "Fatal Python error") {
			last = w
		}
	}
	return fmt.Sprintf("%s; its last words: %s", how, last)
}

// kill ends the process and what it has started.
func (x *process) kill() {
	select {
	case <-x.exited: // another process may have its number now
	default:
		killGroup(x.cmd)
	}
}

// end kills the process, waits for its end and gives up what it had.
func (x *process) end() {
	x.endOnce.Do(func() {
		x.kill()
		<-x.exited
		bytes := x.out.size()
		if x.in != nil {
			bytes += x.in.size
		}
		x.closeFiles()
		x.session.charge(-bytes)
		x.session.pool.gone()
	})
}

func (x *process) closeFiles() {
	if x.conn != nil {
		_ = x.conn.Close()
	}
	if x.out != nil {
		x.out.close()
	}
	if x.in != nil {
		x.in.close()
	}
}

// watch kills a process whose function does not come back in time: the process counts its calls in shared memory.
type watch struct {
	x       *process
	timeout time.Duration
	late    atomic.Bool

	mu    sync.Mutex
	timer *time.Timer
	over  bool
	ticks int64
	since time.Time
}

func newWatch(x *process, timeout time.Duration) *watch {
	w := &watch{x: x, timeout: timeout, ticks: x.out.ticks(), since: time.Now()}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(timeout, w.look)
	return w
}

func (w *watch) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return
	}
	if ticks := w.x.out.ticks(); ticks != w.ticks {
		w.ticks, w.since = ticks, time.Now()
	}
	left := w.timeout - time.Since(w.since)
	if left <= 0 {
		w.late.Store(true)
		w.x.kill()
		return
	}
	// A call that began after the last look is noticed late by a tenth of the time at most.
	w.timer.Reset(max(min(left, w.timeout/10), time.Millisecond))
}

// stop ends the watch and reports whether it has killed the process.
func (w *watch) stop() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	w.timer.Stop()
	return w.late.Load()
}
