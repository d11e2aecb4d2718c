// Package kernels measures what one image costs one core, beside Pillow with torchvision and beside torchvision.io on
// the same files, with the same parameters drawn, in turns within one run.
//
// Pixels are compared before anything is timed: a scenario whose two sides make different images has no figures.
package kernels

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"slices"

	"github.com/millrace/millrace/bench/peers"
	"github.com/millrace/millrace/internal/errkind"
)

// Options say how to run scenarios.
type Options struct {
	// Python is the interpreter of the peer, with torch, torchvision and Pillow, and Env its environment.
	Python string
	Env    []string
	// Photos is a folder of photographs that the files are made of; without any, they are made of drawings.
	Photos string
	// Images is the number of files a scenario, Passes how often each is used in a turn, with other parameters every
	// time, and Rounds the number of turns of each side.
	Images, Passes, Rounds int
	// Log hears how it goes.
	Log io.Writer
}

// Check says which setting makes no sense.
func (o *Options) Check() error {
	if o.Images < 1 || o.Passes < 1 || o.Rounds < 1 {
		return errkind.Errorf(errkind.Invalid, "a benchmark needs 1 image, 1 pass and 1 round at least")
	}
	return nil
}

// Result is the outcome of a scenario. Times are of the processor, in microseconds for each image, medians over the rounds.
type Result struct {
	Scenario   string  `json:"scenario"`
	PerImage   float64 `json:"us_per_image"`
	Peer       string  `json:"peer"`
	PeerTime   float64 `json:"peer_us_per_image"`
	Ratio      float64 `json:"ratio"`
	Allocs     float64 `json:"allocs_per_image"`
	Added      float64 `json:"added_us,omitempty"`
	PeerAdded  float64 `json:"peer_added_us,omitempty"`
	Speedup    float64 `json:"speedup,omitempty"`
	SpeedupCPU float64 `json:"speedup_cpu,omitempty"`
	Other      string  `json:"other"`
	OtherTime  float64 `json:"other_us_per_image"`
	OtherRatio float64 `json:"other_ratio"`
	// Pixels says how the pixels of both sides compare, and Bytes how large a file is in the mean.
	Pixels string `json:"pixels"`
	Bytes  int    `json:"bytes"`
}

// Runner runs scenarios; it owns the files and the peer's processes.
type Runner struct {
	o     Options
	dir   string
	cpus  []int
	peers []*peer
	files map[string][]string
}

// Start makes the files and starts the peer, one process for each of two cores. Close the Runner.
func Start(ctx context.Context, o Options) (*Runner, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	cpus, err := allowedCPUs()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "millrace-kernels-")
	if err != nil {
		return nil, fmt.Errorf("making a folder for the images: %w", err)
	}
	r := &Runner{o: o, dir: dir, cpus: cpus}
	if err := r.start(ctx); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

func (r *Runner) start(ctx context.Context) error {
	if err := peers.Unpack(r.dir); err != nil {
		return err
	}
	var err error
	if r.files, err = makeImages(ctx, r.o, r.dir); err != nil {
		return err
	}
	for _, cpu := range r.cpus[:min(2, len(r.cpus))] {
		p, err := startPeer(ctx, r.o, r.dir, cpu)
		if err != nil {
			return err
		}
		r.peers = append(r.peers, p)
	}
	return nil
}

// Close ends the peer's processes and removes the files.
func (r *Runner) Close() {
	for _, p := range r.peers {
		p.stop()
	}
	_ = os.RemoveAll(r.dir)
}

