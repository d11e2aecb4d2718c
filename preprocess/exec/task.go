package exec

import (
	"slices"
	"time"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/lineage"
)

// task is a running attempt.
type task struct {
	id      TaskID
	attempt uint32
	part    *part
	node    *node
	replay  bool
	// partial says that not all outputs are made, so that its figures are no measure.
	partial bool

	expected, produced int64
	// reserve is what is charged for it beyond what it produced: outputs to come, and the copy of its input.
	reserve, copied int64
	// promised is what is expected of it beyond that, and not charged.
	promised int64
	unread   int
	started  time.Duration

	// paused tasks wait for room, if blocked for an output of blockedBytes.
	paused, wasPaused, blocked bool
	blockedBytes               int64
	// stopping: it was cancelled and is to end; orphan: its source partition is withdrawn.
	stopping, orphan, preempted, ended bool
	pausedAt, lateAt                   int32
}

// launch starts a task on p.
func (c *Core) launch(p *part, n *node) {
	need, extra := c.need(p, n), copied(p, n)
	charge, refused := c.cost(p, n)
	switch {
	case refused != 0: // it may take the node over its budget, but by no more than it must
		charge = c.first(p, need-extra) + extra
	case p.stage == 0:
		c.settlePace(n)
	}
	c.dequeue(p)
	if p.task == 0 {
		c.lastTask++
		p.task = c.lastTask
	}
	first := p.attempt == 0
	p.attempt = max(p.attempt, c.cfg.AttemptsBefore) + 1
	t := &task{
		id: p.task, attempt: p.attempt, part: p, node: n, replay: !first || p.src.replay,
		expected: need - extra, copied: extra, started: c.now, pausedAt: -1, lateAt: -1,
	}
	ev := Launch{Task: t.id, Attempt: t.attempt, Stage: int(p.stage), Node: n.id, Input: p.id, Replay: t.replay, Skip: c.skips(p, first)}
	t.partial = len(ev.Skip) > 0
	if p.stage > 0 {
		ev.InputNode = p.node.id
		c.markTaken(p)
	}
	c.begin(t)
	c.setReserve(t, charge-extra)
	c.charge(n, extra)
	c.overdraw(n, p.src)
	c.pending = append(c.pending, addressed{node: n, what: ev})
	if p.stage == 0 {
		c.settleGroup(p.src.group, n)
	}
}

// begin puts a task on its node.
func (c *Core) begin(t *task) {
	p, n := t.part, t.node
	c.setState(p, running)
	p.run = t
	c.tasks[t.id] = t
	n.tasks[t.id] = t
	n.runs[p.stage]++
	for _, r := range c.stages[p.stage].takes {
		n.free[r.index] -= r.slots
	}
}

// Adopt makes a source partition that waits for a task one whose task runs on a node already, as attempt: a core that
// begins in the middle of things hears of it from the node. Reports of the task follow as if it had been launched here.
// An attempt that is not above all that are known, or a source partition that is not offered or runs elsewhere, is an
// error of kind Conflict.
func (c *Core) Adopt(id lineage.ID, on NodeID, attempt uint32) (TaskID, error) {
	src, n := c.sources[id], c.nodes[on]
	switch {
	case src == nil || src.root.state != ready:
		return 0, errkind.Errorf(errkind.Conflict, "source partition %s does not wait for a task", id)
	case n == nil:
		return 0, errkind.Errorf(errkind.Conflict, "node %q is not there", on)
	case attempt == 0 || attempt < src.root.attempt:
		return 0, errkind.Errorf(errkind.Conflict, "attempt %d of source partition %s is older than attempt %d", attempt, id, src.root.attempt)
	}
	p := src.root
	c.dequeue(p)
	if p.task == 0 {
		c.lastTask++
		p.task = c.lastTask
	}
	p.attempt = attempt
	// Its time and size are no measure: it began before.
	t := &task{id: p.task, attempt: attempt, part: p, node: n, partial: true, started: c.now, pausedAt: -1, lateAt: -1}
	c.begin(t)
	c.touch(n)
	c.settleGroup(src.group, n)
	return t.id, nil
}

// skips lists the outputs of p that are not absent, and remembers that they were skipped.
func (c *Core) skips(p *part, first bool) []lineage.ID {
	if first && int(p.stage) == len(c.stages)-1 {
		for _, id := range p.src.skipped(p.id) {
			k := newPart(id, p.src, p)
			k.state = gone
			p.kids = append(p.kids, k)
		}
	}
	var ids []lineage.ID
	for _, k := range p.kids {
		if k.state != absent {
			k.accounted = p.attempt
			ids = append(ids, k.id)
		}
	}
	return ids
}

// endTask takes a task off its node.
func (c *Core) endTask(t *task) {
	n := t.node
	t.ended = true
	t.part.run = nil
	delete(c.tasks, t.id)
	delete(n.tasks, t.id)
	n.paused.remove(t)
	c.paused.remove(t)
	if t.preempted {
		c.preempted--
	}
	if t.orphan {
		n.orphans--
	}
	n.runs[t.part.stage]--
	for _, r := range c.stages[t.part.stage].takes {
		n.free[r.index] += r.slots
	}
	c.setReserve(t, 0)
	c.charge(n, -t.copied)
}

// stop cancels a running task, once.
func (c *Core) stop(t *task) {
	n := t.node
	n.paused.remove(t)
	c.paused.remove(t)
	t.paused, t.blocked = false, false
	if !t.stopping {
		t.stopping = true
		c.pending = append(c.pending, addressed{node: n, about: t, what: Cancel{Task: t.id, Attempt: t.attempt, Node: n.id}})
	}
}

