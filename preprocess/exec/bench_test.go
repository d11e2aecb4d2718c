package exec

import (
	"fmt"
	"testing"

	"github.com/millrace/millrace/preprocess/lineage"
)

// BenchmarkDispatch measures the core as the dispatcher uses it: 100,000 live source partitions, of which each worker
// has 8 outstanding. An operation is the life of one source partition: an offer, an output, its reading, its end and
// its freeing, with a Decide after each, so 5 events and 5 calls of Decide. The cost must not grow with the nodes.
func BenchmarkDispatch(b *testing.B) {
	for _, nodes := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) { benchmarkDispatch(b, nodes) })
	}
}

const livePartitions = 100_000

func benchmarkDispatch(b *testing.B, nodes int) {
	b.Helper()
	c, err := New(Config{Stages: []StageSpec{{Name: "grant", Resources: map[string]int{"outstanding": 1}, ExpectBytes: 1 << 20}}})
	if err != nil {
		b.Fatal(err)
	}
	apply := func(ev Event) {
		if err := c.Apply(ev); err != nil {
			b.Fatal(err)
		}
	}
	for i := range nodes {
		apply(NodeJoined{Node: NodeID(fmt.Sprintf("worker-%04d", i)), Slots: map[string]int{"outstanding": 8}, BudgetBytes: 1 << 30})
	}
	// Four windows of 128 source partitions are taken from in turn.
	offered := uint64(0)
	offer := func() {
		apply(Offered{ID: lineage.SourceID(0, offered), Rows: 100, Affinity: 1 + offered/512*4 + offered%4})
		offered++
	}
	for range livePartitions {
		offer()
	}
	var decisions []Decision
	running := make([]Launch, 0, nodes*8) // a ring in which tasks end in the order of their launch
	head, events := 0, 0
	decide := func() {
		decisions = c.Decide(decisions[:0])
		for _, d := range decisions {
			if l, ok := d.(Launch); ok {
				running = append(running, l)
			}
		}
	}
	decide()
	for b.Loop() {
		l := running[head]
		head++
		if head == nodes*8 {
			running = append(running[:0], running[head:]...)
			head = 0
		}
		out, err := l.Input.Child(0)
		if err != nil {
			b.Fatal(err)
		}
		offer()
		decide()
		for _, ev := range [...]Event{
			OutputReady{Task: l.Task, Attempt: l.Attempt, ID: out, Rows: 100, Bytes: 1<<20 + int64(l.Task)%1000},
			OutputTaken{ID: out},
			TaskDone{Task: l.Task, Attempt: l.Attempt, Outputs: 1},
			Freed{ID: out},
		} {
			apply(ev)
			decide()
		}
		events += 5
	}
	b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
	if live := c.Snapshot().Sources; live != livePartitions {
		b.Fatalf("%d source partitions are live, want %d", live, livePartitions)
	}
}

// BenchmarkWorker measures the core as a worker uses it: one node, two stages, four outputs a task.
func BenchmarkWorker(b *testing.B) {
	c, err := New(Config{Stages: []StageSpec{
		{Name: "decode", Resources: map[string]int{"cpu": 1}, ExpectBytes: 400},
		{Name: "encode", Resources: map[string]int{"gpu": 1}, ExpectBytes: 10},
	}})
	if err != nil {
		b.Fatal(err)
	}
	apply := func(ev Event) {
		if err := c.Apply(ev); err != nil {
			b.Fatal(err)
		}
	}
	apply(NodeJoined{Node: "a", Slots: map[string]int{"cpu": 8, "gpu": 4}, BudgetBytes: 1 << 20})
	var decisions []Decision
	var running []Launch
	offered, events := uint64(0), 0
	for b.Loop() {
		for len(running) == 0 {
			apply(Offered{ID: lineage.SourceID(0, offered), Rows: 10})
			offered++
			events++
			decisions = c.Decide(decisions[:0])
			running = keepLaunches(running, decisions)
		}
		l := running[0]
		running = append(running[:0], running[1:]...)
		outputs := 4 - 3*l.Stage
		for k := range outputs {
			out, err := l.Input.Child(uint32(k))
			if err != nil {
				b.Fatal(err)
			}
			apply(OutputReady{Task: l.Task, Attempt: l.Attempt, ID: out, Rows: 3, Bytes: 100})
			decisions = c.Decide(decisions[:0])
			running = keepLaunches(running, decisions)
			if l.Stage == 1 {
				apply(Freed{ID: out})
				events++
			}
		}
		apply(TaskDone{Task: l.Task, Attempt: l.Attempt, Outputs: outputs})
		decisions = c.Decide(decisions[:0])
		running = keepLaunches(running, decisions)
		events += 1 + outputs
	}
	b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
}

func keepLaunches(running []Launch, decisions []Decision) []Launch {
	for _, d := range decisions {
		if l, ok := d.(Launch); ok {
			running = append(running, l)
		}
	}
	return running
}
