package executor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/millrace/millrace/bench/peers"
	"github.com/millrace/millrace/bench/proctree"
	"github.com/millrace/millrace/internal/errkind"
)

// PolicyRay is the policy of runs by stock Ray Data.
const PolicyRay = "ray"

// RayCaveats are what figures of Ray Data beside ours do not say.
const RayCaveats = `Ray Data beside it is the stock library, not the fork with the paper's memory-aware policy, which upstream does not have.
Its cap is the size of its object store; what it holds beyond that goes to disk, and the heaps of its processes are not counted.
Its blocks are one frame each, its processes are started by a smaller run before, and order is not kept.
`

// rayPause is the pace at which the processes of Ray are looked at.
const rayPause = 500 * time.Millisecond

// RunRay runs M1 on stock Ray Data, by the interpreter python. PeakMiB is the memory of all its processes together, CapMiB
// that of its object store. That it does not end within ten times the bound and three minutes is a result.
func RunRay(ctx context.Context, s Scenario, frames int64, python string, o Options) (*Result, error) {
	if s.Name != "M1" {
		return nil, errkind.Errorf(errkind.Invalid, "Ray Data runs M1 alone, not %s", s.Name)
	}
	dir, err := os.MkdirTemp("", "millrace-bench-")
	if err != nil {
		return nil, fmt.Errorf("making a directory for Python programs: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := peers.Unpack(dir); err != nil {
		return nil, err
	}
	bound := s.Bound(o.Scale)
	r := &Result{Scenario: s.Name, Policy: PolicyRay, Frames: frames, Bound: rounded(bound), CapMiB: mib(frames * s.FrameBytes)}
	ctx, cancel := context.WithTimeout(ctx, time.Duration((10*bound+180)*float64(time.Second)))
	defer cancel()
	args := []string{filepath.Join(dir, peers.Ray), "--frames", fmt.Sprint(frames), "--sources", fmt.Sprint(s.Samples), "--scale", fmt.Sprint(o.Scale)}
	cmd := exec.CommandContext(ctx, python, args...) //nolint:gosec // The user names the interpreter.
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, o.Log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = stopLimit
	if err := cmd.Start(); err != nil {
		return nil, errkind.Errorf(errkind.Invalid, "starting %s: %w; --ray names a Python interpreter that has ray", python, err)
	}
	seen := watchTree(ctx, cmd.Process.Pid)
	err = cmd.Wait()
	peak, cpu := seen()
	r.PeakMiB, r.CPUSeconds = mib(peak), rounded(cpu.Seconds())
	var told struct {
		Seconds  float64 `json:"seconds"`
		Finished bool    `json:"finished"`
	}
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		r.Error = "ten times the bound and three minutes have passed"
		return r, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, errkind.Errorf(errkind.Unavailable, "%s with Ray Data ended: %w; what it said is above", python, err)
	}
	if err := json.Unmarshal(out.Bytes(), &told); err != nil {
		return nil, errkind.Errorf(errkind.Internal, "Ray's side said %q: %w", out.Bytes(), err)
	}
	r.Seconds, r.Ratio, r.Finished = rounded(told.Seconds), rounded(told.Seconds/bound), told.Finished
	if !r.Finished {
		r.Error = "rows were lost, doubled or wrong"
	}
	return r, nil
}

// watchTree follows a process with all that descends from it. The result ends that and is the most memory, by
// proportional set size, and the processor time that were seen.
func watchTree(ctx context.Context, pid int) func() (int64, time.Duration) {
	ctx, cancel := context.WithCancel(ctx)
	table := proctree.New("/proc")
	var peak int64
	var cpu time.Duration
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(rayPause)
		defer tick.Stop()
		for {
			if tree, err := table.Tree(pid); err == nil {
				cpu = max(cpu, proctree.CPU(tree))
				if pss, err := table.PSS(tree); err == nil {
					peak = max(peak, pss)
				}
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
	return func() (int64, time.Duration) {
		cancel()
		done.Wait()
		return peak, cpu
	}
}
