package spawn_test

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"github.com/millrace/millrace/internal/spawn"
)

// What a thread has started lives on, however many goroutines asked and have ended since; errors come back to who asked.
func TestProcessesOutliveTheGoroutinesThatAskedForThem(t *testing.T) {
	thread := spawn.New()
	cmds := make([]*exec.Cmd, 8)
	var asking sync.WaitGroup
	for i := range cmds {
		asking.Go(func() {
			runtime.LockOSThread() // its thread ends with it
			cmds[i] = exec.CommandContext(t.Context(), "cat")
			cmds[i].SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			in, err := cmds[i].StdinPipe()
			if err != nil {
				t.Error(err)
			}
			if err := thread.Start(cmds[i]); err != nil {
				t.Error(err)
			}
			if _, err := in.Write([]byte("x")); err != nil {
				t.Error(err)
			}
		})
	}
	asking.Wait()
	if err := thread.Start(exec.CommandContext(t.Context(), "/no/such/program")); err == nil {
		t.Error("what is not there was started")
	}
	for _, cmd := range cmds {
		if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
			t.Errorf("process %d has ended: %v", cmd.Process.Pid, err)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	thread.Close()
	thread.Close()
	spawn.New().Close() // one that has started nothing
}
