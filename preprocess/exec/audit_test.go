package exec

import (
	"fmt"
	"slices"
)

// audit computes everything that a core keeps up to date from the partitions alone, the slow way, and compares.
func audit(c *Core) error {
	a := auditor{c: c, nodes: map[*node]*nodeSums{}, stages: make([]stageSums, len(c.stages)), open: make([]int, len(c.stages)+1)}
	for n := c.nodeList.head; n != nil; n = n.next {
		a.nodes[n] = &nodeSums{unread: make([]int64, len(c.stages)), runs: make([]int, len(c.stages)), free: slices.Clone(n.total)}
	}
	var head *source
	for _, src := range c.sources {
		before := a.unfinished
		a.part(src.root)
		if src.open != a.unfinished-before || (src.open > 0) != c.unfinished.has(src) {
			a.fail("source partition %s has %d unfinished parts, counted %d", src.root.id, a.unfinished-before, src.open)
		}
		if src.open > 0 && (head == nil || sourceBefore(src, head)) {
			head = src
		}
	}
	if head != c.head {
		a.fail("the head is not the earliest unfinished source partition")
	}
	for _, t := range c.tasks {
		a.task(t)
	}
	a.compare()
	if c.cfg.Policy == PolicyStreaming {
		a.conserving()
	}
	return a.err
}

type nodeSums struct {
	held, reserves, later int64
	promised              int64
	parts, tasks, orphans int
	unread                []int64
	runs, free            []int
}

type stageSums struct {
	queued, running, absent, outputs int
	bytes, unread                    int64
}

type auditor struct {
	c          *Core
	err        error
	nodes      map[*node]*nodeSums
	stages     []stageSums
	open       []int
	unfinished int
}

func (a *auditor) fail(format string, args ...any) {
	if a.err == nil {
		a.err = fmt.Errorf("audit: "+format, args...)
	}
}

func (a *auditor) part(p *part) {
	if p.state.unfinished() {
		a.unfinished++
		a.open[p.stage]++
	}
	last := int(p.stage) == len(a.c.stages)
	switch p.state {
	case absent:
		if !last {
			a.stages[p.stage].absent++
		}
	case ready:
		a.stages[p.stage].queued++
		if p.queue == nil || p.queueAt < 0 || p.src.urgent != (p.urgentAt >= 0) || p.queue.node != nil && p.queue.node.dead {
			a.fail("ready partition %s is in no queue", p.id)
		}
	case running:
		a.stages[p.stage].running++
		if p.run == nil || p.run.part != p || p.run.node.dead {
			a.fail("running partition %s has no task", p.id)
		}
	case used, held, gone:
	}
	here := p.state == held || p.state == ready && p.stage > 0
	if here && (p.node == nil || p.node.dead) || p.node != nil && !here && p.state != running {
		a.fail("partition %s is in state %d and on node %v", p.id, p.state, p.node)
	}
	if p.node != nil {
		n, st := a.nodes[p.node], &a.stages[p.stage-1]
		n.parts++
		n.held += p.bytes
		st.outputs++
		st.bytes += p.bytes
		if p.maker != nil {
			n.unread[p.stage-1] += p.bytes
			st.unread += p.bytes
		}
	}
	var live, away int32
	for i, k := range p.kids {
		if i > 0 && p.kids[i-1].id.Compare(k.id) >= 0 {
			a.fail("outputs of %s are not in order", p.id)
		}
		if k.state != gone {
			live++
		}
		if k.state == absent {
			away++
		}
		a.part(k)
	}
	if p.state != gone && (live != p.liveKids || away != p.absentKids) {
		a.fail("partition %s has %d live and %d absent outputs, counted %d and %d", p.id, live, away, p.liveKids, p.absentKids)
	}
	if p.state == used && (away > 0 || live == 0 || !p.counted) {
		a.fail("partition %s is used with %d absent and %d live outputs", p.id, away, live)
	}
}

func (a *auditor) task(t *task) {
	n := a.nodes[t.node]
	if n == nil || t.node.tasks[t.id] != t || !t.orphan && t.part.run != t {
		a.fail("task %d is lost", t.id)
		return
	}
	n.tasks++
	n.runs[t.part.stage]++
	n.reserves += t.reserve + t.copied
	if t.part.stage > 0 {
		n.later += t.reserve
	} else {
		n.promised += max(0, t.expected-t.produced-t.reserve)
	}
	if t.orphan {
		n.orphans++
	}
	for _, r := range a.c.stages[t.part.stage].takes {
		n.free[r.index] -= r.slots
	}
	if t.paused != a.c.paused.has(t) || t.paused != t.node.paused.has(t) {
		a.fail("task %d is paused or not", t.id)
	}
}

func (a *auditor) compare() {
	for n, s := range a.nodes {
		if n.charged != s.held+s.reserves || n.heldBytes != s.held || n.later != s.later || n.promised != s.promised {
			a.fail("node %s is charged %d, holds %d, later stages %d; it has %d, %d and %d", n.id, n.charged, n.heldBytes, n.later, s.held+s.reserves, s.held, s.later)
		}
		if n.heldCount != s.parts || len(n.tasks) != s.tasks || n.orphans != s.orphans {
			a.fail("node %s counts %d partitions, %d tasks, %d orphans", n.id, n.heldCount, len(n.tasks), n.orphans)
		}
		if !slices.Equal(n.unread, s.unread) || !slices.Equal(n.runs, s.runs) || !slices.Equal(n.free, s.free) {
			a.fail("node %s has unread %v, runs %v, free %v; expected %+v", n.id, n.unread, n.runs, n.free, *s)
		}
	}
	for i, s := range a.stages {
		st := a.c.stages[i]
		if s != (stageSums{st.queued, st.running, st.absent, st.outputs, st.bytes, st.unread}) {
			a.fail("stage %d expected %+v", i, s)
		}
	}
	if !slices.Equal(a.open, a.c.open) {
		a.fail("unfinished inputs by stage are %v, counted %v", a.open, a.c.open)
	}
}

// conserving checks by a search over all nodes that nothing which may run waits.
func (a *auditor) conserving() {
	c := a.c
	for s := range c.stages {
		heads := []*part{}
		if p, ok := c.stages[s].anywhere.parts.top(); ok {
			heads = append(heads, p)
		}
		for n := range a.nodes {
			if (n.freeAt[s] >= 0) != (c.fits(n, s) && !(n.draining && s == 0) && !c.keptFrom(n, s)) {
				a.fail("node %s has free slots for stage %d or not", n.id, s)
			}
			if p, ok := n.local[s].parts.top(); ok {
				// Times that tasks take on other nodes change a node's pace; that is looked at with its next event or tick.
				paced := s == 0 && len(c.stages) > 1 && len(a.nodes) > 1
				if !paced && c.refuse(p, n) == 0 {
					a.fail("partition %s waits on %s though it may run there", p.id, n.id)
				}
			}
		}
		for _, p := range heads {
			// Where the answer depends on more of a node than its room, or a part has more rights than others, the node
			// with most room need not be the first that may run it.
			known := c.stages[s].est.tasks > 0 || c.stages[s].spec.ExpectBytes > 0
			fresh := p.attempt == 0 && !p.src.replay && !p.src.urgent
			uniform := len(a.nodes) == 1 || len(c.stages) == 1 && known && fresh
			for n := range a.nodes {
				if uniform && c.refuse(p, n) == 0 {
					a.fail("partition %s waits though it may run on %s", p.id, n.id)
				}
			}
		}
	}
}
