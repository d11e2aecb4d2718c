// Package transport measures the hops of payload between processes, each beside what a stock library does with the same
// record batches: two processes a side, in turns, within one run.
//
// The runner starts both processes of a turn with [Side], which this binary runs in a command of its own. They answer
// each line on standard input with what they have used so far; what counts is the difference over a window.
package transport

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/errkind"
)

// Scenario is one path of batches of one size.
type Scenario struct {
	// Name is what it is called on the command line and in results.
	Name string
	// About says in one line what it measures.
	About string
	// Network is tcp or unix.
	Network string
	// Rows of a batch, each an image of 3x224x224 bytes and a label.
	Rows int
	// Tries bounds how many settings of a peer are tried; 0: all.
	Tries int

	run func(ctx context.Context, s Scenario, o Options) (any, error)
}

// Scenarios lists them.
func Scenarios() []Scenario {
	return []Scenario{
		{Name: "tcp_38mb", About: "worker to sidecar over TCP, batches of 256 images (38 MB)", Network: "tcp", Rows: 256, run: runHop},
		{Name: "uds_38mb", About: "the same over a Unix socket", Network: "unix", Rows: 256, run: runHop},
		{Name: "tcp_1mb", About: "worker to sidecar over TCP, batches of 7 images (1 MB)", Network: "tcp", Rows: 7, run: runHop},
		{Name: "ring", About: "sidecar to trainer, a batch of one image each 2 ms: what handing it over costs", Rows: 1, run: runRing},
		{Name: "ring_copy", About: "sidecar to trainer, batches of 256 images (38 MB) put together from slices", Rows: 256, run: runRingCopy},
		{Name: "e2e_virtual", About: "virtual workers to trainer, batches of 256 images, beside torch's DataLoader", Rows: 256, run: runVirtual},
	}
}

// Find is the scenario of a name.
func Find(name string) (Scenario, error) {
	for _, s := range Scenarios() {
		if s.Name == name {
			return s, nil
		}
	}
	return Scenario{}, errkind.Errorf(errkind.Invalid, "there is no scenario %q of transport", name)
}

// Result is the outcome of a hop. A GB is 10^9 bytes of payload; each figure is the median over the rounds.
type Result struct {
	Scenario string `json:"scenario"`
	// GBPerSecond and CPUPerGB are those of Millrace, CPU seconds of both processes together.
	GBPerSecond float64 `json:"gb_per_s"`
	CPUPerGB    float64 `json:"cpu_s_per_gb"`
	// GarbageMB is what both processes together take from the Go heap for a batch, in 10^6 bytes.
	GarbageMB        float64 `json:"garbage_mb_per_batch"`
	StockGBPerSecond float64 `json:"stock_gb_per_s"`
	StockCPUPerGB    float64 `json:"stock_cpu_s_per_gb"`
	// CPURatio and SpeedRatio are Millrace by stock.
	CPURatio   float64 `json:"cpu_ratio"`
	SpeedRatio float64 `json:"speed_ratio"`
}

// Options say how to run a scenario.
type Options struct {
	// Program and Args start a side; the side's own arguments come after Args.
	Program string
	Args    []string
	// Rounds is the number of turns of each side, Window the length of each after WarmUp.
	Rounds         int
	Window, WarmUp time.Duration
	// TLS encrypts the connection, on both sides.
	TLS bool
	// Flight keeps to Flight on our side.
	Flight bool
	// Python is the interpreter of trainers, and Env its environment.
	Python string
	Env    []string
	// Log hears how it goes.
	Log io.Writer

	hash bool // of what arrives
}

// lockedWriter passes one write on at a time.
type lockedWriter struct {
	mu sync.Mutex
	to io.Writer
}

func (w *lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Write(p) //nolint:wrapcheck // It stands for the writer.
}

// Run runs a scenario. What it gives is a JSON object: a [Result], [RingResult], [CopyResult] or [VirtualResult].
func Run(ctx context.Context, s Scenario, o Options) (any, error) {
	if o.Rounds < 1 || o.Window <= 0 || o.WarmUp < 0 {
		return nil, errkind.Errorf(errkind.Invalid, "a benchmark needs 1 round at least and a window")
	}
	o.Log = &lockedWriter{to: o.Log}
	return s.run(ctx, s, o)
}

// runHop measures one hop of ours and of stock, in turns.
func runHop(ctx context.Context, s Scenario, o Options) (any, error) {
	var ours, stock []used
	for round := range o.Rounds {
		for _, kind := range []string{KindOurs, KindStock} {
			u, err := turn(ctx, s, kind, o)
			if err != nil {
				return nil, fmt.Errorf("measuring %s, %s: %w", s.Name, kind, err)
			}
			if kind == KindOurs {
				ours = append(ours, u)
			} else {
				stock = append(stock, u)
			}
			if _, err := fmt.Fprintf(o.Log, "round %d %-5s %.2f GB/s, %.3f CPU s/GB, %.2f MB of garbage a batch\n", round+1, kind, u.speed(), u.cpuPerGB(), u.garbageMB()); err != nil {
				return nil, fmt.Errorf("writing the log: %w", err)
			}
		}
	}
	r := &Result{
		Scenario: s.Name, GBPerSecond: middle(ours, used.speed), CPUPerGB: middle(ours, used.cpuPerGB), GarbageMB: middle(ours, used.garbageMB),
		StockGBPerSecond: middle(stock, used.speed), StockCPUPerGB: middle(stock, used.cpuPerGB),
	}
	r.CPURatio, r.SpeedRatio = rounded(r.CPUPerGB/r.StockCPUPerGB), rounded(r.GBPerSecond/r.StockGBPerSecond)
	return r, nil
}

// middle is the median of a figure.
func middle[T any](turns []T, of func(T) float64) float64 {
	v := make([]float64, len(turns))
	for i, u := range turns {
		v[i] = of(u)
	}
	slices.Sort(v)
	n := len(v)
	return rounded((v[(n-1)/2] + v[n/2]) / 2)
}

func rounded(v float64) float64 { return math.Round(v*1000) / 1000 }

// used is what the processes of a side used together in a window.
type used struct {
	Bytes   int64         // payload received
	Batches int64         // received
	CPU     time.Duration // user and system
	Alloc   uint64        // bytes taken from the Go heap
	Time    time.Duration
	// Ready is how many batches since the last question were ready when a trainer asked for them; NextMedian and NextP99
	// are how long it took to have one of them.
	Ready               int64
	NextMedian, NextP99 time.Duration
}

func (u used) speed() float64     { return float64(u.Bytes) / 1e9 / u.Time.Seconds() }
func (u used) cpuPerGB() float64  { return u.CPU.Seconds() / (float64(u.Bytes) / 1e9) }
func (u used) garbageMB() float64 { return float64(u.Alloc) / 1e6 / float64(u.Batches) }

// minus is what was used since before.
func (u used) minus(before used) used {
	return used{
		Bytes: u.Bytes - before.Bytes, Batches: u.Batches - before.Batches, CPU: u.CPU - before.CPU,
		Alloc: u.Alloc - before.Alloc, Time: u.Time - before.Time,
		Ready: u.Ready, NextMedian: u.NextMedian, NextP99: u.NextP99,
	}
}
