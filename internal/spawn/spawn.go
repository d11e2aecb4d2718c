// Package spawn starts processes that must not outlive this one.
package spawn

import (
	"os/exec"
	"runtime"
	"sync"
)

// Thread starts processes on one thread that lives as long as it does. Linux kills a child with Pdeathsig when the thread
// that started it ends, and Go may end any other thread. It is safe for concurrent use, but for Close.
type Thread struct {
	begin    sync.Once
	requests chan request
	done     chan struct{}
}

type request struct {
	cmd     *exec.Cmd
	started chan error
}

// New is a Thread, which begins with the first process.
func New() *Thread {
	return &Thread{requests: make(chan request), done: make(chan struct{})}
}

// Start is cmd.Start.
func (t *Thread) Start(cmd *exec.Cmd) error {
	t.begin.Do(func() {
		go func() {
			runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
			for r := range t.requests {
				r.started <- r.cmd.Start()
			}
			close(t.done)
		}()
	})
	r := request{cmd: cmd, started: make(chan error, 1)}
	t.requests <- r
	return <-r.started
}

// Close ends the thread; whoever started processes has ended them before. Nothing may be started any more.
// It may be called more than once.
func (t *Thread) Close() {
	t.begin.Do(func() { close(t.done) })
	select {
	case <-t.done:
	default:
		close(t.requests)
		<-t.done
	}
}
