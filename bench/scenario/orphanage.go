package scenario

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/bench/proctree"
	"github.com/millrace/millrace/internal/errkind"
)

// The time between two looks at what is left, and after which a process that was killed counts as stuck in the kernel.
const (
	sweepPause = 20 * time.Millisecond
	unkillable = 5 * time.Second
)

// orphanage sees to it that nothing a program started outlives it. This process adopts the orphans among its
// descendants, also those that went to a session of their own.
type orphanage struct {
	table  proctree.Table
	before map[int]bool // children that are not the program's
}

func newOrphanage() (*orphanage, error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("becoming the parent of orphans: %w", os.NewSyscallError("prctl", err))
	}
	o := &orphanage{table: proctree.New("/proc"), before: map[int]bool{}}
	tree, err := o.table.Tree(os.Getpid())
	if err != nil {
		return nil, err
	}
	for _, p := range tree {
		o.before[p.PID] = true
	}
	return o, nil
}

// kill ends, at once, all that came since the orphanage was made.
func (o *orphanage) kill() {
	for _, p := range o.left() {
		_ = syscall.Kill(p.PID, syscall.SIGKILL)
	}
}

// clear waits until all that came since the orphanage was made have ended. Those that have not within the grace are
// killed; it is an error if even that does not help.
func (o *orphanage) clear(grace time.Duration) error {
	began := time.Now()
	for {
		left := o.left()
		if len(left) == 0 {
			return nil
		}
		for _, p := range left {
			if p.Zombie && p.Parent == os.Getpid() {
				_, _ = unix.Wait4(p.PID, nil, unix.WNOHANG, nil)
			}
		}
		switch waited := time.Since(began); {
		case waited > grace+unkillable:
			return errkind.Errorf(errkind.Internal, "process %d, which a program left behind, cannot be killed", left[0].PID)
		case waited > grace:
			o.kill()
		}
		time.Sleep(sweepPause)
	}
}

// left are the descendants that came since the orphanage was made.
func (o *orphanage) left() []proctree.Process {
	tree, err := o.table.Tree(os.Getpid())
	if err != nil {
		return nil
	}
	var left []proctree.Process
	for _, p := range tree {
		if !o.before[p.PID] {
			left = append(left, p)
		}
	}
	return left
}
