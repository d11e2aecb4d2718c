// Package executor measures the streaming-batch executor: plans of virtual operators, run by real worker processes under
// a limit of memory that is enforced, beside the time in which their slots could do the work.
//
// The scenarios are the microbenchmarks of the streaming batch model (arXiv 2501.12407): stages sleep instead of working,
// so that eight CPU and four GPU slots fit on two cores, and what is measured is control, memory and movement of data.
package executor

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/errkind"
)

// Scenario is a plan on given slots.
type Scenario struct {
	// Name is what it is called on the command line and in results.
	Name string
	// About says in one line what it measures.
	About string
	// Samples are the sources of the plan; each is a source partition of PartitionSamples.
	Samples, PartitionSamples int64
	// Workers is the number of worker processes, Slots what each has.
	Workers int
	Slots   map[string]int
	// FrameBytes is the size of a row between stages, Target that of an output partition.
	FrameBytes, Target int64
	// Runs are what is run unless the command line says otherwise.
	Runs []Variant

	stages []stage
}

// Variant is one run of a scenario.
type Variant struct {
	// Policy of the workers' executors.
	Policy string
	// Frames is the budget of each worker, in frames.
	Frames int64
	// Whole makes one partition of all that a task makes, instead of one of each frame.
	Whole bool
	// Rows of a partition, where the scenario varies it; else 0.
	Rows int64
}

// stage is a stage of virtual operators: it takes its time for each row, then makes rows of bytes.
type stage struct {
	resource string
	busy     bool
	time     pace
	rows     int64
	bytes    int64 // 0: a frame
}

// pace is how long a row takes, in seconds at scale 1; it can depend on the sample or, with byRow, on the number of the
// frame.
type pace struct {
	seconds      float64
	every, at    int64
	everySeconds float64
	after        int64
	afterSeconds float64
	byRow        bool
}

const (
	frameBytes = 4 << 20
	tiny       = 1 // bytes of an output that only counts
)

// videos are the loads and transforms that M1 and M2 are made of.
func videos() []stage {
	return []stage{
		{resource: "cpu", time: pace{seconds: 5}, rows: 5},
		{resource: "cpu", time: pace{seconds: .5}, rows: 1},
		{resource: "gpu", time: pace{seconds: .5}, rows: 1, bytes: tiny},
	}
}

// Scenarios lists them.
func Scenarios() []Scenario {
	node := map[string]int{"cpu": 8, "gpu": 4}
	return []Scenario{
		{
			Name: "M1", About: "160 loads of 5 frames, transform, inference, in little memory", Samples: 160, Slots: node, stages: videos(),
			Runs: []Variant{{Policy: "streaming", Frames: 61}, {Policy: "streaming", Frames: 20}},
		},
		{
			Name: "M2", About: "M1 with fixed shares of the slots, with one stage at a time, and with one partition a task", Samples: 160, Slots: node, stages: videos(),
			Runs: []Variant{{Policy: "static", Frames: 61}, {Policy: "staged", Frames: 61}, {Policy: "streaming", Frames: 61, Whole: true}},
		},
		{
			Name: "M3", About: "loads that get faster and transforms that get slower half way", Samples: 80, Slots: map[string]int{"cpu": 8},
			Runs: []Variant{{Policy: "streaming", Frames: 25}},
			stages: []stage{
				{resource: "cpu", time: pace{seconds: 5, after: 40, afterSeconds: .5}, rows: 10},
				{resource: "cpu", time: pace{seconds: .5, after: 40, afterSeconds: 1}, rows: 1, bytes: tiny},
			},
		},
		{
			Name: "M4", About: "a tenth of loads and transforms takes ten times as long", Samples: 80, Slots: map[string]int{"cpu": 8},
			Runs: []Variant{{Policy: "streaming", Frames: 25}},
			stages: []stage{
				{resource: "cpu", time: pace{seconds: .5, every: 10, everySeconds: 5}, rows: 10},
				{resource: "cpu", time: pace{seconds: .5, every: 10, at: 3, everySeconds: 5, byRow: true}, rows: 1, bytes: tiny},
			},
		},
		{
			Name: "M5", About: "three stages that keep CPU and GPU slots equally busy", Samples: 80, Slots: node,
			Runs: []Variant{{Policy: "streaming", Frames: 30}},
			stages: []stage{
				{resource: "cpu", time: pace{seconds: 5}, rows: 10},
				{resource: "cpu", time: pace{seconds: .5}, rows: 1},
				{resource: "gpu", time: pace{seconds: .5}, rows: 1, bytes: tiny},
			},
		},
		{
			Name: "M6", About: "CPU, GPU, CPU", Samples: 160, Slots: map[string]int{"cpu": 10, "gpu": 4},
			Runs: []Variant{{Policy: "streaming", Frames: 61}},
			stages: []stage{
				{resource: "cpu", time: pace{seconds: 4}, rows: 5},
				{resource: "gpu", time: pace{seconds: .5}, rows: 1},
				{resource: "cpu", time: pace{seconds: 1}, rows: 1, bytes: tiny},
			},
		},
		{
			Name: "M7", About: "1,024 rows of 1 MB through two busy stages, by rows of a partition", Samples: 1024, FrameBytes: 1_000_000,
			Workers: 2, Slots: map[string]int{"cpu": 1},
			Runs: []Variant{
				{Policy: "streaming", Frames: 512, Rows: 32},
				{Policy: "streaming", Frames: 512, Rows: 64},
				{Policy: "streaming", Frames: 512, Rows: 128},
				{Policy: "streaming", Frames: 512, Rows: 8},
				{Policy: "streaming", Frames: 512, Rows: 1},
			},
			stages: []stage{
				{resource: "cpu", busy: true, time: pace{seconds: .1}, rows: 1},
				{resource: "cpu", busy: true, time: pace{seconds: .1}, rows: 1, bytes: tiny},
			},
		},
		{
			Name: "M8", About: "two stages of 1 s and 2 s on eight slots", Samples: 400, Slots: map[string]int{"cpu": 8},
			Runs: []Variant{{Policy: "streaming", Frames: 61}, {Policy: "static", Frames: 61}},
			stages: []stage{
				{resource: "cpu", time: pace{seconds: 1}, rows: 1},
				{resource: "cpu", time: pace{seconds: 2}, rows: 1, bytes: tiny},
			},
		},
	}
}

