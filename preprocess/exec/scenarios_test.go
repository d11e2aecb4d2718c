package exec

import (
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace/preprocess/lineage"
)

// simStage is a stage of a simulated plan: outputs of one size, and the seconds that a task takes.
type simStage struct {
	resource string
	outputs  int
	bytes    int64
	seconds  func(id lineage.ID) float64
}

// simPlan is a plan on one node, with the least time in which its slots can do the work.
type simPlan struct {
	name     string
	sources  int
	cpu, gpu int
	budget   int64
	bound    float64 // seconds
	stages   []simStage
}

func always(seconds float64) func(lineage.ID) float64 {
	return func(lineage.ID) float64 { return seconds }
}

func either(first bool, seconds, others float64) float64 {
	if first {
		return seconds
	}
	return others
}

// simPlans are those of the paper's microbenchmarks and of its simulator; a frame has 100 bytes.
func simPlans() []simPlan {
	return []simPlan{
		{name: "drift", sources: 80, cpu: 8, budget: 2500, bound: 103, stages: []simStage{
			{"cpu", 10, 100, func(id lineage.ID) float64 { return either(id.Source < 40, 5, .5) }},
			{"cpu", 1, 100, func(id lineage.ID) float64 { return either(id.Source < 40, .5, 1) }},
		}},
		{name: "spikes", sources: 80, cpu: 8, budget: 2500, bound: 105, stages: []simStage{
			{"cpu", 10, 100, func(id lineage.ID) float64 { return either(id.Source%10 == 0, 5, .5) }},
			{"cpu", 1, 100, func(id lineage.ID) float64 { return either(id.Path[0] == 3, 5, .5) }},
		}},
		{name: "balanced", sources: 80, cpu: 8, gpu: 4, budget: 3000, bound: 100, stages: []simStage{
			{"cpu", 10, 100, always(5)}, {"cpu", 1, 100, always(.5)}, {"gpu", 1, 1, always(.5)},
		}},
		{name: "cpu-gpu-cpu", sources: 160, cpu: 10, gpu: 4, budget: 6100, bound: 144, stages: []simStage{
			{"cpu", 5, 100, always(4)}, {"gpu", 1, 100, always(.5)}, {"cpu", 1, 1, always(1)},
		}},
		{name: "fractional", sources: 80, cpu: 8, budget: 10000, bound: 30, stages: []simStage{
			{"cpu", 1, 100, always(1)}, {"cpu", 1, 1, always(2)},
		}},
		{name: "solver", sources: 24, cpu: 8, gpu: 4, budget: 3000, bound: 72, stages: []simStage{
			{"cpu", 8, 100, always(8)}, {"gpu", 1, 100, always(1)}, {"cpu", 1, 1, always(2)},
		}},
	}
}

func (p simPlan) run(policy Policy, atEnd bool) (*world, error) {
	cfg := Config{Policy: policy}
	all := int64(0) // bytes made of a source partition
	tasks := int64(1)
	for i, st := range p.stages {
		cfg.Stages = append(cfg.Stages, StageSpec{
			Name: string(rune('a' + i)), Resources: map[string]int{st.resource: 1}, ExpectBytes: int64(st.outputs) * st.bytes,
		})
		tasks *= int64(st.outputs)
		all += tasks * st.bytes
	}
	w, err := newWorld(cfg, p.sources)
	if err != nil {
		return nil, err
	}
	w.atEnd, w.anyOrder, w.allowed = atEnd, true, all
	w.duration = func(s int, id lineage.ID) time.Duration {
		return time.Duration(p.stages[s].seconds(id) * float64(time.Second))
	}
	w.outputs = func(s int, _ lineage.ID) []int64 {
		return slices.Repeat([]int64{p.stages[s].bytes}, p.stages[s].outputs)
	}
	if err := w.join("a", map[string]int{"cpu": p.cpu, "gpu": p.gpu}, p.budget); err != nil {
		return nil, err
	}
	return w, w.run()
}

// Law: in little memory, with tasks whose times change or vary, streaming execution stays near the bound.
func TestMakespanUnderLittleMemory(t *testing.T) {
	most := map[string]float64{"drift": 1.25, "spikes": 1.35, "balanced": 1.2, "cpu-gpu-cpu": 1.05, "fractional": 1.01, "solver": 1.25}
	for _, plan := range simPlans() {
		for _, atEnd := range []bool{false, true} {
			w, err := plan.run(PolicyStreaming, atEnd)
			if err != nil {
				t.Fatalf("%s: %v", plan.name, err)
			}
			ratio := w.now.Seconds() / plan.bound
			t.Logf("%s, outputs at the end %v: %.2f times the bound, peak %d of %d", plan.name, atEnd, ratio, w.peak["a"], plan.budget)
			if ratio > most[plan.name] {
				t.Errorf("%s, outputs at the end %v: %.2f times the bound, want at most %.2f", plan.name, atEnd, ratio, most[plan.name])
			}
		}
	}
}

// Law: the other policies do what they are named for. Where two stages share slots in another proportion than one to
// one, static execution is slower by that; and staged execution holds all that a stage has made.
func TestPoliciesCompared(t *testing.T) {
	plans := simPlans()
	fractional := plans[slices.IndexFunc(plans, func(p simPlan) bool { return p.name == "fractional" })]
	streaming, err := fractional.run(PolicyStreaming, false)
	if err != nil {
		t.Fatal(err)
	}
	static, err := fractional.run(PolicyStatic, false)
	if err != nil {
		t.Fatal(err)
	}
	staged, err := fractional.run(PolicyStaged, false)
	if err != nil {
		t.Fatal(err)
	}
	if static.now < streaming.now*5/4 {
		t.Errorf("static took %v, streaming %v", static.now, streaming.now)
	}
	if want := int64(fractional.sources * 100); staged.peak["a"] < want || streaming.peak["a"] > want/4 {
		t.Errorf("staged held %d bytes at most, streaming %d; all that the first stage makes is %d", staged.peak["a"], streaming.peak["a"], want)
	}
}
