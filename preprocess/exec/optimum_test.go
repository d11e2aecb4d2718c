package exec

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/preprocess/lineage"
)

// puzzle is a problem small enough to find the best schedule by search: all tasks of a stage take the same number of
// ticks and make the same number of outputs at their end.
type puzzle struct {
	sources int
	stages  []puzzleStage
	slots   [2]int
}

type puzzleStage struct {
	resource, ticks, outputs int
}

// moment is a state of a puzzle: inputs ready for each stage, and the tasks that run by stage and ticks left.
type moment struct {
	ready   [3]int
	running [3][4]int
}

// optimum is the least number of ticks, by a search over all schedules, with those that leave slots idle.
func (p puzzle) optimum() int {
	var start moment
	start.ready[0] = p.sources
	now := map[moment]bool{start: true}
	for ticks := 0; ; ticks++ {
		next := map[moment]bool{}
		for m := range now {
			if m == (moment{}) {
				return ticks
			}
			p.launches(m, 0, func(m moment) { next[p.tick(m)] = true })
		}
		now = next
	}
}

// launches calls yield with every choice of tasks to launch for stages from s on.
func (p puzzle) launches(m moment, s int, yield func(moment)) {
	if s == len(p.stages) {
		yield(m)
		return
	}
	st := p.stages[s]
	used := 0
	for t, other := range p.stages {
		for _, k := range m.running[t] {
			if other.resource == st.resource {
				used += k
			}
		}
	}
	most := min(m.ready[s], p.slots[st.resource]-used)
	for k := 0; k <= most; k++ {
		launched := m
		launched.ready[s] -= k
		launched.running[s][st.ticks-1] += k
		p.launches(launched, s+1, yield)
	}
}

func (p puzzle) tick(m moment) moment {
	for s, st := range p.stages {
		done := m.running[s][0]
		copy(m.running[s][:], m.running[s][1:])
		m.running[s][len(m.running[s])-1] = 0
		if s+1 < len(p.stages) {
			m.ready[s+1] += done * st.outputs
		}
	}
	return m
}

// ticks is how long the core takes.
func (p puzzle) ticks(budget int64) (int, error) {
	names := [2]string{"cpu", "gpu"}
	var cfg Config
	for s, st := range p.stages {
		cfg.Stages = append(cfg.Stages, StageSpec{
			Name: string(rune('a' + s)), Resources: map[string]int{names[st.resource]: 1}, ExpectBytes: int64(st.outputs),
		})
	}
	w, err := newWorld(cfg, p.sources)
	if err != nil {
		return 0, err
	}
	w.atEnd = true
	w.allowed = Unlimited
	w.duration = func(s int, _ lineage.ID) time.Duration { return time.Duration(p.stages[s].ticks) * time.Second }
	w.outputs = func(s int, _ lineage.ID) []int64 { return slices.Repeat([]int64{1}, p.stages[s].outputs) }
	if err := w.join("a", map[string]int{"cpu": p.slots[0], "gpu": p.slots[1]}, budget); err != nil {
		return 0, err
	}
	if err := w.run(); err != nil {
		return 0, err
	}
	return int(w.now / time.Second), nil
}

// path is the time that a source partition takes alone: of the longest chain of tasks that follow from one another.
func (p puzzle) path() int {
	ticks := 0
	for _, st := range p.stages {
		ticks += st.ticks
	}
	return ticks
}

// greedy is Graham's bound for any schedule that leaves no slot free while a task waits for it: at each moment a
// resource is all at work, or every longest chain that is left gets shorter.
func (p puzzle) greedy() float64 {
	var work [2]int
	tasks, widest := p.sources, 1
	for _, st := range p.stages {
		work[st.resource] += tasks * st.ticks
		tasks *= st.outputs
		widest = max(widest, p.slots[st.resource])
	}
	bound := float64(p.path()) * (1 - 1/float64(widest))
	for r, ticks := range work {
		bound += float64(ticks) / float64(p.slots[r])
	}
	return bound
}

func drawPuzzle(t *rapid.T) puzzle {
	p := puzzle{sources: rapid.IntRange(1, 5).Draw(t, "sources")}
	for range rapid.IntRange(1, 3).Draw(t, "stages") {
		p.stages = append(p.stages, puzzleStage{
			resource: rapid.IntRange(0, 1).Draw(t, "resource"), ticks: rapid.IntRange(1, 3).Draw(t, "ticks"),
			outputs: rapid.IntRange(1, 2).Draw(t, "outputs"),
		})
	}
	p.slots = [2]int{rapid.IntRange(1, 3).Draw(t, "cpu"), rapid.IntRange(1, 3).Draw(t, "gpu")}
	return p
}

// Law: with room for everything, the core leaves no slot free while a task waits for it (Graham's bound), and needs at
// most a tenth more time than the best schedule there is, and the path of the source partition that comes last: where
// that one starts with the others at their ends, it runs alone, and a stream does not say that it is about to end. All
// 84,780 puzzles that can be drawn keep both.
func TestNearOptimalOnSmallProblems(t *testing.T) {
	var worst float64
	rapid.Check(t, func(t *rapid.T) {
		p := drawPuzzle(t)
		best := p.optimum()
		took, err := p.ticks(1 << 30)
		if err != nil {
			t.Fatal(err)
		}
		const rounding = 1e-9
		switch {
		case took < best:
			t.Fatalf("%+v took %d ticks, less than the optimum of %d: the search is wrong", p, took, best)
		case float64(took) > p.greedy()+rounding:
			t.Fatalf("%+v took %d ticks; a schedule that leaves no slot free takes at most %.1f", p, took, p.greedy())
		case took > best+best/10+p.path():
			t.Fatalf("%+v took %d ticks; %d are enough", p, took, best)
		}
		worst = max(worst, float64(took)/float64(best))
	})
	t.Logf("at worst %.2f times the optimum", worst)
}
