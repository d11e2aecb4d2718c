package executor

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/millrace/millrace/feed/client"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/service"
)

// processBytes is what a worker process may take beside its budget: code, heap, stacks.
const processBytes = 64 << 20

// Options say how scenarios are run.
type Options struct {
	// Program is this binary: every role is a process of it.
	Program string
	// Scale is that of time; at 1 stages take the seconds of the paper.
	Scale float64
	// Log hears what the roles say.
	Log io.Writer
}

// Result is the outcome of one run. Sizes are in MiB.
type Result struct {
	Scenario string `json:"scenario"`
	Policy   string `json:"policy"`
	// Frames is the budget, Rows the rows of a partition where the scenario varies them.
	Frames int64 `json:"frames"`
	Rows   int64 `json:"rows,omitempty"`
	// Partition is "task" where all that a task makes is one partition.
	Partition string `json:"partition,omitempty"`
	// Seconds from the first request for a batch to the last batch; Bound is the least that the slots allow.
	Seconds float64 `json:"seconds"`
	Bound   float64 `json:"bound"`
	Ratio   float64 `json:"ratio"`
	// PeakMiB is the largest resident memory of a worker process, CapMiB the limit: the budget and 64 MiB for the process.
	PeakMiB float64 `json:"peak_mb"`
	CapMiB  float64 `json:"cap_mb"`
	// CPUSeconds are those of all processes from start to end.
	CPUSeconds float64 `json:"cpu_s"`
	Finished   bool    `json:"finished"`
	// Error is why the run did not finish.
	Error string `json:"error,omitempty"`
}

// Run runs one variant of a scenario. That it does not finish in its memory or in ten times its bound is a result.
func Run(ctx context.Context, s Scenario, v Variant, o Options) (*Result, error) {
	if o.Scale <= 0 || v.Frames < 1 {
		return nil, errkind.Errorf(errkind.Invalid, "scale %v and %d frames have to be above 0", o.Scale, v.Frames)
	}
	if v.Rows > 0 && s.Samples%v.Rows != 0 {
		return nil, errkind.Errorf(errkind.Invalid, "%d samples are not divided by %d", s.Samples, v.Rows)
	}
	s = s.with(v)
	budget := v.Frames * (s.FrameBytes + 128) // with what the executor charges for a row's key
	r := &Result{
		Scenario: s.Name, Policy: v.Policy, Frames: v.Frames, Rows: v.Rows, Bound: s.Bound(o.Scale), CapMiB: mib(budget + processBytes),
	}
	if v.Whole {
		r.Partition = "task"
	}
	dir, err := os.MkdirTemp("", "millrace-bench-")
	if err != nil {
		return nil, fmt.Errorf("making a directory for sockets: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	source := filepath.Join(dir, "samples.tar")
	if err := writeSamples(source, s.Samples); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration((10*r.Bound+60)*float64(time.Second)))
	defer cancel()
	c, err := startCluster(ctx, dir, s, v, budget, o)
	if err != nil {
		c.stop()
		return nil, err
	}
	w := watchMemory(ctx, c.workers, budget+processBytes)
	seconds, rows, err := drain(ctx, c.address, s.Recipe(source, o.Scale), max(1, s.Rows()/s.Samples*s.PartitionSamples))
	peak := w.stop()
	c.stop()
	r.Seconds, r.Ratio, r.PeakMiB, r.CPUSeconds = rounded(seconds), rounded(seconds/r.Bound), mib(peak), rounded(c.cpu())
	r.Bound = rounded(r.Bound)
	switch {
	case peak > w.limit:
		r.Error = fmt.Sprintf("a worker used %.0f MiB and was killed", mib(peak))
	case errors.Is(err, context.DeadlineExceeded):
		r.Error = "ten times the bound have passed"
	case err != nil:
		return nil, err
	case rows != s.Rows():
		return nil, errkind.Errorf(errkind.Internal, "%s gave %d rows, not %d", s.Name, rows, s.Rows())
	default:
		r.Finished = true
	}
	return r, nil
}

func mib(bytes int64) float64 { return math.Round(float64(bytes)/(1<<20)*10) / 10 }

func rounded(v float64) float64 { return math.Round(v*1000) / 1000 }

// writeSamples writes an archive of samples of one byte.
func writeSamples(path string, n int64) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("making samples: %w", err)
	}
	defer func() { _ = f.Close() }()
	t := tar.NewWriter(f)
	for i := range n {
		err = errors.Join(err, t.WriteHeader(&tar.Header{Name: fmt.Sprintf("%06d.bin", i), Size: 1, Mode: 0o600, Format: tar.FormatUSTAR}))
		_, e := t.Write([]byte{byte(i)})
		err = errors.Join(err, e)
	}
	if err = errors.Join(err, t.Close(), f.Close()); err != nil {
		return fmt.Errorf("making samples: %w", err)
	}
	return nil
}

// cluster is a dispatcher, workers and a sidecar.
type cluster struct {
	dispatcher, sidecar *process
	workers             []*process
	address             string // of the sidecar
}

func startCluster(ctx context.Context, dir string, s Scenario, v Variant, budget int64, o Options) (*cluster, error) {
	socket := func(name string) string { return "unix://" + filepath.Join(dir, name) }
	c := &cluster{address: socket("s")}
	common := []string{"--log-level", "warn", "--cache-dir", filepath.Join(dir, "cache")}
	var err error
	if c.dispatcher, err = start(ctx, o, append([]string{"dispatcher", "--listen", socket("d")}, common...)...); err != nil {
		return c, err
	}
	for i := range s.Workers {
		args := slices.Concat([]string{
			"worker", "--dispatcher", socket("d"), "--listen", socket(fmt.Sprint("w", i)), "--name", fmt.Sprint("w", i),
			"--budget", fmt.Sprint(budget), "--policy", v.Policy,
		}, s.slotArgs(), common)
		p, err := start(ctx, o, args...)
		if err != nil {
			return c, err
		}
		c.workers = append(c.workers, p)
	}
	c.sidecar, err = start(ctx, o, append([]string{"sidecar", "--dispatcher", socket("d"), "--listen", c.address}, common...)...)
	return c, err
}

func (c *cluster) all() []*process {
	var all []*process
	for _, p := range slices.Concat([]*process{c.sidecar}, c.workers, []*process{c.dispatcher}) {
		if p != nil {
			all = append(all, p)
		}
	}
	return all
}

func (c *cluster) stop() {
	for _, p := range c.all() {
		p.stop()
	}
}

func (c *cluster) cpu() float64 {
	sum := 0.0
	for _, p := range c.all() {
		sum += p.cpu()
	}
	return sum
}

// drain reads one epoch, and is how long that took and how many rows there were. Sources are indexed before.
func drain(ctx context.Context, address, recipe string, batch int64) (seconds float64, rows int64, err error) {
	conn, err := service.Dial(address, nil, client.DialOptions()...)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = conn.Close() }()
	s, err := client.Open(ctx, conn, client.OpenRequest{
		Job: "bench", Recipe: recipe, WorldSize: 1,
		Settings: client.Settings{Shuffle: "none", GlobalBatch: batch, Accumulation: 1, Tail: "pad", OnError: "raise", Prefetch: 8, Epochs: 1},
	})
	if err != nil {
		return 0, 0, fmt.Errorf("opening the job: %w", err)
	}
	began := time.Now()
	err = s.Read(ctx, s.Info.Start, func(b client.Batch) error {
		rows += int64(b.Meta.ValidRows)
		return nil
	})
	if err == nil {
		err = ctx.Err()
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return time.Since(began).Seconds(), rows, err
}
