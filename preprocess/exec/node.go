package exec

import (
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/errkind"
)

// node is a worker process that runs tasks and holds partitions.
type node struct {
	id    NodeID
	order uint64 // in which it joined: breaks ties

	total, free []int // slots by index of resource
	budget      int64
	reserve     int64 // the part of budget kept for replays and awaited source partitions
	charged     int64 // heldBytes and the reserves of running tasks
	heldBytes   int64
	// unread are the bytes of a stage's outputs that are held here and that nobody took yet; runs are its tasks.
	unread []int64
	runs   []int
	// headroom is kept free of new source partitions for the later stages of those admitted before; later is what the
	// running tasks of these stages have of it.
	headroom, later int64
	// promised is what running tasks of the first stage are expected to make beyond what is charged for them.
	promised int64
	// admitted is when the last source partition was due (see settlePace); waits says that the next one is to wait until
	// admitAt.
	admitted, admitAt time.Duration
	waits             bool

	// over is the source partition that took the node over its budget, while it is over.
	over *source
	// orphans are its tasks of withdrawn source partitions that have not ended yet.
	orphans        int
	draining, dead bool
	dirty          bool

	local     []*queue // ready parts that are here or prefer it, by stage
	freeAt    []int32  // places in stageState.free
	heldHead  *part
	heldCount int
	tasks     map[TaskID]*task
	paused    *heap[*task]

	prev, next *node
}

// join adds a node.
func (c *Core) join(ev NodeJoined) error {
	if ev.Node == "" || ev.BudgetBytes <= 0 || ev.BudgetBytes > Unlimited {
		return errkind.Errorf(errkind.Invalid, "node %q joins with a budget of %d bytes; give it a name and a budget above 0", ev.Node, ev.BudgetBytes)
	}
	if c.nodes[ev.Node] != nil {
		return errkind.Errorf(errkind.Conflict, "node %q joins but is already there; report it lost first", ev.Node)
	}
	for _, name := range slices.Sorted(maps.Keys(ev.Slots)) {
		if n := ev.Slots[name]; n < 0 || n > maxSlots {
			return errkind.Errorf(errkind.Invalid, "node %q has %d slots of %q; give 0 to %d", ev.Node, n, name, maxSlots)
		}
	}
	c.joined++
	n := &node{
		id: ev.Node, order: c.joined, budget: ev.BudgetBytes,
		total: make([]int, len(c.resources)), free: make([]int, len(c.resources)),
		unread: make([]int64, len(c.stages)), runs: make([]int, len(c.stages)), freeAt: make([]int32, len(c.stages)),
		local: make([]*queue, len(c.stages)), tasks: map[TaskID]*task{},
		paused: newHeap(func(a, b *task) bool { return a.part.before(b.part) }, func(t *task) *int32 { return &t.pausedAt }),
	}
	for i, name := range c.resources {
		n.total[i], n.free[i] = ev.Slots[name], ev.Slots[name]
	}
	for s := range c.stages {
		n.freeAt[s] = -1
		n.local[s] = newQueue(n)
	}
	n.reserve = int64(float64(n.budget) * c.cfg.ReplayReserve)
	n.headroom = c.headroom(n)
	c.nodes[ev.Node] = n
	c.nodeList.push(n)
	c.touch(n)
	return nil
}

// fits reports whether n has free slots for one more task of stage s.
func (c *Core) fits(n *node, s int) bool {
	for _, r := range c.stages[s].takes {
		if n.free[r.index] < r.slots {
			return false
		}
	}
	return true
}

// capable reports whether n could run stage s with all of its slots free.
func (c *Core) capable(n *node, s int) bool {
	for _, r := range c.stages[s].takes {
		if n.total[r.index] < r.slots {
			return false
		}
	}
	return true
}

// parallel is how many tasks of stage s the node could run if it ran nothing else.
func (c *Core) parallel(n *node, s int) int {
	most := maxSlots
	for _, r := range c.stages[s].takes {
		most = min(most, n.total[r.index]/r.slots)
	}
	return most
}

// touch restores what depends on a node's slots and bytes after these have changed.
func (c *Core) touch(n *node) {
	if n.dead {
		return
	}
	for s := range c.stages {
		c.stages[s].free.put(n, c.fits(n, s) && !(n.draining && s == 0) && !c.keptFrom(n, s))
	}
	c.markDirty(n)
}

