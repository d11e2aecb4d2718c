package exec

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace/preprocess/lineage"
)

// world plays the part of everything around a Core, in simulated time: nodes that run tasks, readers that consume
// the outputs of the last stage in stream order, and the accounting that the laws are checked with.
type world struct {
	core  *Core
	cfg   Config
	nodes map[NodeID]*simNode
	now   time.Duration
	queue []timer
	seq   int

	// duration and outputs say what a task does: how long it takes in all, and the sizes of its outputs, which come at
	// equal distances (the last at the end) or, with atEnd, all at the end.
	duration func(stage int, id lineage.ID) time.Duration
	outputs  func(stage int, id lineage.ID) []int64
	atEnd    bool

	// stream is what is offered, in order. consume says how many source partitions a reader needs in full before it
	// consumes any of them, 0 for a reader that takes each output at once.
	stream   []lineage.ID
	consume  int
	needs    bool // the reader says what it waits for
	anyOrder bool // the reader takes outputs as they come
	asked    lineage.ID
	read     int                 // source partitions consumed
	offered  map[lineage.ID]bool // those offered so far
	consumed map[lineage.ID]int
	final    map[lineage.ID]NodeID

	log      []string
	launches int
	peak     map[NodeID]int64
	allowed  int64 // bytes over the budget that the laws allow
	decided  []Decision
}

type simNode struct {
	id     NodeID
	budget int64
	slots  map[string]int
	used   map[string]int
	held   map[copyOf]int64
	tasks  map[TaskID]*simTask
}

// copyOf tells the copies of an output apart that a stopping task and its successor make on one node.
type copyOf struct {
	id   lineage.ID
	task TaskID
}

// find is the copy that the latest task made.
func (n *simNode) find(id lineage.ID) (copyOf, bool) {
	var found copyOf
	for c := range n.held {
		if c.id == id && c.task > found.task {
			found = c
		}
	}
	return found, found.task > 0
}

type simTask struct {
	launch   Launch
	node     *simNode
	next     int // output
	sizes    []int64
	step     time.Duration
	copied   int64 // the input, where it came from another node
	paused   bool
	due      bool // an output is due but paused
	canceled bool
}

type timer struct {
	at  time.Duration
	seq int
	do  func() error
}

func newWorld(cfg Config, sources int) (*world, error) {
	core, err := New(cfg)
	if err != nil {
		return nil, err
	}
	w := &world{
		core: core, cfg: core.cfg, nodes: map[NodeID]*simNode{}, offered: map[lineage.ID]bool{}, consumed: map[lineage.ID]int{}, final: map[lineage.ID]NodeID{},
		peak: map[NodeID]int64{},
	}
	for i := range sources {
		w.stream = append(w.stream, lineage.SourceID(0, uint64(i)))
	}
	return w, nil
}

func (w *world) after(d time.Duration, do func() error) {
	w.seq++
	w.queue = append(w.queue, timer{w.now + d, w.seq, do})
}

func (w *world) apply(ev Event) error {
	if err := w.core.Apply(ev); err != nil {
		return fmt.Errorf("applying %T %+v: %w", ev, ev, err)
	}
	return nil
}

func (w *world) join(id NodeID, slots map[string]int, budget int64) error {
	w.nodes[id] = &simNode{
		id: id, budget: budget, slots: slots, used: map[string]int{}, held: map[copyOf]int64{}, tasks: map[TaskID]*simTask{},
	}
	return w.apply(NodeJoined{Node: id, Slots: slots, BudgetBytes: budget})
}

func (w *world) lose(id NodeID) error {
	n := w.nodes[id]
	delete(w.nodes, id)
	for out := range n.held {
		if w.final[out.id] == id {
			delete(w.final, out.id)
		}
	}
	return w.apply(NodeLost{Node: id})
}

