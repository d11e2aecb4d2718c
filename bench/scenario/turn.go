package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/bench/proctree"
	"github.com/millrace/millrace/internal/errkind"
)

// quiet is how many cores others may use while a window is measured before its figures are called into question.
const quiet = 0.1

// Turn is what one window of one side showed.
type Turn struct {
	// Images taken in Seconds, of which WaitSeconds were spent in waiting for the next batch.
	Images      int     `json:"images"`
	Seconds     float64 `json:"seconds"`
	WaitSeconds float64 `json:"wait_seconds"`
	// CPUSeconds are those of all processes of the side within the window.
	CPUSeconds float64 `json:"cpu_seconds"`
	// PeakPSSBytes is the largest proportional set size of all its processes together, from start to end of the window.
	PeakPSSBytes int64 `json:"peak_pss_bytes"`
	// FirstBatchSeconds is the time from the start of the Python process to its first batch.
	FirstBatchSeconds float64 `json:"first_batch_s"`
	// OtherCores is how many cores were busy with anything else meanwhile, a hypervisor's other guests included.
	OtherCores float64 `json:"other_cores"`
}

func (t *Turn) imagesPerSecond() float64 { return float64(t.Images) / t.Seconds }
func (t *Turn) cpuPer1000() float64      { return 1000 * t.CPUSeconds / float64(t.Images) }
func (t *Turn) waitFraction() float64    { return t.WaitSeconds / t.Seconds }
func (t *Turn) peakMiB() float64         { return float64(t.PeakPSSBytes) / (1 << 20) }

// side is a program that takes batches, and how to run it.
type side struct {
	name  string
	argv  []string
	env   []string
	limit time.Duration // for a whole turn
}

// report is any line of the protocol in peers/consume.py.
type report struct {
	FirstBatchSeconds float64 `json:"first_batch_s"`
	Shape             []int   `json:"shape"`
	DType             string  `json:"dtype"`
	Ready             bool    `json:"ready"`
	Images            int     `json:"images"`
	Seconds           float64 `json:"seconds"`
	WaitSeconds       float64 `json:"wait_seconds"`
}

// measure runs the program for one window. No process of it is left when it returns.
func (s side) measure(ctx context.Context) (Turn, error) {
	limited, cancel := context.WithTimeoutCause(ctx, s.limit, errkind.Errorf(errkind.Unavailable, "no end within %v", s.limit))
	defer cancel()
	c, err := startConsumer(limited, s)
	if err != nil {
		return Turn{}, err
	}
	turn, err := s.follow(c)
	err = errors.Join(err, c.stop())
	switch {
	case ctx.Err() != nil:
		return Turn{}, fmt.Errorf("measuring %s: %w", s.name, context.Cause(ctx))
	case limited.Err() != nil:
		return Turn{}, fmt.Errorf("measuring %s: %w: %s", s.name, context.Cause(limited), c.lastWords())
	case err != nil:
		return Turn{}, fmt.Errorf("measuring %s: %w", s.name, err)
	}
	return turn, nil
}

// follow goes with the program through its protocol.
func (s side) follow(c *consumer) (Turn, error) {
	table := proctree.New("/proc")
	memory := watchMemory(table, c.pid())
	defer func() { _, _ = memory.stop() }() // on the way out of an error
	first, err := c.read()
	if err != nil {
		return Turn{}, err
	}
	if err := checkBatch(first); err != nil {
		return Turn{}, err
	}
	if ready, err := c.read(); err != nil || !ready.Ready {
		return Turn{}, errors.Join(errkind.Errorf(errkind.Internal, "the program did not say that it is warm"), err)
	}
	before, err := snapshot(table, c.pid())
	if err != nil {
		return Turn{}, err
	}
	if err := c.proceed(); err != nil {
		return Turn{}, err
	}
	window, err := c.read()
	if err != nil {
		return Turn{}, err
	}
	after, err := snapshot(table, c.pid())
	if err != nil {
		return Turn{}, err
	}
	if window.Images < 1 || window.Seconds <= 0 {
		return Turn{}, errkind.Errorf(errkind.Internal, "the window held %d images in %g s", window.Images, window.Seconds)
	}
	peak, err := memory.stop()
	if err != nil {
		return Turn{}, err
	}
	return Turn{
		Images: window.Images, Seconds: window.Seconds, WaitSeconds: window.WaitSeconds,
		CPUSeconds: (after.side - before.side).Seconds(), PeakPSSBytes: peak, FirstBatchSeconds: first.FirstBatchSeconds,
		OtherCores: otherCores(before, after),
	}, nil
}

// checkBatch makes sure that both sides do the same work.
func checkBatch(r report) error {
	want := []int{batchRows, 3, imageSize, imageSize}
	if fmt.Sprint(r.Shape) != fmt.Sprint(want) || r.DType != "uint8" {
		return errkind.Errorf(errkind.Internal, "the first batch is %s %v, not uint8 %v", r.DType, r.Shape, want)
	}
	return nil
}

// clocks are processor times at one moment: of the side, of this process, of the whole machine.
type clocks struct {
	at                time.Time
	side, self, whole time.Duration
}

func snapshot(table proctree.Table, pid int) (clocks, error) {
	tree, err := table.Tree(pid)
	if err != nil {
		return clocks{}, err
	}
	whole, err := table.Busy()
	if err != nil {
		return clocks{}, err
	}
	var self unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &self); err != nil {
		return clocks{}, fmt.Errorf("reading this process's own time: %w", os.NewSyscallError("getrusage", err))
	}
	return clocks{
		at: time.Now(), side: proctree.CPU(tree), whole: whole,
		self: time.Duration(self.Utime.Nano() + self.Stime.Nano()),
	}, nil
}

func otherCores(a, b clocks) float64 {
	others := (b.whole - a.whole) - (b.side - a.side) - (b.self - a.self)
	return max(0, others.Seconds()/b.at.Sub(a.at).Seconds())
}

func parseReport(line []byte) (report, error) {
	var r report
	if err := json.Unmarshal(line, &r); err != nil {
		return report{}, errkind.Errorf(errkind.Internal, "the program said %q, which is not its protocol: %w", line, err)
	}
	return r, nil
}
