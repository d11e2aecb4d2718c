package kernels

import (
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// allowedCPUs are the cores that this process may use.
func allowedCPUs() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("asking for the cores of this process: %w", os.NewSyscallError("sched_getaffinity", err))
	}
	var cpus []int
	for cpu := range 8 * len(set) * 8 {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}

// onCPU runs f with this goroutine on one core.
func onCPU(cpu int, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return fmt.Errorf("asking for the cores of a thread: %w", os.NewSyscallError("sched_getaffinity", err))
	}
	one.Set(cpu)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return fmt.Errorf("keeping a thread to core %d: %w", cpu, os.NewSyscallError("sched_setaffinity", err))
	}
	defer func() { _ = unix.SchedSetaffinity(0, &before) }()
	return f()
}

// processTime is the processor time of this process so far.
func processTime() (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t); err != nil {
		return 0, fmt.Errorf("reading the time of this process: %w", os.NewSyscallError("clock_gettime", err))
	}
	return time.Duration(t.Nano()), nil
}