// Run runs a scenario.
func (r *Runner) Run(ctx context.Context, s Scenario) (*Result, error) {
	b, err := r.prepare(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("preparing %s: %w", s.Name, err)
	}
	pixels, err := r.compare(ctx, b)
	if err != nil {
		return nil, fmt.Errorf("comparing the pixels of %s: %w", s.Name, err)
	}
	result := &Result{Scenario: s.Name, Peer: peerPillow, Other: peerTensor, Pixels: pixels, Bytes: b.meanBytes}
	if result.Allocs, err = b.with.allocations(ctx); err != nil {
		return nil, fmt.Errorf("counting allocations of %s: %w", s.Name, err)
	}
	measure := r.onOneCore
	if s.cores > 1 {
		measure = r.onTwoCores
	}
	if err := measure(ctx, b, result); err != nil {
		return nil, fmt.Errorf("measuring %s: %w", s.Name, err)
	}
	result.Ratio, result.OtherRatio = rounded(result.PeerTime/result.PerImage), rounded(result.OtherTime/result.PerImage)
	_, err = fmt.Fprintf(r.o.Log, "%-18s %8.1f µs; %s %8.1f, %s %8.1f\n", s.Name, result.PerImage, peerPillow, result.PeerTime, peerTensor, result.OtherTime)
	if err != nil {
		return nil, fmt.Errorf("writing the log: %w", err)
	}
	return result, nil
}

// onOneCore measures all sides on the first core, in turns.
func (r *Runner) onOneCore(ctx context.Context, b *bench, to *Result) error {
	var ours, plain, pillow, pillowPlain, tensor []float64
	for range r.o.Rounds {
		for _, turn := range []struct {
			to *[]float64
			by func() (float64, error)
			on bool
		}{
			{&ours, func() (float64, error) { return b.with.timed(ctx, r.cpus[0]) }, true},
			{&pillow, func() (float64, error) { return r.peers[0].timed(b.id, peerPillow) }, true},
			{&tensor, func() (float64, error) { return r.peers[0].timed(b.id, peerTensor) }, true},
			{&plain, func() (float64, error) { return b.without.timed(ctx, r.cpus[0]) }, b.without != nil},
			{&pillowPlain, func() (float64, error) { return r.peers[0].timed(b.id, peerPlain) }, b.without != nil},
		} {
			if !turn.on {
				continue
			}
			us, err := turn.by()
			if err != nil {
				return err
			}
			*turn.to = append(*turn.to, us)
		}
	}
	to.PerImage, to.PeerTime, to.OtherTime = median(ours), median(pillow), median(tensor)
	if b.without != nil {
		to.Added, to.PeerAdded = rounded(to.PerImage-median(plain)), rounded(to.PeerTime-median(pillowPlain))
	}
	return nil
}

// onTwoCores measures how much faster two cores are than one of them, in the mean of both, and both sides on two, by the
// clock. What other processes take of a core meanwhile slows the clock; by processor time, cores are slowed by each other
// alone.
func (r *Runner) onTwoCores(ctx context.Context, b *bench, to *Result) error {
	if len(r.cpus) < 2 {
		return errkind.Errorf(errkind.Invalid, "it needs two cores, and this process may use one")
	}
	var speedup, speedupCPU, ours, pillow, tensor []float64
	for range r.o.Rounds {
		var rate, cpu float64 // Of one core, summed over both.
		for i, c := range []*chain{b.with, b.twin} {
			one, err := spend(ctx, r.cpus[i:i+1], []*chain{c})
			if err != nil {
				return err
			}
			rate += 1 / one.wall
			cpu += one.cpu
		}
		two, err := spend(ctx, r.cpus[:2], []*chain{b.with, b.twin})
		if err != nil {
			return err
		}
		ours, speedup, speedupCPU = append(ours, two.wall), append(speedup, 2/(two.wall*rate)), append(speedupCPU, cpu/two.cpu)
		for variant, to := range map[string]*[]float64{peerPillow: &pillow, peerTensor: &tensor} {
			us, err := together(r.peers, b.id, variant)
			if err != nil {
				return err
			}
			*to = append(*to, us)
		}
	}
	to.PerImage, to.PeerTime, to.OtherTime = median(ours), median(pillow), median(tensor)
	to.Speedup, to.SpeedupCPU = median(speedup), median(speedupCPU)
	return nil
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	n := len(v)
	return rounded((v[(n-1)/2] + v[n/2]) / 2)
}

func rounded(v float64) float64 { return math.Round(v*1000) / 1000 }
