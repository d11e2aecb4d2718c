package scenario

import (
	"errors"
	"os"
	"sync"
	"time"

	"github.com/millrace/millrace/bench/proctree"
)

// Memory is looked at twice a second, or less often where that would take more than a fiftieth of a core.
const (
	memoryPause = 500 * time.Millisecond
	memoryShare = 50
)

// memory follows the proportional set size of a process tree.
type memory struct {
	once  sync.Once
	quit  chan struct{}
	ended chan struct{}
	peak  int64
	err   error
}

func watchMemory(table proctree.Table, pid int) *memory {
	m := &memory{quit: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		defer close(m.ended)
		timer := time.NewTimer(0)
		defer timer.Stop()
		for {
			select {
			case <-m.quit:
				// The last look makes sure that even the shortest turn has one.
				m.look(table, pid)
				return
			case <-timer.C:
			}
			began := time.Now()
			m.look(table, pid)
			timer.Reset(max(memoryPause, memoryShare*time.Since(began)))
		}
	}()
	return m
}

func (m *memory) look(table proctree.Table, pid int) {
	tree, err := table.Tree(pid)
	if errors.Is(err, os.ErrProcessDone) {
		return
	}
	var pss int64
	if err == nil {
		pss, err = table.PSS(tree)
	}
	m.peak = max(m.peak, pss)
	m.err = errors.Join(m.err, err)
}

// stop ends the watching; it gives the largest size seen, in bytes.
func (m *memory) stop() (int64, error) {
	m.once.Do(func() { close(m.quit) })
	<-m.ended
	return m.peak, m.err
}