// step decides, then lets time go on to the next timer. It is false when nothing is left to happen.
func (w *world) step() (bool, error) {
	if err := w.decide(); err != nil {
		return false, err
	}
	if at, ok := w.core.NextTick(); ok && at > w.now {
		w.after(at-w.now, func() error { return nil })
	}
	if len(w.queue) == 0 {
		return false, nil
	}
	slices.SortFunc(w.queue, func(a, b timer) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.seq, b.seq)) })
	w.now = w.queue[0].at
	if err := w.apply(Tick{Now: w.now}); err != nil {
		return false, err
	}
	for len(w.queue) > 0 && w.queue[0].at == w.now {
		do := w.queue[0].do
		w.queue = w.queue[1:]
		if err := do(); err != nil {
			return false, err
		}
		slices.SortStableFunc(w.queue, func(a, b timer) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.seq, b.seq)) })
	}
	return true, nil
}

func (w *world) decide() error {
	for {
		w.decided = w.core.Decide(w.decided[:0])
		for _, d := range w.decided {
			w.log = append(w.log, fmt.Sprintf("%v %T%+v", w.now, d, d))
			if err := w.carryOut(d); err != nil {
				return err
			}
		}
		if again := w.core.Decide(nil); len(again) > 0 {
			return fmt.Errorf("a second Decide decided %T%+v", again[0], again[0])
		}
		if err := errors.Join(w.check(), audit(w.core)); err != nil {
			return err
		}
		if progress, err := w.reader(); err != nil || !progress {
			return err
		}
	}
}

func (w *world) carryOut(d Decision) error {
	switch d := d.(type) {
	case Launch:
		return w.launch(d)
	case FreeInput:
		found, ok := w.nodes[d.Node].find(d.ID)
		if !ok {
			return fmt.Errorf("FreeInput of %s, which %s does not hold", d.ID, d.Node)
		}
		delete(w.nodes[d.Node].held, found)
	case Discard:
		out := copyOf{d.ID, d.Task}
		if _, ok := w.nodes[d.Node].held[out]; !ok {
			return fmt.Errorf("discarding %s of task %d, which %s does not hold", d.ID, d.Task, d.Node)
		}
		delete(w.nodes[d.Node].held, out)
		if _, other := w.nodes[d.Node].find(d.ID); !other && w.final[d.ID] == d.Node {
			delete(w.final, d.ID)
		}
	case Pause:
		w.nodes[d.Node].tasks[d.Task].paused = true
	case Resume:
		t := w.nodes[d.Node].tasks[d.Task]
		t.paused = false
		if t.due {
			t.due = false
			w.after(0, func() error { return w.emit(t) })
		}
	case Cancel:
		t := w.nodes[d.Node].tasks[d.Task]
		w.after(time.Millisecond, func() error { // it may report one more output until then
			t.canceled = true
			return w.end(t, TaskFailed{Task: d.Task, Attempt: d.Attempt})
		})
	}
	return nil
}

func (w *world) launch(d Launch) error {
	n := w.nodes[d.Node]
	if n == nil {
		return fmt.Errorf("launch on %s, which is not there", d.Node)
	}
	for name, k := range w.cfg.Stages[d.Stage].Resources {
		n.used[name] += k
		if n.used[name] > n.slots[name] {
			return fmt.Errorf("launch of task %d takes slot %d of %q on %s, which has %d", d.Task, n.used[name], name, d.Node, n.slots[name])
		}
	}
	if d.Stage > 0 {
		if _, ok := w.nodes[d.InputNode].find(d.Input); !ok {
			return fmt.Errorf("launch of task %d reads %s, which %s does not hold", d.Task, d.Input, d.InputNode)
		}
	}
	t := &simTask{launch: d, node: n, sizes: w.outputs(d.Stage, d.Input)}
	if d.Stage > 0 && d.InputNode != d.Node {
		in, _ := w.nodes[d.InputNode].find(d.Input)
		t.copied = w.nodes[d.InputNode].held[in]
	}
	n.tasks[d.Task] = t
	w.launches++
	total := w.duration(d.Stage, d.Input)
	if w.atEnd || len(t.sizes) == 0 {
		w.after(total, func() error { return w.emit(t) })
		return nil
	}
	t.step = total / time.Duration(len(t.sizes))
	w.after(t.step, func() error { return w.emit(t) })
	return nil
}

