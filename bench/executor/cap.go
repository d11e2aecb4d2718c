package executor

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/bench/proctree"
)

// lookEvery is the pace at which the memory of workers is looked at.
const lookEvery = 10 * time.Millisecond

// watch kills any of the processes whose resident memory passes a limit. The kernel keeps the peak, so that none between
// two looks is missed.
type watch struct {
	limit  int64
	peak   atomic.Int64
	cancel context.CancelFunc
	done   sync.WaitGroup
}

func watchMemory(ctx context.Context, workers []*process, limit int64) *watch {
	ctx, cancel := context.WithCancel(ctx)
	w := &watch{limit: limit, cancel: cancel}
	table := proctree.New("/proc")
	w.done.Go(func() {
		t := time.NewTicker(lookEvery)
		defer t.Stop()
		for {
			for _, p := range workers {
				w.look(table, p)
			}
			select {
			case <-t.C:
			case <-ctx.Done():
				return
			}
		}
	})
	return w
}

func (w *watch) look(table proctree.Table, p *process) {
	peak, err := table.PeakResident(p.cmd.Process.Pid)
	if err != nil {
		return // it has ended
	}
	w.peak.Store(max(w.peak.Load(), peak))
	if peak > w.limit {
		_ = p.cmd.Process.Kill()
	}
}

// stop ends the watch. It is the largest resident memory that any of the processes had, in bytes.
func (w *watch) stop() int64 {
	w.cancel()
	w.done.Wait()
	return w.peak.Load()
}
