// Package recovery measures what trainers notice when processes die, freeze or slow down while they read.
//
// A dispatcher, four workers and a sidecar run as processes. Two ranks read one epoch of samples whose work is to sleep,
// so that capacity is slots and not cores, and write down the order and a hash of what they get. The same epoch without a
// fault is run beside it.
package recovery

import (
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/nearest"
)

const (
	workers = 4
	slots   = 2 // of each worker
	world   = 2 // ranks
	// sampleSeconds is the work of one sample, partitionSamples how many are lost with a task at most.
	sampleSeconds    = 0.01
	partitionSamples = 16
	// batchRows are those of a global batch, rowBytes those of a row.
	batchRows = 64
	rowBytes  = 1024
	// faultAt is the part of the epoch after which the fault comes.
	faultAt = 0.25
	// pacedShare is the rate of the consumer at 80 %, beside that of the undisturbed run.
	pacedShare = 0.8
)

// Consumers of the stream: one that takes what comes, and one at 80 % of the undisturbed rate.
const (
	Unthrottled = "unthrottled"
	Paced       = "80%"
)

// Options say how cases are run.
type Options struct {
	// Program is this binary: every role is a process of it.
	Program string
	// Seconds is what an undisturbed epoch takes at least.
	Seconds float64
	// Log hears what the roles say.
	Log io.Writer
}

// Result is the outcome of one case. Times are in seconds.
type Result struct {
	Scenario string `json:"scenario"`
	Consumer string `json:"consumer"`
	// Missing samples of the epoch, and Doubled ones.
	Missing int64 `json:"missing"`
	Doubled int64 `json:"doubled"`
	// OrderEqual says that every rank got the rows of the undisturbed run, in its order, byte for byte.
	OrderEqual bool `json:"order_equal"`
	// LongestWait of a rank for a batch from the fault on, LongestUndisturbed in all of the undisturbed run but its start.
	LongestWait        float64 `json:"longest_wait_s"`
	LongestUndisturbed float64 `json:"longest_wait_undisturbed_s"`
	// Total and Undisturbed are from the first batch to the last one, without and with the fault. LeastTotal is Undisturbed
	// with the capacity that is lost for the rest of the epoch.
	Total       float64 `json:"total_s"`
	Undisturbed float64 `json:"undisturbed_s"`
	LeastTotal  float64 `json:"least_total_s"`
	// ExtraWork is how many samples were made beyond those of the epoch, by their number.
	ExtraWork float64 `json:"extra_work"`
	// Error is what a rank was told, if it could not finish.
	Error string `json:"error,omitempty"`
}

// scenario is a fault.
type scenario struct {
	name string
	// lost is the part of the workers that is gone from the fault on.
	lost float64
	// fault strikes once a quarter of the epoch was read, and returns what mends it when the epoch is over; nil: nothing.
	fault func(ctx context.Context, c *cluster) (func(), error)
}

func scenarios() []scenario {
	kill := func(n int) func(context.Context, *cluster) (func(), error) {
		return func(_ context.Context, c *cluster) (func(), error) {
			for _, w := range c.workers[:n] {
				if err := w.kill(); err != nil {
					return nil, err
				}
			}
			return func() {}, nil
		}
	}
	return []scenario{
		{name: "worker_kill", lost: 1. / workers, fault: kill(1)},
		{name: "half_kill", lost: .5, fault: kill(workers / 2)},
		{name: "frozen", lost: 1. / workers, fault: freeze},
		{name: "throttled", fault: throttle},
		{name: "hedge_idle"},
	}
}

// Names are those of the scenarios.
func Names() []string {
	var names []string
	for _, s := range scenarios() {
		names = append(names, s.name)
	}
	return names
}

// Check says what is wrong with a name or options, as an error of kind Invalid.
func Check(name string, o Options) error {
	if !slices.Contains(Names(), name) {
		return errkind.Errorf(errkind.Invalid, "unknown scenario %q%s; there are %s", name, nearest.Hint(name, Names()), strings.Join(Names(), ", "))
	}
	if o.Seconds < 1 || o.Seconds > 3600 {
		return errkind.Errorf(errkind.Invalid, "an epoch of %v s is not within 1 s and an hour", o.Seconds)
	}
	return nil
}

// Run runs a scenario with each consumer, beside an undisturbed epoch, and hands each result to emit.
func Run(ctx context.Context, name string, o Options, emit func(*Result) error) error {
	if err := Check(name, o); err != nil {
		return err
	}
	s := scenarios()[slices.Index(Names(), name)]
	samples := epochSamples(o.Seconds)
	plain, err := runEpoch(ctx, samples, 0, scenario{}, o)
	if err != nil {
		return err
	}
	rate := float64(samples) / plain.total
	for _, consumer := range []string{Unthrottled, Paced} {
		undisturbed, pace := plain, 0.
		if consumer == Paced {
			pace = pacedShare * rate
			if undisturbed, err = runEpoch(ctx, samples, pace, scenario{}, o); err != nil {
				return err
			}
		}
		struck, err := runEpoch(ctx, samples, pace, s, o)
		if err != nil {
			return err
		}
		if err := emit(compare(s, consumer, samples, rate, undisturbed, struck)); err != nil {
			return err
		}
	}
	return nil
}

// epochSamples are as many as take the slots that long, in whole global batches.
func epochSamples(seconds float64) int64 {
	steps := int64(seconds*workers*slots/sampleSeconds) / batchRows
	return max(8, steps) * batchRows
}

// compare is the result of an epoch with a fault beside one without. rate is that of the unthrottled one, samples a second.
func compare(s scenario, consumer string, samples int64, rate float64, undisturbed, struck *outcome) *Result {
	r := &Result{
		Scenario: s.name, Consumer: consumer, OrderEqual: true, LongestWait: rounded(struck.longest.Seconds()),
		LongestUndisturbed: rounded(undisturbed.longest.Seconds()), Total: rounded(struck.total), Undisturbed: rounded(undisturbed.total),
		ExtraWork: rounded(float64(struck.made-samples) / float64(samples)), Error: struck.failed,
	}
	seen := map[int64]int64{}
	for rank, rows := range struck.rows {
		r.OrderEqual = r.OrderEqual && slices.Equal(rows, undisturbed.rows[rank])
		for _, row := range rows {
			seen[row.sample]++
		}
	}
	for i := range samples {
		switch n := seen[i]; {
		case n == 0:
			r.Missing++
		case n > 1:
			r.Doubled += n - 1
		}
	}
	rest := (1 - faultAt) * float64(samples)
	r.LeastTotal = rounded(faultAt*undisturbed.total + max((1-faultAt)*undisturbed.total, rest/(rate*(1-s.lost))))
	return r
}

// freeze stops a worker's process as a machine that hangs does.
func freeze(_ context.Context, c *cluster) (func(), error) {
	if err := c.workers[0].pause(); err != nil {
		return nil, err
	}
	return func() { c.workers[0].resume() }, nil
}

// throttle gives all workers 30 % of the time: 60 ms of 200.
func throttle(ctx context.Context, c *cluster) (func(), error) {
	ctx, cancel := context.WithCancel(ctx)
	over := make(chan struct{})
	go func() {
		defer close(over)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-ctx.Done():
				for _, w := range c.workers {
					w.resume()
				}
				return
			case <-tick.C:
			}
			for _, w := range c.workers {
				switch n % 10 {
				case 0:
					w.resume()
				case 3:
					_ = w.pause() // one that has ended shows in the stream
				}
			}
		}
	}()
	return func() { cancel(); <-over }, nil
}