var errTooMany = errors.New("output made twice")

// emit reports the next output of a task, or all of them.
func (w *world) emit(t *simTask) error {
	if w.nodes[t.node.id] != t.node || t.node.tasks[t.launch.Task] != t || t.canceled {
		return nil
	}
	for t.next < len(t.sizes) {
		if t.paused {
			t.due = true
			return w.apply(OutputBlocked{Task: t.launch.Task, Attempt: t.launch.Attempt, Bytes: t.sizes[t.next]})
		}
		id, err := t.launch.Input.Child(uint32(t.next))
		if err != nil {
			return err
		}
		size := t.sizes[t.next]
		t.next++
		if !slices.Contains(t.launch.Skip, id) {
			out := copyOf{id, t.launch.Task}
			if _, twice := t.node.held[out]; twice {
				return fmt.Errorf("%s on %s: %w", id, t.node.id, errTooMany)
			}
			t.node.held[out] = size
			if t.launch.Stage == len(w.cfg.Stages)-1 {
				w.final[id] = t.node.id
			}
			if err := w.apply(OutputReady{Task: t.launch.Task, Attempt: t.launch.Attempt, ID: id, Rows: 1, Bytes: size}); err != nil {
				return err
			}
		}
		if t.next < len(t.sizes) && !w.atEnd {
			w.after(t.step, func() error { return w.emit(t) })
			return nil
		}
		if err := w.decide(); err != nil { // a burst of outputs can be stopped between two of them
			return err
		}
		if t.canceled {
			return nil
		}
	}
	return w.end(t, TaskDone{Task: t.launch.Task, Attempt: t.launch.Attempt, Outputs: len(t.sizes)})
}

func (w *world) end(t *simTask, ev Event) error {
	if w.nodes[t.node.id] != t.node || t.node.tasks[t.launch.Task] != t {
		return nil
	}
	delete(t.node.tasks, t.launch.Task)
	for name, k := range w.cfg.Stages[t.launch.Stage].Resources {
		t.node.used[name] -= k
	}
	return w.apply(ev)
}

// expected are the final outputs of a partition, in order.
func (w *world) expected(stage int, id lineage.ID) []lineage.ID {
	if stage == len(w.cfg.Stages) {
		return []lineage.ID{id}
	}
	var all []lineage.ID
	for k := range w.outputs(stage, id) {
		child, err := id.Child(uint32(k))
		if err != nil {
			panic(err)
		}
		all = append(all, w.expected(stage+1, child)...)
	}
	return all
}

// reader consumes what it can; true if it consumed anything.
func (w *world) reader() (bool, error) {
	if w.anyOrder {
		return w.readAny()
	}
	progress := false
	for w.read < len(w.stream) {
		span := w.stream[w.read:min(w.read+max(w.consume, 1), len(w.stream))]
		var outs []lineage.ID
		missing := -1
		for i, id := range span {
			for _, out := range w.expected(0, id) {
				if w.consumed[out] > 0 {
					continue
				}
				if _, ok := w.final[out]; !ok {
					if missing < 0 {
						missing = i
					}
					if w.consume > 0 {
						break
					}
				}
				outs = append(outs, out)
			}
		}
		if missing >= 0 && w.needs {
			if err := w.apply(Needed{ID: span[missing]}); err != nil {
				return progress, err
			}
			progress = progress || w.asked != span[missing]
			w.asked = span[missing]
		}
		if missing >= 0 && w.consume > 0 {
			return progress, nil
		}
		for _, out := range outs {
			if _, ok := w.final[out]; !ok {
				return progress, nil
			}
			if err := w.consumeOutput(out); err != nil {
				return progress, err
			}
			progress = true
		}
		w.read += len(span)
		progress = true
	}
	return progress, nil
}

