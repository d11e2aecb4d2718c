package exec

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/preprocess/lineage"
)

// mix is a number that follows from a partition and a salt alone, as a task's outputs do.
func mix(id lineage.ID, salt uint64) uint64 {
	h := salt*0x9e3779b97f4a7c15 + id.Source + id.Epoch<<32 + uint64(id.Depth)<<56
	for _, k := range id.Path {
		h = (h ^ uint64(k)) * 0xff51afd7ed558ccd
		h ^= h >> 29
	}
	h = (h ^ h>>31) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// scenario is a random plan with a cluster and faults; it can be played any number of times.
type scenario struct {
	cfg      Config
	sources  int
	salt     uint64
	maxOuts  int
	maxBytes int64
	nodes    int
	slots    []map[string]int
	budgets  []int64
	atEnd    bool
	consume  int
	needs    bool
	expect   string // exact, none or wrong
	affinity int
	faults   []fault
}

type fault struct {
	at   time.Duration
	kind string
	node int
}

func drawScenario(t *rapid.T) scenario {
	s := scenario{
		sources:  rapid.IntRange(1, 30).Draw(t, "sources"),
		salt:     rapid.Uint64().Draw(t, "salt"),
		maxOuts:  rapid.IntRange(1, 5).Draw(t, "maxOuts"),
		maxBytes: rapid.Int64Range(1, 200).Draw(t, "maxBytes"),
		nodes:    rapid.IntRange(1, 4).Draw(t, "nodes"),
		atEnd:    rapid.Bool().Draw(t, "atEnd"),
		needs:    rapid.Bool().Draw(t, "needs"),
		expect:   rapid.SampledFrom([]string{"exact", "none", "wrong"}).Draw(t, "expect"),
		affinity: rapid.IntRange(0, 6).Draw(t, "affinity"),
	}
	if s.needs { // only a reader that says what it waits for may want several source partitions at once
		s.consume = rapid.IntRange(0, 5).Draw(t, "consume")
	}
	s.cfg = Config{
		Policy:        Policy(rapid.IntRange(1, 3).Draw(t, "policy")),
		MaxUnread:     rapid.IntRange(1, 3).Draw(t, "maxUnread"),
		ReplayReserve: rapid.Float64Range(0.01, 0.5).Draw(t, "reserve"),
	}
	for i := range rapid.IntRange(1, 3).Draw(t, "stages") {
		s.cfg.Stages = append(s.cfg.Stages, StageSpec{
			Name:           fmt.Sprint("s", i),
			Resources:      map[string]int{rapid.SampledFrom([]string{"cpu", "gpu"}).Draw(t, "resource"): rapid.IntRange(1, 2).Draw(t, "takes")},
			ExpectBytes:    rapid.Int64Range(0, 400).Draw(t, "expectBytes"),
			MaxOutputBytes: s.maxBytes,
		})
	}
	for range s.nodes {
		// Node 0 can run every stage; others perhaps not.
		least := 0
		if len(s.slots) == 0 {
			least = 2
		}
		s.slots = append(s.slots, map[string]int{
			"cpu": rapid.IntRange(least, 6).Draw(t, "cpu"), "gpu": rapid.IntRange(least, 4).Draw(t, "gpu"),
		})
		s.budgets = append(s.budgets, rapid.Int64Range(1, 4000).Draw(t, "budget"))
	}
	for range rapid.IntRange(0, 6).Draw(t, "faults") {
		s.faults = append(s.faults, fault{
			at:   time.Duration(rapid.IntRange(0, 3000).Draw(t, "at")) * time.Millisecond,
			kind: rapid.SampledFrom([]string{"lose", "fail", "drain", "fatal", "withdraw", "seek"}).Draw(t, "kind"),
			node: rapid.IntRange(0, s.nodes-1).Draw(t, "node"),
		})
	}
	return s
}

// outputs of a task are a function of its input alone: their sizes.
func (s *scenario) outputs(stage int, id lineage.ID) []int64 {
	outs := make([]int64, mix(id, s.salt+uint64(stage))%uint64(s.maxOuts+1))
	for k := range outs {
		outs[k] = 1 + int64(mix(id, s.salt^uint64(k+1)<<20)%uint64(s.maxBytes))
	}
	return outs
}

// bytes is all that a source partition can take at one time, with copies of inputs on other nodes.
func (s *scenario) bytes(stage int, id lineage.ID) int64 {
	if stage == len(s.cfg.Stages) {
		return 0
	}
	var sum int64
	for k, b := range s.outputs(stage, id) {
		child, err := id.Child(uint32(k))
		if err != nil {
			panic(err)
		}
		sum += 2*b + s.bytes(stage+1, child)
	}
	return sum
}

func (s *scenario) offer(i int) Offered {
	ev := Offered{ID: lineage.SourceID(0, uint64(i)), Rows: 1}
	if s.affinity > 0 {
		ev.Affinity = uint64(1 + i/s.affinity)
	}
	for _, b := range s.outputs(0, ev.ID) {
		ev.ExpectBytes += b
	}
	switch s.expect {
	case "none":
		ev.ExpectBytes = 0
	case "wrong":
		ev.ExpectBytes = int64(mix(ev.ID, 99) % 1000)
	}
	return ev
}

// play runs the scenario to its end.
func (s *scenario) play() (*world, error) {
	w, err := newWorld(s.cfg, s.sources)
	if err != nil {
		return nil, err
	}
	w.atEnd, w.consume, w.needs, w.outputs = s.atEnd, s.consume, s.needs, s.outputs
	w.duration = func(stage int, id lineage.ID) time.Duration {
		return time.Duration(10+mix(id, s.salt+7+uint64(stage))%400) * time.Millisecond
	}
	// Whoever may overdraw a budget adds at most its own bytes: the head, or all that a reader can wait for, and
	// what it waited for before and has not consumed.
	for i := range s.sources {
		w.allowed = max(w.allowed, s.bytes(0, lineage.SourceID(0, uint64(i))))
	}
	if s.needs {
		w.allowed *= int64(2 + s.consume)
	}
	for i := range s.nodes {
		if err := w.join(NodeID(fmt.Sprint("n", i)), s.slots[i], s.budgets[i]); err != nil {
			return nil, err
		}
	}
	for _, f := range s.faults {
		w.after(f.at, func() error { return s.inject(w, f) })
	}
	for i := range s.sources {
		// Offers come in order, some later than others.
		w.after(time.Duration(i)*time.Duration(s.salt%50)*time.Millisecond, func() error {
			w.asked = lineage.ID{Depth: 1} // what was asked for before it was offered is asked for again
			w.offered[s.offer(i).ID] = true
			return w.apply(s.offer(i))
		})
	}
	return w, w.finish()
}

// offerAgain offers withdrawn source partitions anew, without what was consumed of them.
func (s *scenario) offerAgain(w *world, from, to int) error {
	w.asked = lineage.ID{Depth: 1}
	for i := from; i < to; i++ {
		ev := s.offer(i)
		if !w.offered[ev.ID] || w.core.sources[ev.ID] != nil {
			continue
		}
		expected := w.expected(0, ev.ID)
		for _, out := range expected {
			if w.consumed[out] > 0 {
				ev.Skip = append(ev.Skip, out)
			}
			// Those that were not consumed are of no use any more, wherever they are.
			delete(w.final, out)
		}
		if len(expected) > 0 && len(ev.Skip) == len(expected) {
			continue
		}
		if err := w.apply(ev); err != nil {
			return err
		}
	}
	return nil
}

func (s *scenario) inject(w *world, f fault) error {
	id := NodeID(fmt.Sprint("n", f.node))
	n := w.nodes[id]
	if n == nil {
		return nil
	}
	switch f.kind {
	case "withdraw":
		if w.read < len(w.stream) {
			i := w.read + f.node%(len(w.stream)-w.read)
			return errors.Join(w.apply(Withdrawn{Sources: w.stream[i : i+1]}), s.offerAgain(w, i, i+1))
		}
		return nil
	case "seek":
		if w.read < len(w.stream) {
			i := w.read + f.node%(len(w.stream)-w.read)
			return errors.Join(w.apply(WithdrawnFrom{Source: w.stream[i]}), s.offerAgain(w, i, len(w.stream)))
		}
		return nil
	case "fail", "fatal": // the latest task
		var latest *simTask
		for _, t := range n.tasks {
			if latest == nil || t.launch.Task > latest.launch.Task {
				latest = t
			}
		}
		if latest == nil {
			return nil
		}
		ev := TaskFailed{Task: latest.launch.Task, Attempt: latest.launch.Attempt, Fatal: f.kind == "fatal"}
		if err := w.end(latest, ev); err != nil || !ev.Fatal {
			return err
		}
		i := int(latest.launch.Input.Source)
		return s.offerAgain(w, i, i+1)
	case "drain":
		if err := w.apply(NodeDraining{Node: id}); err != nil {
			return err
		}
	}
	back := func() error {
		if w.nodes[id] != nil {
			return nil
		}
		return w.join(id, s.slots[f.node], s.budgets[f.node])
	}
	if f.kind == "drain" {
		w.after(300*time.Millisecond, func() error {
			if w.nodes[id] != n {
				return nil
			}
			if err := w.lose(id); err != nil {
				return err
			}
			return back()
		})
		return nil
	}
	if err := w.lose(id); err != nil {
		return err
	}
	w.after(200*time.Millisecond, back)
	return nil
}

// Law: whatever the plan, the budgets (down to one byte), the reader, the estimates and the faults, the stream is
// consumed to its end, every output once; no node goes over its budget by more than the laws allow; nothing is
// remembered afterwards; and equal events give equal decisions.
func TestAnyPlanFinishesWithinItsBudgets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawScenario(t)
		first, err := s.play()
		if err != nil {
			if first != nil {
				t.Log("last decisions:", first.log[max(0, len(first.log)-30):])
			}
			t.Fatalf("%+v: %v", s, err)
		}
		second, err := s.play()
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(first.log, second.log) {
			t.Fatalf("decisions differ between two runs (-first +second):\n%s", cmp.Diff(first.log, second.log))
		}
	})
}