// Find is the scenario of a name.
func Find(name string) (Scenario, error) {
	for _, s := range Scenarios() {
		if strings.EqualFold(s.Name, name) {
			return s.filled(), nil
		}
	}
	return Scenario{}, errkind.Errorf(errkind.Invalid, "there is no scenario %q of executor", name)
}

// filled has the defaults filled in.
func (s Scenario) filled() Scenario {
	s.Workers = max(1, s.Workers)
	s.PartitionSamples = max(1, s.PartitionSamples)
	if s.FrameBytes == 0 {
		s.FrameBytes = frameBytes
	}
	if s.Target == 0 {
		s.Target = s.FrameBytes
	}
	return s
}

// with is the scenario as the variant changes it.
func (s Scenario) with(v Variant) Scenario {
	if v.Whole {
		s.Target = s.rowBytes() * s.stages[0].rows
	}
	if v.Rows > 0 {
		s.PartitionSamples, s.Target = v.Rows, s.rowBytes()*v.Rows
	}
	return s
}

// rowBytes is the size of a frame with its number.
func (s Scenario) rowBytes() int64 { return s.FrameBytes + 8 }

// Rows is the number of final rows.
func (s Scenario) Rows() int64 {
	rows := s.Samples
	for _, st := range s.stages {
		rows *= st.rows
	}
	return rows
}

// Bound is the least time, in seconds, in which the slots could do the work at a scale of time: that of the resource
// with most work.
func (s Scenario) Bound(scale float64) float64 {
	work := map[string]float64{}
	for n := range s.Samples {
		frames := []int64{n} // numbers by which the rows of the next stage are told apart
		for _, st := range s.stages {
			var made []int64
			for _, f := range frames {
				by := n
				if st.time.byRow {
					by = f
				}
				work[st.resource] += st.time.of(by) * scale
				for k := range st.rows {
					number := k
					if st.rows == 1 && len(frames) > 1 {
						number = f
					}
					made = append(made, number)
				}
			}
			frames = made
		}
	}
	bound := 0.0
	for resource, seconds := range work {
		bound = max(bound, seconds/float64(s.Slots[resource]*s.Workers))
	}
	return bound
}

func (p pace) of(n int64) float64 {
	seconds := p.seconds
	if p.after > 0 && n >= p.after {
		seconds = p.afterSeconds
	}
	if p.every > 0 && n%p.every == p.at {
		seconds = p.everySeconds
	}
	return seconds
}

// params are the parameters of the operator that takes the time.
func (p pace) params(scale float64) string {
	text := fmt.Sprintf("seconds: %g", p.seconds*scale)
	if p.every > 0 {
		text += fmt.Sprintf(", every: %d, at: %d, every_seconds: %g", p.every, p.at, p.everySeconds*scale)
	}
	if p.after > 0 {
		text += fmt.Sprintf(", after: %d, after_seconds: %g", p.after, p.afterSeconds*scale)
	}
	if p.byRow {
		text += ", count: row"
	}
	return text
}

// Recipe is the plan as a recipe over a source of one-byte samples.
func (s Scenario) Recipe(source string, scale float64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "source: %s\nfields: {data: bin}\n", source)
	fmt.Fprintf(&b, "partition: {samples: %d, target_bytes: %d}\noperators:\n", s.PartitionSamples, s.Target)
	for _, st := range s.stages {
		name, bytes := "virtual_sleep", st.bytes
		if st.busy {
			name = "virtual_spin"
		}
		if bytes == 0 {
			bytes = s.FrameBytes
		}
		fmt.Fprintf(&b, "  - %s: {%s, resources: {%s: 1}, barrier: true}\n", name, st.time.params(scale), st.resource)
		fmt.Fprintf(&b, "  - virtual_emit: {field: frame, rows: %d, bytes: %d, resources: {%s: 1}}\n", st.rows, bytes, st.resource)
	}
	return b.String()
}

// slotArgs are the slots as flags of a worker.
func (s Scenario) slotArgs() []string {
	args := []string{"--cpu-slots", fmt.Sprint(s.Slots["cpu"])}
	for _, name := range slices.Sorted(maps.Keys(s.Slots)) {
		if name != "cpu" {
			args = append(args, "--slots", fmt.Sprintf("%s=%d", name, s.Slots[name]))
		}
	}
	return args
}

// Variants are the runs of s: with the policy and the budgets that are given, or else its own.
func Variants(s Scenario, policy string, frames []int64) []Variant {
	var out []Variant
	for _, v := range s.Runs {
		if policy != "" {
			v.Policy = policy
		}
		for _, f := range frames {
			v.Frames = f
			out = append(out, v)
		}
		if len(frames) == 0 {
			out = append(out, v)
		}
	}
	seen := map[Variant]bool{}
	return slices.DeleteFunc(out, func(v Variant) bool {
		twice := seen[v]
		seen[v] = true
		return twice
	})
}