// report is the running task that a report is about; nil where the report is of an earlier attempt or of a task that
// has ended.
func (c *Core) report(id TaskID, attempt uint32) (*task, error) {
	if id == 0 || id > c.lastTask {
		return nil, errkind.Errorf(errkind.Invalid, "task %d was never launched", id)
	}
	t := c.tasks[id]
	switch {
	case t == nil || attempt < t.attempt:
		return nil, nil
	case attempt > t.attempt:
		return nil, errkind.Errorf(errkind.Invalid, "task %d has no attempt %d yet; it is at %d", id, attempt, t.attempt)
	}
	return t, nil
}

func (c *Core) outputReady(ev OutputReady) error {
	t, err := c.report(ev.Task, ev.Attempt)
	if t == nil {
		return err
	}
	if ev.Rows < 0 || ev.Bytes < 0 || ev.Bytes > Unlimited {
		return errkind.Errorf(errkind.Invalid, "output %s has %d rows and %d bytes", ev.ID, ev.Rows, ev.Bytes)
	}
	p, last := t.part, int(t.part.stage) == len(c.stages)-1
	if !p.id.IsAncestorOf(ev.ID) || !last && ev.ID.Depth != p.id.Depth+1 {
		return errkind.Errorf(errkind.Invalid, "output %s of task %d is not made from its input %s", ev.ID, t.id, p.id)
	}
	if t.orphan {
		c.reject(t, ev.ID)
		return nil
	}
	k, at := p.kid(ev.ID)
	switch {
	case k == nil && p.counted:
		return errkind.Errorf(errkind.Conflict, "attempt %d of task %d made output %s, which the first attempt did not", t.attempt, t.id, ev.ID)
	case k == nil:
		k = newPart(ev.ID, p.src, p)
		p.kids = slices.Insert(p.kids, at, k)
	case k.id != ev.ID:
		return errkind.Errorf(errkind.Invalid, "output %s of task %d is made from its output %s", ev.ID, t.id, k.id)
	case k.state == gone:
		c.reject(t, ev.ID)
		return nil
	case k.state != absent:
		if k.node != t.node {
			c.reject(t, ev.ID)
		}
		return nil
	case k.rows != ev.Rows:
		return errkind.Errorf(errkind.Conflict, "attempt %d of task %d made output %s with %d rows; it had %d before", t.attempt, t.id, ev.ID, ev.Rows, k.rows)
	}
	k.rows, k.bytes, k.accounted = ev.Rows, ev.Bytes, t.attempt
	c.take(t, k)
	return nil
}

func (c *Core) outputBlocked(ev OutputBlocked) error {
	t, err := c.report(ev.Task, ev.Attempt)
	if t == nil {
		return err
	}
	if ev.Bytes < 0 || ev.Bytes > Unlimited {
		return errkind.Errorf(errkind.Invalid, "the next output of task %d has %d bytes", t.id, ev.Bytes)
	}
	if t.stopping {
		return nil
	}
	t.blocked, t.blockedBytes = true, ev.Bytes
	if !t.paused {
		c.pause(t)
	}
	c.markDirty(t.node)
	return nil
}

// reject drops an output that the task should not have kept.
func (c *Core) reject(t *task, id lineage.ID) {
	c.pending = append(c.pending, addressed{node: t.node, what: Discard{Node: t.node.id, ID: id, Task: t.id, Attempt: t.attempt}})
}

// take puts an output of a running task to where it waits for what comes next.
func (c *Core) take(t *task, k *part) {
	c.hold(k, t.node)
	c.markUnread(k, t)
	c.measureOutput(k)
	t.produced += k.bytes
	c.setReserve(t, max(0, t.reserve-k.bytes))
	c.charge(t.node, k.bytes)
	c.overdraw(t.node, k.src)
	if int(k.stage) == len(c.stages) {
		c.setState(k, held)
	} else {
		c.setState(k, ready)
		c.enqueue(k)
	}
	c.starved = append(c.starved, t)
}

func (c *Core) taskDone(ev TaskDone) error {
	t, err := c.report(ev.Task, ev.Attempt)
	if t == nil {
		return err
	}
	if t.orphan {
		c.endTask(t)
		return nil
	}
	p := t.part
	if ev.Outputs != len(p.kids) {
		return errkind.Errorf(errkind.Conflict, "attempt %d of task %d on %s ended with %d outputs; %d are known", t.attempt, t.id, p.id, ev.Outputs, len(p.kids))
	}
	if p.absentKids > 0 {
		for _, k := range p.kids {
			if k.state == absent && k.accounted != t.attempt {
				return errkind.Errorf(errkind.Conflict, "attempt %d of task %d on %s ended without reporting output %s", t.attempt, t.id, p.id, k.id)
			}
		}
	}
	p.counted = true
	c.stages[p.stage].done++
	c.endTask(t)
	c.measureTask(t)
	if p.absentKids > 0 { // what it skipped or made was lost while it ran
		c.again(p)
		return nil
	}
	c.usedUp(p)
	c.prune(p)
	return nil
}

func (c *Core) taskFailed(ev TaskFailed) error {
	t, err := c.report(ev.Task, ev.Attempt)
	if t == nil {
		return err
	}
	c.endTask(t)
	switch {
	case t.orphan:
	case ev.Fatal:
		c.withdraw(t.part.src)
	default:
		c.retry(t.part)
	}
	return nil
}
