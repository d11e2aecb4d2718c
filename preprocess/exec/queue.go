package exec

// queue holds the ready parts of one stage that wait for one node, or for any where node is nil, in stream order.
type queue struct {
	node    *node
	parts   *heap[*part]
	waiting int32 // its place in stageState.waiting
}

func newQueue(n *node) *queue {
	return &queue{node: n, waiting: -1, parts: newHeap((*part).before, func(p *part) *int32 { return &p.queueAt })}
}

// group is a set of source partitions that go to one node by preference.
type group struct {
	key  uint64
	node *node
	live int
	// waiting are source partitions that were put into the queue for any node; some may have left it.
	waiting []*part
}

// usable reports whether n takes new source partitions.
func usable(n *node) bool { return n != nil && !n.dead && !n.draining }

// enqueue puts a ready part where it waits for a task: at the node that has it, or has its group, or anywhere.
func (c *Core) enqueue(p *part) {
	s := int(p.stage)
	st := c.stages[s]
	q := st.anywhere
	switch g := p.src.group; {
	case s > 0:
		if n := p.node; !n.dead && c.capable(n, s) {
			q = n.local[s]
		}
	case g == nil:
	case usable(g.node):
		q = g.node.local[s]
	default:
		g.node = nil
		g.waiting = append(g.waiting, p)
	}
	p.queue = q
	q.parts.push(p)
	c.requeued(q, st)
	if p.src.urgent {
		st.urgent.push(p)
	}
}

// dequeue takes a ready part out of its queue.
func (c *Core) dequeue(p *part) {
	st := c.stages[p.stage]
	q := p.queue
	p.queue = nil
	q.parts.remove(p)
	c.requeued(q, st)
	st.urgent.remove(p)
}

// requeued restores what depends on the content of a queue.
func (c *Core) requeued(q *queue, st *stageState) {
	if q.node == nil {
		return
	}
	// The earliest part of the queue is its key, so it may have moved.
	st.waiting.put(q, q.parts.len() > 0)
	c.markDirty(q.node)
}

// settleGroup gives a group to the node that got its first member, and lets the others wait there.
func (c *Core) settleGroup(g *group, n *node) {
	if g == nil || g.node != nil || !usable(n) {
		return
	}
	g.node = n
	waiting := g.waiting
	g.waiting = nil
	for _, p := range waiting {
		if p.queue == c.stages[0].anywhere {
			c.dequeue(p)
			c.enqueue(p)
		}
	}
}

func queueBefore(a, b *queue) bool { return a.parts.items[0].before(b.parts.items[0]) }
