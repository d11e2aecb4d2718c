package exec

import "slices"

// reserve keeps the free slots of one node together for what is awaited, or else for the head, where the next task of
// it takes several that are never free at one time: smaller tasks would take each one as it becomes free. It reports whether anything has changed.
func (c *Core) reserve() bool {
	var n *node
	stage := 0
	if c.head != nil {
		for s := len(c.stages) - 1; s >= 0 && n == nil; s-- {
			if st := c.stages[s]; st.wide && st.free.len() == 0 {
				if n = c.reservable(c.pressing(s)); n != nil && c.fits(n, s) {
					n = nil
				}
				stage = s
			}
		}
	}
	if n == c.reserved && (n == nil || stage == c.reservedFor) {
		return false
	}
	before := c.reserved
	c.reserved, c.reservedFor = n, stage
	for _, changed := range [2]*node{before, n} {
		if changed != nil {
			c.touch(changed)
		}
	}
	return true
}

// reservable is the node where p waits, or else the first that could run it.
func (c *Core) reservable(p *part) *node {
	if p == nil || p.queue.node != nil {
		if p == nil || !c.capable(p.queue.node, int(p.stage)) {
			return nil
		}
		return p.queue.node
	}
	if s := int(p.stage); c.reserved != nil && c.reservedFor == s && c.mayTake(c.reserved, s) {
		return c.reserved
	}
	for n := c.nodeList.head; n != nil; n = n.next {
		if c.mayTake(n, int(p.stage)) {
			return n
		}
	}
	return nil
}

// mayTake reports whether n could run stage s with all of its slots free.
func (c *Core) mayTake(n *node, s int) bool {
	return !n.dead && c.capable(n, s) && !(n.draining && s == 0)
}

// keptFrom reports whether the slots of n are reserved from stage s.
func (c *Core) keptFrom(n *node, s int) bool {
	return n == c.reserved && s != c.reservedFor && c.shares(s, c.reservedFor)
}

// preempt cancels the latest blocked tasks whose slots an awaited source partition or the head lacks: a blocked task
// ends only when something else makes room, and that something may wait for these. What it made stays.
func (c *Core) preempt() {
	if c.preempted > 0 || c.paused.len() == 0 || c.head == nil {
		return
	}
	for s := range slices.Backward(c.stages) {
		p := c.pressing(s)
		if p == nil || c.urgentNode(p) != nil {
			continue
		}
		for _, t := range c.inTheWay(p) {
			t.preempted = true
			c.preempted++
			c.stop(t)
		}
		if c.preempted > 0 {
			return
		}
	}
}

// pressing is the ready part of stage s that matters most: one that a rank waits for, or else one of the head.
func (c *Core) pressing(s int) *part {
	p, ok := c.stages[s].urgent.top()
	if !ok || p.src.needed || p.src == c.head {
		return p
	}
	for _, p := range c.stages[s].urgent.items {
		if p.src == c.head {
			return p
		}
	}
	return nil
}

// inTheWay are the latest blocked tasks of one node without which it could run p. There are none where a task that is
// not blocked has such slots, as these will be free in time.
func (c *Core) inTheWay(p *part) []*task {
	s := int(p.stage)
	blocked := slices.Clone(c.paused.items)
	slices.SortFunc(blocked, func(a, b *task) int { return b.part.id.Compare(a.part.id) })
	tasks := map[*node][]*task{}
	for _, t := range blocked {
		if t.blocked && c.shares(int(t.part.stage), s) && c.mayTake(t.node, s) {
			tasks[t.node] = append(tasks[t.node], t)
		}
	}
	for _, t := range blocked {
		n := t.node
		if len(tasks[n]) == 0 || len(tasks[n]) < c.sharing(n, s) {
			continue
		}
		if _, refused := c.cost(p, n); refused != 0 && !c.mayOverdraw(n, p.src) {
			continue
		}
		free := slices.Clone(n.free)
		for i, u := range tasks[n] {
			if c.release(free, int(u.part.stage), s) {
				return tasks[n][:i+1]
			}
		}
	}
	return nil
}

// sharing is the number of tasks on n that have slots which stage s takes too.
func (c *Core) sharing(n *node, s int) int {
	sum := 0
	for t, runs := range n.runs {
		if c.shares(t, s) {
			sum += runs
		}
	}
	return sum
}

// release adds what a task of stage from takes to free, and reports whether a task of stage s then fits.
func (c *Core) release(free []int, from, s int) bool {
	for _, r := range c.stages[from].takes {
		free[r.index] += r.slots
	}
	for _, r := range c.stages[s].takes {
		if free[r.index] < r.slots {
			return false
		}
	}
	return true
}

// shares reports whether two stages take slots of the same resource.
func (c *Core) shares(s, t int) bool {
	for _, a := range c.stages[s].takes {
		for _, b := range c.stages[t].takes {
			if a.index == b.index {
				return true
			}
		}
	}
	return false
}
