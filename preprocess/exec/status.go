package exec

import (
	"cmp"
	"slices"
)

// Waiting says what waits and why, as of the last Decide, ordered by stage, node and reason. All that waits in one
// place has the reason of its first. It costs time in proportion to the nodes where something waits.
func (c *Core) Waiting() []Wait {
	var waits []Wait
	for s := range c.stages {
		st := c.stages[s]
		if k := st.anywhere.parts.len(); k > 0 {
			waits = append(waits, Wait{Stage: s, Reason: c.whyAnywhere(s), Count: k})
		}
		for _, q := range st.waiting.items {
			// What could run here but did not is behind something that comes first.
			reason := cmp.Or(c.refuse(q.parts.items[0], q.node), ReasonOrder)
			waits = append(waits, Wait{Stage: s, Node: q.node.id, Reason: reason, Count: q.parts.len()})
		}
		if st.absent > 0 {
			waits = append(waits, Wait{Stage: s, Reason: ReasonOrder, Count: st.absent})
		}
	}
	for _, t := range c.paused.items {
		reason := cmp.Or(c.mayGrow(t, max(0, c.nextOutput(t)-t.reserve)), ReasonOrder)
		waits = append(waits, Wait{Stage: int(t.part.stage), Node: t.node.id, Reason: reason, Count: 1})
	}
	slices.SortFunc(waits, func(a, b Wait) int {
		return cmp.Or(cmp.Compare(a.Stage, b.Stage), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Reason, b.Reason))
	})
	merged := waits[:0]
	for _, w := range waits {
		if k := len(merged) - 1; k >= 0 && merged[k].Stage == w.Stage && merged[k].Node == w.Node && merged[k].Reason == w.Reason {
			merged[k].Count += w.Count
			continue
		}
		merged = append(merged, w)
	}
	return merged
}

// whyAnywhere is the reason of parts that any node may take: that of the node with most room.
func (c *Core) whyAnywhere(s int) Reason {
	n, ok := c.stages[s].free.top()
	if !ok {
		return ReasonSlots
	}
	return cmp.Or(c.refuse(c.stages[s].anywhere.parts.items[0], n), ReasonOrder)
}

// Snapshot is the present state. It costs time in proportion to the number of nodes.
func (c *Core) Snapshot() Snapshot {
	s := Snapshot{Sources: len(c.sources), Partitions: c.stages[0].queued + c.stages[0].running + c.held}
	for n := c.nodeList.head; n != nil; n = n.next {
		status := NodeStatus{
			Node: n.id, Draining: n.draining, SlotsUsed: map[string]int{}, SlotsTotal: map[string]int{},
			BytesCharged: n.charged, BytesHeld: n.heldBytes, BudgetBytes: n.budget,
			Tasks: len(n.tasks), Paused: n.paused.len(), Held: n.heldCount,
		}
		for i, name := range c.resources {
			status.SlotsTotal[name] = n.total[i]
			status.SlotsUsed[name] = n.total[i] - n.free[i]
		}
		s.Nodes = append(s.Nodes, status)
	}
	for i := range c.stages {
		st := c.stages[i]
		mean := st.spec.ExpectBytes
		if st.est.tasks > 0 {
			mean = clampBytes(st.est.out)
		}
		s.Stages = append(s.Stages, StageStatus{
			Name: st.spec.Name, Queued: st.queued, Running: st.running, Done: st.done,
			Bytes: st.bytes, UnreadBytes: st.unread, Outputs: st.outputs, MeanBytes: mean, MeanSeconds: st.est.seconds,
		})
	}
	return s
}
