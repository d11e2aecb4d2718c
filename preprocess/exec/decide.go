package exec

import (
	"slices"
)

// Decide appends the decisions that are possible now to dst, and counts them as carried out. Without an event in
// between, a second call appends nothing. Decisions are to be carried out in their order.
//
// The order of choice is: what the earliest unfinished source partition and awaited ones need, paused tasks, then for
// each node the stage with the fewest bytes that wait to be taken, the most downstream on a tie (but the first stage where
// the node is behind with it), then work that any node may take, then work that waits for another node.
func (c *Core) Decide(dst []Decision) []Decision {
	for more := true; more; {
		c.policy.begin(c)
		c.updateHead()
		if c.policy.overlaps() {
			for c.launchUrgent(); c.reserve(); {
				c.launchUrgent()
			}
		}
		c.pauseStarved()
		more = c.launchAll()
		if !more && c.idle() {
			// Law of progress: whatever a policy wants, something runs if anything is left to do.
			more = c.policy.stuck(c) || c.launchUrgent()
		}
	}
	c.preempt()
	for _, d := range c.pending {
		if !d.node.dead && (d.about == nil || !d.about.ended) {
			dst = append(dst, d.what)
		}
	}
	clear(c.pending)
	c.pending = c.pending[:0]
	return dst
}

// idle reports whether nothing goes on though something is left to do.
func (c *Core) idle() bool { return len(c.tasks) == c.paused.len() && c.unfinished.len() > 0 }

// updateHead finds the earliest unfinished source partition.
func (c *Core) updateHead() {
	head, _ := c.unfinished.top()
	if head == nil {
		c.head = nil
		return
	}
	if c.head != head {
		c.head = head
		c.makeUrgent(head)
	}
}

// launchUrgent launches what source partitions need that come before all else, the most downstream stage first.
func (c *Core) launchUrgent() bool {
	launched := false
	for s := range slices.Backward(c.stages) {
		for {
			p, ok := c.stages[s].urgent.top()
			if !ok {
				break
			}
			n := c.urgentNode(p)
			if n == nil {
				break
			}
			c.launch(p, n)
			launched = true
		}
	}
	return launched
}

// urgentNode is the node to run an urgent part on: where it waits or else the one with most room, within their budgets
// or else, if it may, beyond them. It is nil if neither has slots and bytes.
func (c *Core) urgentNode(p *part) *node {
	s := int(p.stage)
	here := p.queue.node
	if here != nil && (!c.fits(here, s) || here.draining && s == 0) {
		here = nil // slots that are reserved are so for the same source partition
	}
	other, _ := c.stages[s].free.top()
	for _, n := range [2]*node{here, other} {
		if n == nil {
			continue
		}
		if _, refused := c.cost(p, n); refused == 0 {
			return n
		}
	}
	for _, n := range [2]*node{here, other} {
		if n != nil && c.mayOverdraw(n, p.src) {
			return n
		}
	}
	return nil
}

// pauseStarved gives tasks that made an output what they need for the next, or pauses them.
func (c *Core) pauseStarved() {
	for i, t := range c.starved {
		c.starved[i] = nil
		if t.ended || t.stopping || t.paused {
			continue
		}
		if c.grow(t) != 0 {
			c.pause(t)
			c.pending = append(c.pending, addressed{node: t.node, about: t, what: Pause{Task: t.id, Attempt: t.attempt, Node: t.node.id}})
		}
	}
	c.starved = c.starved[:0]
}

// pause counts a task as one that waits for room.
func (c *Core) pause(t *task) {
	t.paused, t.wasPaused = true, true
	t.node.paused.push(t)
	c.paused.push(t)
}

// resume lets paused tasks of n go on, the earliest first.
func (c *Core) resume(n *node) {
	if n.paused.len() == 0 {
		return
	}
	waiting := slices.Clone(n.paused.items)
	slices.SortFunc(waiting, func(a, b *task) int { return a.part.id.Compare(b.part.id) })
	for _, t := range waiting {
		if c.grow(t) == 0 {
			t.paused, t.blocked = false, false
			n.paused.remove(t)
			c.paused.remove(t)
			c.pending = append(c.pending, addressed{node: n, about: t, what: Resume{Task: t.id, Attempt: t.attempt, Node: n.id}})
		}
	}
}

// launchAll launches what slots and bytes allow.
func (c *Core) launchAll() bool {
	launched := false
	for {
		switch {
		case c.takeTurns(true), c.handOut(), c.takeTurns(false), c.steal():
			launched = true
		default:
			return launched
		}
	}
}

// takeTurns launches what waits for the nodes that have changed. A node whose best choice is work that any node could
// take is deferred, if mayDefer, so that such work goes to the node with most room. It takes such work itself when that
// node may not.
func (c *Core) takeTurns(mayDefer bool) bool {
	launched := false
	if !mayDefer {
		c.dirty = append(c.dirty, c.deferred...)
		clear(c.deferred)
		c.deferred = c.deferred[:0]
	}
	for i := 0; i < len(c.dirty); i++ {
		n := c.dirty[i]
		c.dirty[i] = nil
		if n.dead {
			continue
		}
		c.resume(n)
		for {
			p, local := c.best(n)
			if p == nil {
				break
			}
			if !local && mayDefer {
				c.deferred = append(c.deferred, n)
				break
			}
			c.launch(p, n)
			launched = true
		}
		n.dirty = false // its own launches are no reason for another turn
	}
	c.dirty = c.dirty[:0]
	return launched
}

// best is the part that n should run next, and whether it waits for n or for any node.
func (c *Core) best(n *node) (best *part, local bool) {
	bestStage := -1
	for s := range slices.Backward(c.stages) {
		if n.freeAt[s] < 0 {
			continue
		}
		p, here := n.local[s].parts.top()
		if !here {
			p, _ = c.stages[s].anywhere.parts.top()
		}
		if p == nil || c.refuse(p, n) != 0 {
			continue
		}
		if bestStage < 0 || c.policy.before(n, s, bestStage) || s == 0 && c.behind(n) {
			best, local, bestStage = p, here, s
		}
	}
	return best, local
}

// handOut gives the earliest part that any node may take to the node with most room.
func (c *Core) handOut() bool {
	for s := range slices.Backward(c.stages) {
		p, ok := c.stages[s].anywhere.parts.top()
		if !ok {
			continue
		}
		if n, ok := c.stages[s].free.top(); ok && c.refuse(p, n) == 0 {
			c.launch(p, n)
			return true
		}
	}
	return false
}

// steal gives the earliest part that waits for a node to another that has nothing better to do.
func (c *Core) steal() bool {
	for s := range slices.Backward(c.stages) {
		q, ok := c.stages[s].waiting.top()
		if !ok {
			continue
		}
		n, ok := c.stages[s].free.top()
		if !ok || n == q.node {
			continue
		}
		if p := q.parts.items[0]; c.refuse(p, n) == 0 {
			c.launch(p, n)
			return true
		}
	}
	return false
}
