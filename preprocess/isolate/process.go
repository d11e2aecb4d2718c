//go:build linux && (amd64 || arm64)

package isolate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/spawn"
)

// keptBytes is how much shared memory stays with a process between two images.
const keptBytes = 8 << 20

// process is one decoder process. It belongs to one caller at a time.
type process struct {
	cmd    *exec.Cmd
	socket *os.File
	memory *os.File
	mem    []byte
	size   int64 // of the memory
	errors words
	exited chan struct{} // closed when it has ended
	once   sync.Once
	// broken says that it has ended, or is in the middle of something.
	broken bool
}

// deathError is a process that has ended in the middle of something.
type deathError struct {
	kind errkind.Kind
	how  string
	late bool
}

func (e *deathError) Error() string { return e.how }

// start starts a process. Its end is to be called.
func start(thread *spawn.Thread, command []string, libraries string) (x *process, err error) {
	x = &process{exited: make(chan struct{})}
	defer func() {
		if err != nil {
			x.closeFiles()
		}
	}()
	fd, err := unix.MemfdCreate("millrace-decoder", unix.MFD_CLOEXEC)
	if err != nil {
		return x, fmt.Errorf("creating shared memory (memfd): %w", err)
	}
	x.memory = os.NewFile(uintptr(fd), "memfd:millrace-decoder")
	if err := x.resize(int64(headBytes)); err != nil {
		return x, err
	}
	if x.mem, err = unix.Mmap(fd, 0, mapBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return x, fmt.Errorf("mapping shared memory: %w", err)
	}
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return x, fmt.Errorf("making a socket: %w", err)
	}
	theirs := os.NewFile(uintptr(ends[1]), "decoder")
	defer func() { _ = theirs.Close() }()
	err = unix.SetNonblock(ends[0], true)
	x.socket = os.NewFile(uintptr(ends[0]), "decoder")
	if err != nil {
		return x, fmt.Errorf("making a socket: %w", err)
	}
	x.cmd = exec.Command(command[0], command[1:]...) //nolint:gosec,noctx // This program itself; the process outlives the call.
	// Nothing of this environment is for it but where the loader finds libraries.
	x.cmd.Env = []string{"GOMAXPROCS=1", "GOTRACEBACK=none", "MALLOC_ARENA_MAX=1", "LD_LIBRARY_PATH=" + libraries}
	x.cmd.ExtraFiles = []*os.File{theirs, x.memory}
	// Ctrl-C in a terminal is not for it, and it does not outlive this process.
	x.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	x.cmd.Stderr = &x.errors
	if err := thread.Start(x.cmd); err != nil {
		return x, err
	}
	go func() {
		_ = x.cmd.Wait()
		close(x.exited)
	}()
	return x, nil
}

// hello waits until the process is locked up.
func (x *process) hello(timeout time.Duration) error {
	err := x.await(timeout)
	if err == nil {
		return nil
	}
	x.broken = true
	x.kill()
	<-x.exited
	if x.cmd.ProcessState.ExitCode() == exitUnlocked {
		return errors.New(x.errors.first())
	}
	return errors.New("its process " + x.obituary(errors.Is(err, os.ErrDeadlineExceeded), timeout).how)
}

// await waits for the process's bell.
func (x *process) await(timeout time.Duration) error {
	if err := x.socket.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	var bell [1]byte
	_, err := x.socket.Read(bell[:])
	return err
}

// call has the process do something with a file. That it ends meanwhile is a deathError.
func (x *process) call(ctx context.Context, timeout time.Duration, r *request, data []byte, n int, take func(out []byte)) error {
	stop := context.AfterFunc(ctx, x.kill)
	defer stop()
	if size := need(len(data), n); size > x.size {
		if err := x.resize(size); err != nil {
			return errkind.With(errkind.Exhausted, err)
		}
	}
	x.broken = true
	q := requestIn(x.mem)
	*q = *r
	q.in, q.out = int64(len(data)), int64(n)
	in, out := places(x.mem, q.in, int64(n))
	copy(in, data)
	_, err := x.socket.Write([]byte{1})
	if err == nil {
		err = x.await(timeout)
	}
	if err != nil {
		x.kill()
		<-x.exited
		return x.obituary(errors.Is(err, os.ErrDeadlineExceeded), timeout)
	}
	x.broken = false
	said := *answerIn(x.mem)
	err = said.err()
	if err == nil {
		take(out)
	}
	if x.size > keptBytes {
		if err := x.resize(int64(headBytes)); err != nil {
			x.broken = true
		}
	}
	return err
}

// resize sets the size of the shared memory; what the process does beyond it ends the process. Pages that are cut off go back
// to the system.
func (x *process) resize(size int64) error {
	if err := unix.Ftruncate(int(x.memory.Fd()), size); err != nil {
		return fmt.Errorf("providing %d bytes of shared memory: %w", size, err)
	}
	x.size = size
	return nil
}

// obituary says how the process ended. late says that it took too long.
func (x *process) obituary(late bool, timeout time.Duration) *deathError {
	e := &deathError{kind: errkind.BadData, late: late}
	words := x.errors.first()
	status, _ := x.cmd.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case late:
		e.kind, e.how = errkind.Exhausted, fmt.Sprintf("took longer than %s and was killed", timeout)
	case status.Signaled() && status.Signal() == syscall.SIGSYS:
		e.how = "made a system call that decoders may not make and was killed"
	case isOutOfMemory(words):
		e.kind, e.how = errkind.Exhausted, fmt.Sprintf("needed more than the %d MiB of memory that it may take", extraBytes>>20)
	case words != "":
		e.how = fmt.Sprintf("crashed: %s (%s)", words, x.cmd.ProcessState)
	default:
		e.how = fmt.Sprintf("crashed (%s)", x.cmd.ProcessState)
	}
	return e
}

// isOutOfMemory knows the last words of Go's runtime, and of a sanitizer's.
func isOutOfMemory(words string) bool {
	return strings.Contains(words, "out of memory") || strings.Contains(words, "cannot allocate memory") || strings.Contains(words, "failed to allocate")
}

// kill ends the process.
func (x *process) kill() {
	select {
	case <-x.exited: // another process may have its number now
	default:
		_ = x.cmd.Process.Kill()
	}
}

// end kills the process, waits for its end and gives up what it had.
func (x *process) end() {
	x.once.Do(func() {
		x.kill()
		<-x.exited
		x.closeFiles()
	})
}

func (x *process) closeFiles() {
	if x.mem != nil {
		_ = unix.Munmap(x.mem)
	}
	if x.memory != nil {
		_ = x.memory.Close()
	}
	if x.socket != nil {
		_ = x.socket.Close()
	}
}

// words keeps the beginning of what a process writes.
type words struct {
	mu   sync.Mutex
	text []byte
}

// Write takes more of it.
func (w *words) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, b[:min(len(b), maxText-len(w.text))]...)
	return len(b), nil
}

// first is the first line.
func (w *words) first() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for line := range bytes.Lines(w.text) {
		if text := strings.TrimSpace(printable(line)); text != "" {
			return text
		}
	}
	return ""
}
