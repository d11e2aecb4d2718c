package pypool

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// headBytes is the beginning of the memory that a process writes: the row that it is at, and how many calls it has begun.
const headBytes = 64

// firstOutBytes is how large that memory is at first.
const firstOutBytes = 64 << 10

// outMemory is shared memory that the process writes and may enlarge, but not shrink: reading it here is safe.
type outMemory struct {
	file *os.File
	mem  []byte
}

func newOutMemory() (*outMemory, error) {
	file, err := newMemfd(firstOutBytes)
	if err != nil {
		return nil, err
	}
	m := &outMemory{file: file}
	return m, m.remap(firstOutBytes)
}

func newMemfd(size int64) (*os.File, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate("millrace-operator", flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("millrace-operator", flags)
	}
	if err != nil {
		return nil, fmt.Errorf("creating shared memory (memfd): %w", err)
	}
	file := os.NewFile(uintptr(fd), "memfd:millrace-operator")
	if err = unix.Ftruncate(fd, size); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
	}
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("providing %d bytes of shared memory: %w", size, err)
	}
	return file, nil
}

func (m *outMemory) size() int64   { return int64(len(m.mem)) }
func (m *outMemory) bytes() []byte { return m.mem }

// row is the row that the process is at.
func (m *outMemory) row() int64 { return m.counter(0) }

// ticks counts its calls.
func (m *outMemory) ticks() int64 { return m.counter(8) }

func (m *outMemory) counter(at int) int64 {
	return atomic.LoadInt64((*int64)(unsafe.Pointer(&m.mem[at]))) //nolint:gosec // Mapped memory, and aligned.
}

// remap maps size bytes, which the memory must have.
func (m *outMemory) remap(size int64) error {
	var has unix.Stat_t
	if err := unix.Fstat(int(m.file.Fd()), &has); err != nil {
		return fmt.Errorf("looking at shared memory: %w", err)
	}
	if size < headBytes || size > has.Size || size > maxPieceBytes+headBytes {
		return errMalformed("memory of another size")
	}
	mem, err := unix.Mmap(int(m.file.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("mapping %d bytes of shared memory: %w", size, err)
	}
	if m.mem != nil {
		_ = unix.Munmap(m.mem)
	}
	m.mem = mem
	return nil
}

func (m *outMemory) close() {
	if m.mem != nil {
		_ = unix.Munmap(m.mem)
	}
	_ = m.file.Close()
}

// inMemory is shared memory that rows are written to for a process.
type inMemory struct {
	file *os.File
	size int64
	sent bool
}

// maxIdleFactor is how much larger than what is needed memory may be before smaller takes its place.
const maxIdleFactor = 8

// fits says whether n bytes go into m without wasting much of it.
func (m *inMemory) fits(n int64) bool {
	return m != nil && n <= m.size && (m.size <= 1<<20 || m.size/maxIdleFactor <= n)
}

func newInMemory(n int64) (*inMemory, error) {
	n = max(n+n/4, 64<<10)
	file, err := newMemfd(n)
	if err != nil {
		return nil, err
	}
	return &inMemory{file: file, size: n}, nil
}

func (m *inMemory) close() { _ = m.file.Close() }

// socketPair is a connection to a process, and the end that the process gets.
func socketPair() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("making a socket: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "operator"), os.NewFile(uintptr(fds[1]), "operator")
	defer func() { _ = ours.Close() }()
	c, err := net.FileConn(ours)
	if err != nil {
		_ = theirs.Close()
		return nil, nil, fmt.Errorf("making a socket: %w", err)
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close()
		_ = theirs.Close()
		return nil, nil, fmt.Errorf("a socket of kind %T", c)
	}
	return conn, theirs, nil
}

// sendFile sends a frame, with a file beside it.
func sendFile(conn *net.UnixConn, frame []byte, file *os.File) error {
	n, _, err := conn.WriteMsgUnix(frame, unix.UnixRights(int(file.Fd())), nil)
	if err == nil && n < len(frame) {
		_, err = conn.Write(frame[n:])
	}
	return err
}

// ofItsOwn makes a process the first of a group, killed when the thread that starts it ends: Ctrl-C in a terminal is not
// for it, and it outlives nobody.
func ofItsOwn() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// killGroup kills a process and what it has started.
func killGroup(cmd *exec.Cmd) {
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
}