func (c *Core) markDirty(n *node) {
	if !n.dirty && !n.dead {
		n.dirty = true
		c.dirty = append(c.dirty, n)
	}
}

// charge adds to the bytes charged to n.
func (c *Core) charge(n *node, bytes int64) {
	n.charged += bytes
	if n.over != nil && n.charged <= n.budget {
		n.over = nil
	}
	c.touch(n)
}

// hold puts a part on a node. Its bytes are charged by the caller, who may have them charged already.
func (c *Core) hold(p *part, n *node) {
	p.node = n
	p.nodePrev, p.nodeNext = nil, n.heldHead
	if n.heldHead != nil {
		n.heldHead.nodePrev = p
	}
	n.heldHead = p
	n.heldCount++
	n.heldBytes += p.bytes
	c.held++
	st := c.made(p)
	st.bytes += p.bytes
	st.outputs++
}

// drop takes a part off its node and returns its bytes to it.
func (c *Core) drop(p *part) {
	n := p.node
	if n == nil {
		return
	}
	c.markTaken(p)
	if p.nodePrev != nil {
		p.nodePrev.nodeNext = p.nodeNext
	} else {
		n.heldHead = p.nodeNext
	}
	if p.nodeNext != nil {
		p.nodeNext.nodePrev = p.nodePrev
	}
	p.node, p.nodePrev, p.nodeNext = nil, nil, nil
	n.heldCount--
	n.heldBytes -= p.bytes
	c.held--
	st := c.made(p)
	st.bytes -= p.bytes
	st.outputs--
	c.charge(n, -p.bytes)
}

// made is the stage that makes p.
func (c *Core) made(p *part) *stageState { return c.stages[p.stage-1] }

// markUnread and markTaken keep the bytes that wait for a reader.
func (c *Core) markUnread(p *part, t *task) {
	p.maker = t
	t.unread++
	p.node.unread[p.stage-1] += p.bytes
	c.made(p).unread += p.bytes
}

func (c *Core) markTaken(p *part) {
	t := p.maker
	if t == nil {
		return
	}
	p.maker = nil
	t.unread--
	p.node.unread[p.stage-1] -= p.bytes
	c.made(p).unread -= p.bytes
	c.markDirty(p.node)
}

// drain moves the source partitions that wait for n elsewhere.
func (c *Core) drain(id NodeID) {
	n := c.nodes[id]
	if n == nil {
		return
	}
	n.draining = true
	c.requeueAll(n, 0)
	c.touch(n)
}

// requeueAll empties a local queue of a node that no longer takes what is in it.
func (c *Core) requeueAll(n *node, s int) {
	for {
		p, ok := n.local[s].parts.top()
		if !ok {
			return
		}
		c.dequeue(p)
		c.enqueue(p)
	}
}

// lose makes everything that ran or was held on a node be done again elsewhere.
func (c *Core) lose(id NodeID) {
	n := c.nodes[id]
	if n == nil {
		return
	}
	n.dead = true
	delete(c.nodes, id)
	c.nodeList.remove(n)
	for s := range c.stages {
		c.stages[s].free.remove(n)
	}
	if c.reserved == n {
		c.reserved = nil
	}
	// Tasks first: what they ran on is then in a queue and not running, so that the loss of held parts below finds
	// no task that could still make them. Sorted, as the order of a map must not decide anything.
	for _, id := range slices.Sorted(maps.Keys(n.tasks)) {
		t := n.tasks[id]
		c.endTask(t)
		if !t.orphan {
			c.retry(t.part)
		}
	}
	for n.heldHead != nil {
		p := n.heldHead
		if p.state == ready {
			c.dequeue(p)
		}
		c.drop(p)
		if p.state != running { // else it runs elsewhere on a copy, and is needed again only if that fails
			c.setState(p, absent)
			c.derive(p.parent)
		}
	}
	for s := range c.stages {
		c.requeueAll(n, s)
	}
}

// nodeRing is the list of nodes in the order in which they joined.
type nodeRing struct{ head, tail *node }

func (l *nodeRing) push(n *node) {
	n.prev = l.tail
	if l.tail != nil {
		l.tail.next = n
	} else {
		l.head = n
	}
	l.tail = n
}

func (l *nodeRing) remove(n *node) {
	if n.prev != nil {
		n.prev.next = n.next
	} else {
		l.head = n.next
	}
	if n.next != nil {
		n.next.prev = n.prev
	} else {
		l.tail = n.prev
	}
	n.prev, n.next = nil, nil
}
