package exec

// limit is how far the bytes charged to n may go when a task on p starts or grows.
func (c *Core) limit(p *part, n *node) int64 {
	switch {
	case p.src.urgent || p.src.replay || p.attempt > 0 && p.state == ready || p.attempt > 1:
		return n.budget
	case p.stage == 0 && p.state == ready:
		return n.budget - n.reserve - n.kept()
	}
	return n.budget - n.reserve
}

// kept is what of the headroom the later stages do not use yet.
func (n *node) kept() int64 { return max(0, n.headroom-n.later) }

// setReserve changes what a running task is charged for outputs to come.
func (c *Core) setReserve(t *task, to int64) {
	if t.part.stage > 0 {
		t.node.later += to - t.reserve
	}
	t.node.charged += to - t.reserve
	t.reserve = to
}

// roomFor orders nodes by what they can take of stage s.
func (c *Core) roomFor(n *node, s int) int64 {
	room := n.budget - n.reserve - n.charged
	if s == 0 {
		room -= n.kept()
	}
	return room
}

// refuse says why a ready part may not run on n now; 0 if it may.
func (c *Core) refuse(p *part, n *node) Reason {
	s := int(p.stage)
	if n.freeAt[s] < 0 {
		return ReasonSlots
	}
	if r := c.policy.refuse(c, n, s); r != 0 {
		return r
	}
	return c.refuseBytes(p, n)
}

func (c *Core) refuseBytes(p *part, n *node) Reason {
	over := n.charged + c.need(p, n) - c.limit(p, n)
	switch {
	case over <= 0:
		return 0
	case p.stage == 0 && over <= n.kept():
		return ReasonBudget
	}
	return ReasonNodeMemory
}

// mayOverdraw reports whether src may take n over its budget: the earliest unfinished source partition, if no other
// has done so, or one that a rank waits for. Without the second, ranks whose next batch spans more source partitions
// than fit could wait for ever.
func (c *Core) mayOverdraw(n *node, src *source) bool {
	return src.needed || src == c.head && (n.over == nil || n.over == src || n.over.root.state == gone && n.orphans == 0)
}

// overdraw remembers who took n over its budget.
func (c *Core) overdraw(n *node, src *source) {
	if n.charged > n.budget && n.over != src && src == c.head && c.mayOverdraw(n, src) {
		n.over = src
	}
}

// grow sees that a running task has what it needs for its next output; false if it has to wait for it.
func (c *Core) grow(t *task) (Reason, bool) {
	n := t.node
	short := c.nextOutput(t) - t.reserve
	if short <= 0 {
		return 0, true
	}
	if !c.mayOverdraw(n, t.part.src) {
		switch {
		case t.produced >= t.expected && t.unread >= c.cfg.MaxUnread:
			return ReasonDownstreamFull, false
		case n.charged+short > c.limit(t.part, n):
			return ReasonNodeMemory, false
		}
	}
	c.setReserve(t, t.reserve+short)
	c.touch(n)
	c.overdraw(n, t.part.src)
	return 0, true
}
