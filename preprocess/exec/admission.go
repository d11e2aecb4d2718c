package exec

import (
	"math"
	"time"
)

// limit is how far the bytes charged to n may go when a task on p starts or grows.
func (c *Core) limit(p *part, n *node) int64 {
	switch {
	case p.src.urgent || p.src.replay || p.state == ready && p.attempt > 0 || p.attempt > 1:
		return n.budget
	case p.stage == 0:
		return n.budget - n.reserve - n.kept()
	}
	return n.budget - n.reserve
}

// kept is what of the headroom the later stages do not use yet.
func (n *node) kept() int64 { return max(0, n.headroom-n.later) }

// roomFor orders nodes by what they can take of stage s.
func (c *Core) roomFor(n *node, s int) int64 {
	room := n.budget - n.reserve - n.charged
	if s == 0 {
		room -= n.kept() + n.promised
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
	_, r := c.cost(p, n)
	return r
}

// cost is what a task on p is charged when it starts on n, or why it may not start.
func (c *Core) cost(p *part, n *node) (int64, Reason) {
	limit, need := c.limit(p, n), c.need(p, n)
	room := limit - n.charged
	if p.stage == 0 {
		return c.admit(p, n, need, room)
	}
	if need <= room {
		return need, 0
	}
	return 0, ReasonNodeMemory
}

// admit is cost for a source partition.
func (c *Core) admit(p *part, n *node, need, room int64) (int64, Reason) {
	paced := c.policy.overlaps() && len(c.stages) > 1 && p.attempt == 0 && !p.src.urgent
	// What is promised to running tasks is not charged, so that they can grow, but neither is it for others.
	if need <= room-n.promised {
		// Tasks that end at one time would fill a node that has not room for all of them, and then leave it empty. There
		// is room for this one, so it need not wait for the whole period, which is but measured.
		if paced && need > (room+n.charged)/int64(max(1, c.parallel(n, 0))) {
			if period, _ := c.pace(n); !c.due(n, period*3/4) {
				return 0, ReasonBudget
			}
		}
		return need, 0
	}
	if first := c.first(p, need); paced && first <= room && c.overcommits(n) {
		return first, 0
	}
	if need <= room+n.kept() {
		return 0, ReasonBudget
	}
	return 0, ReasonNodeMemory
}

// first is what a task on p needs to begin: it can be paused after its first outputs.
func (c *Core) first(p *part, need int64) int64 {
	st := c.stages[p.stage]
	one := st.spec.MaxOutputBytes
	if one == 0 {
		one = clampBytes(st.est.output)
	}
	if one == 0 || one > need/int64(c.cfg.MaxUnread) {
		return need
	}
	return one * int64(c.cfg.MaxUnread)
}

// overcommits reports whether n may admit a source partition although the expected output of all that runs is more than
// it has room for: a part of it will have been used up before the rest is made. That holds if source partitions are not
// admitted faster than the node can work them off, and the first stage has no more slots than its share of the work:
// its tasks may be paused for want of room, and must not keep from running what would make room.
func (c *Core) overcommits(n *node) bool {
	if n.paused.len() > 0 || c.preempted > 0 {
		return false
	}
	period, width := c.pace(n)
	return n.runs[0] < width && c.due(n, period)
}

// settlePace notes that a source partition was admitted to n. One that came a little late, since no slot was free just then,
// counts as having been in time, or n would fall behind by that each time; but no more than a fifth of a period is made
// good, as what is admitted sooner takes the memory of what makes room.
func (c *Core) settlePace(n *node) {
	period, _ := c.pace(n)
	n.admitted = min(c.now, max(n.admitted+period, c.now-period/5))
}

// behind reports whether n has little memory left and runs fewer tasks of the first stage than its share of the work. Then
// a slot goes to the first stage, if one may be admitted: later stages would only fill what comes after them faster, and
// run dry all together when the source partition that was not begun in time is missing.
func (c *Core) behind(n *node) bool {
	if !c.policy.overlaps() || len(c.stages) == 1 || n.charged < n.budget/2 {
		return false
	}
	period, width := c.pace(n)
	return period > 0 && n.runs[0] < width-1
}

// due reports whether the last source partition was admitted at least a period ago; else a tick brings n back.
func (c *Core) due(n *node, period time.Duration) bool {
	at := n.admitted + period
	if at <= c.now {
		return true
	}
	if n.waits {
		n.admitAt = min(n.admitAt, at)
		return false
	}
	n.waits, n.admitAt = true, at
	c.rated = append(c.rated, n)
	return false
}

// pace is the time that n needs for one source partition with all that is made from it: that of the resource with most
// work, as different resources work at the same time. (The sum over stages, as in the paper's Algorithm 2, takes them to
// work one after the other, and admits too little.) And it is the number of tasks of the first stage that run on average
// at this pace, rounded up, but so that each later stage can have a slot. Both are 0 before each stage was measured.
func (c *Core) pace(n *node) (period time.Duration, width int) {
	var longest float64
	width = maxSlots
	for r, total := range n.total {
		if total == 0 {
			continue
		}
		var first, all float64 // slot seconds of the first stage, and of all stages, for one source partition
		tasks, most := 1.0, 0  // tasks of a stage for one source partition; slots that a later stage takes
		for s := range c.stages {
			st := c.stages[s]
			if st.est.timed == 0 {
				return 0, 0
			}
			for _, t := range st.takes {
				if t.index != r {
					continue
				}
				all += tasks * st.est.seconds * float64(t.slots)
				if s == 0 {
					first = all
				} else {
					most = max(most, t.slots)
				}
			}
			tasks *= st.est.fanout
		}
		longest = max(longest, all/float64(total))
		if first > 0 && most > 0 {
			slots := c.slotsOf(0, r)
			share := int(math.Ceil(first / all * float64(total) / float64(slots)))
			// One more than the share, so that a slot that comes free a little early or late leaves no gap.
			width = min(width, share+1, (total-most)/slots)
		}
	}
	return time.Duration(longest * float64(time.Second)), width
}

// slotsOf is how many slots of resource r a task of stage s takes.
func (c *Core) slotsOf(s, r int) int {
	for _, t := range c.stages[s].takes {
		if t.index == r {
			return t.slots
		}
	}
	return 0
}

// NextTick is the time at which a Tick may allow more decisions without another event; false if there is none.
func (c *Core) NextTick() (time.Duration, bool) {
	var next time.Duration
	for i, n := range c.rated {
		if i == 0 || n.admitAt < next {
			next = n.admitAt
		}
	}
	return next, len(c.rated) > 0
}

// tick moves the clock.
func (c *Core) tick(now time.Duration) {
	c.now = max(c.now, now)
	still := c.rated[:0]
	for _, n := range c.rated {
		if n.admitAt > c.now && !n.dead {
			still = append(still, n)
			continue
		}
		n.waits = false
		c.markDirty(n)
	}
	clear(c.rated[len(still):])
	c.rated = still
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

// setReserve changes what a running task is charged for outputs to come.
func (c *Core) setReserve(t *task, to int64) {
	n := t.node
	if t.part.stage > 0 {
		n.later += to - t.reserve
	}
	n.charged += to - t.reserve
	t.reserve = to
	promised := max(0, t.expected-t.produced-t.reserve)
	if t.ended || t.part.stage > 0 {
		promised = 0
	}
	n.promised += promised - t.promised
	t.promised = promised
}

// grow sees that a running task has what it needs for its next output; if not, it says why.
func (c *Core) grow(t *task) Reason {
	n := t.node
	short := c.nextOutput(t) - t.reserve
	if short <= 0 {
		return 0
	}
	if !c.mayOverdraw(n, t.part.src) {
		if r := c.mayGrow(t, short); r != 0 {
			return r
		}
	}
	c.setReserve(t, t.reserve+short)
	c.touch(n)
	c.overdraw(n, t.part.src)
	return 0
}

// expectedNow is what t would be expected to make if it were launched now: others may have been measured meanwhile.
func (c *Core) expectedNow(t *task) int64 {
	if t.partial {
		return 0
	}
	return c.expect(t.part, t.node)
}

func (c *Core) mayGrow(t *task, short int64) Reason {
	switch {
	case t.unread >= c.cfg.MaxUnread && t.produced >= max(t.expected, c.expectedNow(t)):
		return ReasonDownstreamFull
	case t.node.charged+short > c.limit(t.part, t.node):
		return ReasonNodeMemory
	}
	return 0
}
