package pypool

import (
	"os/exec"
	"runtime"
	"sync"
)

// spawner starts processes on one thread that lives as long as it does. Linux kills a child with Pdeathsig when the thread
// that started it ends, and Go may end any other thread.
type spawner struct {
	begin    sync.Once
	requests chan startRequest
	done     chan struct{}
}

type startRequest struct {
	cmd     *exec.Cmd
	started chan error
}

func newSpawner() *spawner {
	return &spawner{requests: make(chan startRequest), done: make(chan struct{})}
}

// start is cmd.Start.
func (s *spawner) start(cmd *exec.Cmd) error {
	s.begin.Do(func() {
		go func() {
			runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
			for r := range s.requests {
				r.started <- r.cmd.Start()
			}
			close(s.done)
		}()
	})
	r := startRequest{cmd: cmd, started: make(chan error, 1)}
	s.requests <- r
	return <-r.started
}

// close ends the thread. Nothing may be started any more.
func (s *spawner) close() {
	s.begin.Do(func() { close(s.done) })
	select {
	case <-s.done:
	default:
		close(s.requests)
		<-s.done
	}
}
