package exec

// policy is what differs between ways to execute a plan; slots, bytes, recovery and the order within a stage do not.
type policy interface {
	// begin is called before decisions are made.
	begin(c *Core)
	// overlaps reports whether later stages are to run while earlier ones do, and the head before all else.
	overlaps() bool
	// refuse says why stage s may not start another task on n though slots and bytes allow it; 0 if it may.
	refuse(c *Core, n *node, s int) Reason
	// before reports whether n should rather run stage s than stage t, which comes later.
	before(n *node, s, t int) bool
	// stuck is called when nothing runs and nothing may; it reports whether something may now.
	stuck(c *Core) bool
}

func newPolicy(p Policy) policy {
	switch p {
	case PolicyStaged:
		return &staged{}
	case PolicyStatic:
		return static{}
	case PolicyStreaming:
	}
	return streaming{}
}

// streaming gives a slot to the stage whose outputs are in shortest supply.
type streaming struct{}

func (streaming) begin(*Core)                     {}
func (streaming) overlaps() bool                  { return true }
func (streaming) refuse(*Core, *node, int) Reason { return 0 }
func (streaming) stuck(*Core) bool                { return false }
func (streaming) before(n *node, s, t int) bool   { return n.unread[s] < n.unread[t] }

// staged runs one stage at a time. A stage that can't go on because memory is full gives way to the next, so that the
// batch is as large as the budget allows.
type staged struct{ stage int }

func (p *staged) begin(c *Core) {
	for range c.stages {
		if c.open[p.stage] > 0 {
			return
		}
		p.stage = (p.stage + 1) % len(c.stages)
		c.allDirty()
	}
}

func (*staged) overlaps() bool { return false }

func (p *staged) refuse(_ *Core, _ *node, s int) Reason {
	if s != p.stage {
		return ReasonOrder
	}
	return 0
}

func (*staged) before(*node, int, int) bool { return false }

func (p *staged) stuck(c *Core) bool {
	for range len(c.stages) - 1 {
		p.stage = (p.stage + 1) % len(c.stages)
		c.allDirty()
		if c.launchAll() {
			return true
		}
	}
	p.stage = (p.stage + 1) % len(c.stages)
	return false
}

// static gives each stage the same share of the slots that it has in common with other stages, and of the budget.
type static struct{}

func (static) begin(*Core)                 {}
func (static) overlaps() bool              { return false }
func (static) before(*node, int, int) bool { return false }
func (static) stuck(*Core) bool            { return false }

func (static) refuse(c *Core, n *node, s int) Reason {
	switch {
	case n.runs[s] >= c.width(n, s):
		return ReasonSlots
	case n.unread[s] >= n.budget/int64(len(c.stages)):
		return ReasonDownstreamFull
	}
	return 0
}

// width is how many tasks of stage s may run on n under the static policy: at least one.
func (c *Core) width(n *node, s int) int {
	width := maxSlots
	for _, r := range c.stages[s].takes {
		sharers := 0
		for t := range c.stages {
			for _, other := range c.stages[t].takes {
				if other.index == r.index {
					sharers++
				}
			}
		}
		width = min(width, n.total[r.index]/sharers/r.slots)
	}
	return max(1, width)
}

func (c *Core) allDirty() {
	for n := c.nodeList.head; n != nil; n = n.next {
		c.markDirty(n)
	}
}