// readAny consumes every output at once, in whatever order they come.
func (w *world) readAny() (bool, error) {
	ids := slices.SortedFunc(maps.Keys(w.final), lineage.ID.Compare)
	for _, id := range ids {
		if err := w.consumeOutput(id); err != nil {
			return true, err
		}
	}
	for w.read < len(w.stream) {
		for _, out := range w.expected(0, w.stream[w.read]) {
			if w.consumed[out] == 0 {
				return len(ids) > 0, nil
			}
		}
		w.read++
	}
	return len(ids) > 0, nil
}

func (w *world) consumeOutput(id lineage.ID) error {
	n := w.nodes[w.final[id]]
	w.consumed[id]++
	delete(w.final, id)
	found, _ := n.find(id)
	delete(n.held, found)
	return errors.Join(w.apply(OutputTaken{ID: id}), w.apply(Freed{ID: id}))
}

// check compares the core's accounts with the nodes'.
func (w *world) check() error {
	for _, n := range w.core.Snapshot().Nodes {
		sim := w.nodes[n.Node]
		var held int64
		for _, b := range sim.held {
			held += b
		}
		present := held
		for _, t := range sim.tasks {
			present += t.copied
		}
		w.peak[n.Node] = max(w.peak[n.Node], present)
		switch {
		case held != n.BytesHeld || len(sim.held) != n.Held:
			return fmt.Errorf("%s holds %d bytes in %d partitions; the core thinks %d in %d", n.Node, held, len(sim.held), n.BytesHeld, n.Held)
		case len(sim.tasks) != n.Tasks:
			return fmt.Errorf("%s runs %d tasks; the core thinks %d", n.Node, len(sim.tasks), n.Tasks)
		case present > n.BytesCharged:
			return fmt.Errorf("%s is charged %d bytes but has %d", n.Node, n.BytesCharged, present)
		case present > n.BudgetBytes+w.allowed:
			return fmt.Errorf("%s has %d bytes; its budget is %d, and %d more are allowed", n.Node, present, n.BudgetBytes, w.allowed)
		}
	}
	return nil
}

// run offers the stream and runs until nothing is left to happen, then checks that all was consumed, once.
func (w *world) run() error {
	for _, id := range w.stream {
		if err := w.apply(Offered{ID: id, Rows: 1}); err != nil {
			return err
		}
	}
	return w.finish()
}

func (w *world) finish() error {
	for {
		more, err := w.step()
		if err != nil {
			return err
		}
		if !more {
			break
		}
	}
	if w.read < len(w.stream) {
		return fmt.Errorf("stopped at source partition %d of %d: waiting %+v, nodes %+v", w.read, len(w.stream), w.core.Waiting(), w.core.Snapshot().Nodes)
	}
	for _, id := range w.stream {
		for _, out := range w.expected(0, id) {
			if w.consumed[out] != 1 {
				return fmt.Errorf("output %s was consumed %d times", out, w.consumed[out])
			}
		}
	}
	return w.empty()
}

// empty checks that a core whose work is done remembers nothing of it.
func (w *world) empty() error {
	c := w.core
	if len(c.sources)+len(c.tasks)+len(c.groups)+c.unfinished.len()+c.held+len(c.pending)+len(c.starved)+c.paused.len() > 0 || c.sourceTail != nil || c.head != nil {
		return fmt.Errorf("the finished core remembers %d source partitions, %d tasks, %d groups, %d held", len(c.sources), len(c.tasks), len(c.groups), c.held)
	}
	for n := c.nodeList.head; n != nil; n = n.next {
		if n.charged != 0 || n.heldHead != nil || len(n.tasks) > 0 {
			return fmt.Errorf("node %s of the finished core is charged %d bytes", n.id, n.charged)
		}
	}
	return nil
}
