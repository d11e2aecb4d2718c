//go:build linux && (amd64 || arm64)

package isolate

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// extraBytes is how much more private memory a process may take than it has when it is locked up: what the largest image that
// the limits allow needs, twice.
const extraBytes = 2 << 30

// lock takes from this process, all its threads, everything but memory, threads, time and the files that it has open.
func lock() error {
	data, err := privateBytes()
	if err != nil {
		return err
	}
	for _, l := range []struct {
		what  int
		limit uint64
	}{
		{unix.RLIMIT_CORE, 0},
		{unix.RLIMIT_FSIZE, 0},
		{unix.RLIMIT_NOFILE, 0}, // those that are open stay open
		{unix.RLIMIT_DATA, data + extraBytes},
	} {
		if err := unix.Setrlimit(l.what, &unix.Rlimit{Cur: l.limit, Max: l.limit}); err != nil {
			return fmt.Errorf("limit %d of a process (setrlimit): %w", l.what, err)
		}
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("giving up privileges (no_new_privs): %w", err)
	}
	program := filter(uint32(os.Getpid()))                                                                                                           //nolint:gosec // A process number.
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}                                                                           //nolint:gosec // A hundred instructions.
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog))) //nolint:gosec // What the call takes.
	switch {
	case errno != 0:
		return fmt.Errorf("the system has no filter for system calls (seccomp) for this process: %w", errno)
	case thread != 0:
		return fmt.Errorf("thread %d of the process can't be put under the filter for system calls (seccomp)", thread)
	}
	return nil
}

// privateBytes is what counts towards RLIMIT_DATA.
func privateBytes() (uint64, error) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, fmt.Errorf("reading how much memory the process has: %w", err)
	}
	_, after, found := strings.Cut(string(text), "VmData:")
	fields := strings.Fields(after)
	if !found || len(fields) == 0 {
		return 0, fmt.Errorf("/proc/self/status does not say how much memory the process has")
	}
	n, err := strconv.ParseUint(fields[0], 10, 32)
	if err != nil {
		return 0, fmt.Errorf("/proc/self/status: VmData: %w", err)
	}
	return n << 10, nil
}

// Offsets in what a filter looks at: the call's number, the architecture, the low half of an argument.
const (
	numberAt = 0
	archAt   = 4
)

func argumentAt(i uint32) uint32 { return 16 + 8*i }

// allowed are the calls that Go's runtime and the C library make to compute.
func allowed() []uint32 {
	return append([]uint32{
		unix.SYS_READ, unix.SYS_WRITE, unix.SYS_FUTEX, unix.SYS_MADVISE, unix.SYS_MUNMAP, unix.SYS_MREMAP, unix.SYS_BRK,
		unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_CLOCK_GETTIME, unix.SYS_GETTIMEOFDAY, unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY,
		unix.SYS_EPOLL_PWAIT, unix.SYS_GETPID, unix.SYS_GETTID, unix.SYS_GETRANDOM, unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK,
		unix.SYS_RT_SIGRETURN, unix.SYS_SIGALTSTACK, unix.SYS_RESTART_SYSCALL, unix.SYS_SET_ROBUST_LIST, unix.SYS_RSEQ,
		unix.SYS_EXIT, unix.SYS_EXIT_GROUP,
	}, ofArchitecture...)
}

// filter is the program that the system runs at each call. What it does not allow ends the process.
func filter(pid uint32) []unix.SockFilter {
	const (
		load   = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		above  = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
		anyBit = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
		result = unix.BPF_RET | unix.BPF_K
	)
	kill := unix.SockFilter{Code: result, K: unix.SECCOMP_RET_KILL_PROCESS}
	allow := unix.SockFilter{Code: result, K: unix.SECCOMP_RET_ALLOW}
	fail := func(errno unix.Errno) unix.SockFilter {
		return unix.SockFilter{Code: result, K: unix.SECCOMP_RET_ERRNO | uint32(errno)} //nolint:gosec // A small number.
	}
	program := []unix.SockFilter{
		{Code: load, K: archAt},
		{Code: equal, K: architecture, Jt: 1},
		kill,
		{Code: load, K: numberAt},
		{Code: above, K: 1 << 30, Jf: 1}, // the other numbers of amd64, x32
		kill,
	}
	for _, call := range allowed() {
		program = append(program, unix.SockFilter{Code: equal, K: call, Jf: 1}, allow)
	}
	// one looks at an argument: with the test true, the first answer is given, else the second.
	one := func(call, argument uint32, test, yes, no unix.SockFilter) {
		test.Jt, test.Jf = 0, 1
		program = append(program, unix.SockFilter{Code: equal, K: call, Jf: 4}, unix.SockFilter{Code: load, K: argumentAt(argument)}, test, yes, no)
	}
	executable := unix.SockFilter{Code: anyBit, K: unix.PROT_EXEC}
	one(unix.SYS_MMAP, 2, executable, kill, allow)
	one(unix.SYS_MPROTECT, 2, executable, kill, allow)
	one(unix.SYS_CLONE, 0, unix.SockFilter{Code: anyBit, K: unix.CLONE_THREAD}, allow, kill)
	one(unix.SYS_TGKILL, 0, unix.SockFilter{Code: equal, K: pid}, allow, kill) // to its own threads
	// A C library that can't have clone3, whose flags a filter does not see, takes clone. Go asks prctl to name memory.
	for call, errno := range map[uint32]unix.Errno{unix.SYS_CLONE3: unix.ENOSYS, unix.SYS_PRCTL: unix.EINVAL} {
		program = append(program, unix.SockFilter{Code: equal, K: call, Jf: 1}, fail(errno))
	}
	return append(program, kill)
}
