package exec

import "slices"

// preempt cancels the latest blocked tasks whose slots the head source partition lacks: a blocked task ends only when
// something else makes room, and that something may wait for the head. What they made stays.
func (c *Core) preempt() {
	if c.preempted > 0 || c.paused.len() == 0 || c.head == nil {
		return
	}
	for s := len(c.stages) - 1; s >= 0; s-- {
		if p := c.headPart(s); p == nil || c.stages[s].free.len() > 0 {
			continue
		}
		for _, t := range c.inTheWay(s) {
			t.preempted = true
			c.preempted++
			c.stop(t)
		}
		if c.preempted > 0 {
			return
		}
	}
}

// headPart is a ready part of stage s of the head, if there is one.
func (c *Core) headPart(s int) *part {
	for _, p := range c.stages[s].urgent.items {
		if p.src == c.head {
			return p
		}
	}
	return nil
}

// inTheWay are the latest blocked tasks of one node without which it could run a task of stage s; none where no node
// would have the slots without all of its blocked tasks.
func (c *Core) inTheWay(s int) []*task {
	blocked := slices.Clone(c.paused.items)
	slices.SortFunc(blocked, func(a, b *task) int { return b.part.id.Compare(a.part.id) })
	free := map[*node][]int{}
	for _, t := range blocked {
		n := t.node
		if !t.blocked || n.draining && s == 0 {
			continue
		}
		if free[n] == nil {
			free[n] = slices.Clone(n.free)
		}
		if !c.release(free[n], int(t.part.stage), s) {
			continue
		}
		var tasks []*task
		for _, u := range blocked {
			if u.node == n && u.blocked && u.part.id.Compare(t.part.id) >= 0 && c.shares(int(u.part.stage), s) {
				tasks = append(tasks, u)
			}
		}
		return tasks
	}
	return nil
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
