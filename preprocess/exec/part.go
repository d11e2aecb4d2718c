package exec

import (
	"slices"

	"github.com/millrace/millrace/preprocess/lineage"
)

// partState is where a partition is in its life.
type partState uint8

const (
	// absent: it is needed and nowhere; the task that makes it has to run (again).
	absent partState = iota + 1
	// ready: it waits in a queue for a task of its stage.
	ready
	// running: a task of its stage runs on it.
	running
	// used: its task has finished and its bytes are freed; what is left of it are its outputs.
	used
	// held: an output of the last stage that is not freed yet.
	held
	// gone: nothing of it is needed any more.
	gone
)

// unfinished reports whether a task has still to run for a partition in state s.
func (s partState) unfinished() bool { return s == absent || s == ready || s == running }

// part is a partition: the input of stage `stage`, or a final output where stage is the number of stages.
//
// The parts of a source partition form a tree, from which everything about recovery follows: a part that is lost is
// absent; its parent then has to run again, and so has to be at hand itself, and so on up to the source partition,
// which always is.
type part struct {
	id     lineage.ID
	src    *source
	parent *part
	// kids are the outputs of this part's task, in the order of their ids; gone ones stay, so that a replay can
	// skip them, until the part is gone itself.
	kids []*part

	state partState
	stage uint8
	// counted says that a task has finished on it once, so that all kids are known.
	counted bool
	// maker is the task that made it, until someone takes it from there.
	maker *task

	attempt    uint32
	accounted  uint32 // the last attempt of the parent that skipped or reported it
	liveKids   int32  // kids that are not gone
	absentKids int32
	task       TaskID
	run        *task

	// node holds the bytes: for all but source partitions, while the part is ready, running or held. A running part
	// has none if its node was lost meanwhile.
	node        *node
	rows, bytes int64

	// queue is where it waits while it is ready; its places in the heaps.
	queue              *queue
	queueAt, urgentAt  int32
	nodePrev, nodeNext *part
}

func newPart(id lineage.ID, src *source, parent *part) *part {
	p := &part{id: id, src: src, parent: parent, queueAt: -1, urgentAt: -1}
	if parent != nil {
		p.stage = parent.stage + 1
	}
	return p
}

// before is the order of the stream. No two parts of one queue are equal in it.
func (p *part) before(q *part) bool { return p.id.Compare(q.id) < 0 }

// lost reports whether the input of a running task is away, so that the task can't be repeated from it.
func (p *part) lost() bool { return p.stage > 0 && p.node == nil }

// kid is the kid that is id or an ancestor of id, and the place where such a kid belongs.
func (p *part) kid(id lineage.ID) (*part, int) {
	at, found := slices.BinarySearchFunc(p.kids, id, func(k *part, id lineage.ID) int { return k.id.Compare(id) })
	if found {
		return p.kids[at], at
	}
	if at > 0 && p.kids[at-1].id.IsAncestorOf(id) {
		return p.kids[at-1], at
	}
	return nil, at
}

// source is a live source partition: the root of a tree of parts and what is true of all of them.
type source struct {
	root   *part
	rows   int64
	expect int64
	replay bool
	skip   []lineage.ID // sorted; outputs of the last stage that nobody needs

	group      *group
	prev, next *source // the live source partitions, in stream order

	// open counts the parts that are unfinished; the source is in Core.unfinished while it is not 0.
	open   int
	openAt int32
	// needed says that a rank waits for it, urgent that its ready parts are in the urgent queues.
	needed, urgent bool
}

func sourceBefore(a, b *source) bool { return a.root.id.Compare(b.root.id) < 0 }

// skipped is the part of skip that lies below id.
func (s *source) skipped(id lineage.ID) []lineage.ID {
	from, _ := slices.BinarySearchFunc(s.skip, id, lineage.ID.Compare)
	to := from
	for to < len(s.skip) && (s.skip[to] == id || id.IsAncestorOf(s.skip[to])) {
		to++
	}
	return s.skip[from:to]
}

// find is the live part with this id; nil if there is none.
func (c *Core) find(id lineage.ID) *part {
	src := c.sources[lineage.SourceID(id.Epoch, id.Source)]
	if src == nil {
		return nil
	}
	for p := src.root; p != nil; p, _ = p.kid(id) {
		if p.id == id {
			return p
		}
	}
	return nil
}

// setState moves p to a state and keeps every count that depends on it.
func (c *Core) setState(p *part, to partState) {
	from := p.state
	p.state = to
	c.count(p, from, -1)
	c.count(p, to, 1)
	was, is := from.unfinished(), to.unfinished()
	switch src := p.src; {
	case is && !was:
		src.open++
		if src.open == 1 {
			c.unfinished.push(src)
		}
	case was && !is:
		src.open--
		if src.open == 0 {
			c.unfinished.remove(src)
			src.needed = false
		}
	}
}

// count adds by to the counts of parts in a state.
func (c *Core) count(p *part, s partState, by int32) {
	if s != 0 && s != gone && p.parent != nil {
		p.parent.liveKids += by
	}
	switch s {
	case absent:
		p.parent.absentKids += by
		c.open[p.stage] += int(by)
		if int(p.stage) < len(c.stages) {
			c.stages[p.stage].absent += int(by)
		}
	case ready:
		c.stages[p.stage].queued += int(by)
		c.open[p.stage] += int(by)
	case running:
		c.stages[p.stage].running += int(by)
		c.open[p.stage] += int(by)
	case used, held, gone:
	}
}
