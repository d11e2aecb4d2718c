package spawn_test

import (
	"os/exec"
	"sync"
	"syscall"
	"testing"

	"github.com/millrace/millrace/internal/spawn"
)

// What a thread has started lives as long as the thread, however many goroutines asked, and no longer.
func TestProcessesEndWithTheThreadThatStartedThem(t *testing.T) {
	thread := spawn.New()
	cmds := make([]*exec.Cmd, 8)
	var asking sync.WaitGroup
	for i := range cmds {
		asking.Go(func() {
			cmds[i] = exec.CommandContext(t.Context(), "cat")
			cmds[i].SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			in, err := cmds[i].StdinPipe()
			if err != nil {
				t.Error(err)
			}
			if err := thread.Start(cmds[i]); err != nil {
				t.Error(err)
			}
			// It answers although the goroutine that asked for it, and perhaps its thread, goes away.
			if _, err := in.Write([]byte("x")); err != nil {
				t.Error(err)
			}
		})
	}
	asking.Wait()
	for _, cmd := range cmds {
		if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
			t.Errorf("process %d has ended: %v", cmd.Process.Pid, err)
		}
	}
	thread.Close()
	for _, cmd := range cmds {
		_ = cmd.Wait()
		if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
			t.Errorf("process %d ended with %v", cmd.Process.Pid, cmd.ProcessState)
		}
	}
	spawn.New().Close() // one that has started nothing
}
