package exec

import (
	"slices"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/lineage"
)

// offer adds a source partition.
func (c *Core) offer(ev Offered) error {
	switch {
	case ev.ID.Depth != 0:
		return errkind.Errorf(errkind.Invalid, "partition %s is offered but is not a source partition", ev.ID)
	case ev.Rows < 0 || ev.ExpectBytes < 0 || ev.ExpectBytes > Unlimited:
		return errkind.Errorf(errkind.Invalid, "source partition %s is offered with %d rows and %d expected bytes; give 0 or more", ev.ID, ev.Rows, ev.ExpectBytes)
	case c.sources[ev.ID] != nil:
		return errkind.Errorf(errkind.Conflict, "source partition %s is offered but is live already; withdraw it first", ev.ID)
	}
	for _, id := range ev.Skip {
		if !ev.ID.IsAncestorOf(id) {
			return errkind.Errorf(errkind.Invalid, "source partition %s is offered without %s, which is not made from it", ev.ID, id)
		}
	}
	src := &source{rows: ev.Rows, expect: ev.ExpectBytes, replay: ev.Replay, openAt: -1}
	src.skip = slices.Compact(slices.SortedFunc(slices.Values(ev.Skip), lineage.ID.Compare))
	src.root = newPart(ev.ID, src, nil)
	if ev.Affinity != 0 {
		g := c.groups[ev.Affinity]
		if g == nil {
			g = &group{key: ev.Affinity}
			c.groups[ev.Affinity] = g
		}
		g.live++
		src.group = g
	}
	c.sources[ev.ID] = src
	c.link(src)
	c.setState(src.root, ready)
	c.enqueue(src.root)
	return nil
}

// link puts src into the list of live source partitions. They are nearly always offered in order, so the search from
// the end is short.
func (c *Core) link(src *source) {
	var after *source
	at := c.sourceTail
	for at != nil && sourceBefore(src, at) {
		at, after = at.prev, at
	}
	src.prev, src.next = at, after
	if at != nil {
		at.next = src
	}
	if after != nil {
		after.prev = src
	} else {
		c.sourceTail = src
	}
}

// forget removes a source partition of which nothing is left.
func (c *Core) forget(src *source) {
	if src.prev != nil {
		src.prev.next = src.next
	}
	if src.next != nil {
		src.next.prev = src.prev
	} else {
		c.sourceTail = src.prev
	}
	src.prev, src.next = nil, nil
	delete(c.sources, src.root.id)
	if g := src.group; g != nil {
		g.live--
		if g.live == 0 {
			delete(c.groups, g.key)
		}
	}
	if c.head == src {
		c.head = nil
	}
}

// withdraw gives a source partition up with all that is made from it.
func (c *Core) withdraw(src *source) {
	c.discard(src.root)
	c.forget(src)
}

func (c *Core) discard(p *part) {
	if p.state == gone {
		return
	}
	for _, k := range p.kids {
		c.discard(k)
	}
	if t := p.run; t != nil {
		p.run = nil
		t.orphan = true
		t.node.orphans++
		c.stop(t)
	}
	if p.state == ready {
		c.dequeue(p)
	}
	if n := p.node; n != nil {
		c.drop(p)
		c.pending = append(c.pending, addressed{node: n, what: Discard{Node: n.id, ID: p.id, Task: p.parent.task, Attempt: p.accounted}})
	}
	c.setState(p, gone)
	p.kids = nil
}

// moreUrgent puts what a rank waits for before the earliest unfinished source partition: the rank knows better.
func moreUrgent(a, b *part) bool {
	if a.src.needed != b.src.needed {
		return a.src.needed
	}
	return a.before(b)
}

// makeUrgent lets a source partition that has become the head or needed use what is kept for such.
func (c *Core) makeUrgent(src *source) {
	src.urgent = true
	c.hurry(src.root)
}

func (c *Core) hurry(p *part) {
	switch p.state {
	case ready:
		c.stages[p.stage].urgent.put(p, true)
	case running:
		c.markDirty(p.run.node) // where it may be paused
	case absent, used, held, gone:
	}
	for _, k := range p.kids {
		c.hurry(k)
	}
}

// derive makes p's task run again because an output of it is absent.
func (c *Core) derive(p *part) {
	if p.state != used {
		return // it is going to run, or runs: then its end shows that something is absent
	}
	c.again(p)
}

// again puts p up for a task, or, if it is away itself, its parent.
func (c *Core) again(p *part) {
	if p.lost() {
		c.setState(p, absent)
		c.derive(p.parent)
		return
	}
	c.setState(p, ready)
	c.enqueue(p)
}

// retry puts p up again after its task has ended without finishing.
func (c *Core) retry(p *part) {
	if p.counted && p.absentKids == 0 { // all that it was to make again was freed meanwhile
		c.usedUp(p)
		c.prune(p)
		return
	}
	c.again(p)
}

// usedUp ends p's part in things: its task has nothing more to make of it.
func (c *Core) usedUp(p *part) {
	if n := p.node; n != nil {
		c.drop(p)
		c.pending = append(c.pending, addressed{node: n, what: FreeInput{Node: n.id, ID: p.id}})
	}
	c.setState(p, used)
}

// freed takes a final output back.
func (c *Core) freed(id lineage.ID) error {
	p := c.find(id)
	switch {
	case p == nil:
		return nil
	case int(p.stage) < len(c.stages):
		return errkind.Errorf(errkind.Invalid, "partition %s is freed but is not an output of the last stage", id)
	}
	switch p.state {
	case held:
		c.drop(p)
		c.setState(p, gone)
		c.prune(p.parent)
	case absent:
		c.setState(p, gone)
		c.settle(p.parent)
	case ready, running, used, gone:
	}
	return nil
}

// settle stops a replay of which nothing is needed any more, as far as it has not started.
func (c *Core) settle(p *part) {
	if p.counted && p.absentKids == 0 {
		switch p.state {
		case ready:
			c.dequeue(p)
			c.usedUp(p)
		case absent:
			c.setState(p, used)
			c.settle(p.parent)
		case running, used, held, gone:
		}
	}
	c.prune(p)
}

// prune removes p if nothing is left of it, and then its parent likewise.
func (c *Core) prune(p *part) {
	for p.state == used && p.counted && p.liveKids == 0 {
		c.setState(p, gone)
		p.kids = nil
		if p.parent == nil {
			c.forget(p.src)
			return
		}
		p = p.parent
	}
}
