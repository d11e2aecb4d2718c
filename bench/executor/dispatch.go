package executor

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/exec"
	"github.com/millrace/millrace/preprocess/lineage"
)

// NameDispatch is the scenario that Dispatch runs.
const NameDispatch = "dispatch"

const (
	livePartitions = 100_000
	grants         = 8 // outstanding source partitions of a worker
	// closed and open are how long each part of the scenario runs.
	closed, open = 2 * time.Second, 3 * time.Second
	// openRate is the rate, in events a second, at which latencies are measured.
	openRate = 100_000
)

// DispatchResult is the outcome of the scenario dispatch for one number of workers.
type DispatchResult struct {
	Scenario string `json:"scenario"`
	Workers  int    `json:"workers"`
	// Partitions are the source partitions that are live at any time.
	Partitions int `json:"partitions"`
	// EventsPerSecond is how many events the core takes on one core, with the decisions that follow from each.
	EventsPerSecond float64 `json:"events_per_s"`
	// P50 and P99 are the times from the arrival of an event to its decisions, in milliseconds, while events arrive at
	// Rate: 100,000 a second.
	P50  float64 `json:"launch_p50_ms"`
	P99  float64 `json:"launch_p99_ms"`
	Rate float64 `json:"rate"`
}

// Dispatch measures the executor core as the dispatcher uses it, without a network: virtual workers with 8 source
// partitions outstanding each, 100,000 live ones, and for each an offer, an output, its reading, its end and its freeing.
func Dispatch(ctx context.Context, workers int) (*DispatchResult, error) {
	if workers < 1 {
		return nil, errkind.Errorf(errkind.Invalid, "%d workers: give at least 1", workers)
	}
	d, err := newDispatch(workers)
	if err != nil {
		return nil, err
	}
	r := &DispatchResult{Scenario: NameDispatch, Workers: workers, Partitions: livePartitions, Rate: openRate}
	events, began := 0, time.Now()
	for time.Since(began) < closed {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		for range 100 {
			if err := d.event(); err != nil {
				return nil, err
			}
		}
		events += 100
	}
	r.EventsPerSecond = math.Round(float64(events) / time.Since(began).Seconds())

	latencies := make([]time.Duration, 0, int(open.Seconds()*openRate))
	began = time.Now()
	for n := range cap(latencies) {
		arrives := time.Duration(n) * time.Second / openRate
		for time.Since(began) < arrives { // It is early: events come from outside.
		}
		if err := d.event(); err != nil {
			return nil, err
		}
		latencies = append(latencies, time.Since(began)-arrives)
		if n%openRate == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	slices.Sort(latencies)
	r.P50, r.P99 = quantile(latencies, .5), quantile(latencies, .99)
	return r, nil
}

// quantile of sorted times, in milliseconds.
func quantile(sorted []time.Duration, q float64) float64 {
	return rounded(sorted[int(q*float64(len(sorted)-1))].Seconds() * 1000)
}

// dispatch is a core with workers that do at once what they are told.
type dispatch struct {
	core      *exec.Core
	offered   uint64
	running   []exec.Launch // in which tasks end in the order of their launch
	queue     []exec.Event  // what happens next to the first of running
	decisions []exec.Decision
}

func newDispatch(workers int) (*dispatch, error) {
	core, err := exec.New(exec.Config{Stages: []exec.StageSpec{{Name: "grant", Resources: map[string]int{"grant": 1}, ExpectBytes: 1 << 20}}})
	if err != nil {
		return nil, fmt.Errorf("making a core: %w", err)
	}
	d := &dispatch{core: core}
	for i := range workers {
		join := exec.NodeJoined{Node: exec.NodeID(fmt.Sprintf("worker-%04d", i)), Slots: map[string]int{"grant": grants}, BudgetBytes: 1 << 30}
		if err := core.Apply(join); err != nil {
			return nil, fmt.Errorf("joining worker %d: %w", i, err)
		}
	}
	for range livePartitions {
		if err := d.apply(d.offer()); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// offer is the next source partition: four windows of 128 are taken from in turn.
func (d *dispatch) offer() exec.Event {
	n := d.offered
	d.offered++
	return exec.Offered{ID: lineage.SourceID(0, n), Rows: 100, Affinity: 1 + n/512*4 + n%4}
}

func (d *dispatch) apply(ev exec.Event) error {
	if err := d.core.Apply(ev); err != nil {
		return fmt.Errorf("applying %T: %w", ev, err)
	}
	d.decisions = d.core.Decide(d.decisions[:0])
	for _, dec := range d.decisions {
		if l, ok := dec.(exec.Launch); ok {
			d.running = append(d.running, l)
		}
	}
	return nil
}

// event lets one thing happen.
func (d *dispatch) event() error {
	if len(d.queue) == 0 {
		if len(d.running) == 0 {
			return errkind.Errorf(errkind.Internal, "no task runs though %d source partitions are offered", livePartitions)
		}
		l := d.running[0]
		d.running = d.running[1:]
		out, err := l.Input.Child(0)
		if err != nil {
			return fmt.Errorf("naming an output: %w", err)
		}
		d.queue = append(
			d.queue, d.offer(),
			exec.OutputReady{Task: l.Task, Attempt: l.Attempt, ID: out, Rows: 100, Bytes: 1<<20 + int64(l.Task)%1000}, //nolint:gosec // Far below 2^63.
			exec.OutputTaken{ID: out}, exec.TaskDone{Task: l.Task, Attempt: l.Attempt, Outputs: 1}, exec.Freed{ID: out},
		)
	}
	ev := d.queue[0]
	d.queue = d.queue[1:]
	if len(d.queue) == 0 {
		d.queue = d.queue[:0:0]
	}
	return d.apply(ev)
}
