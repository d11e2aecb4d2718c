package exec

// Estimates follow the last tasks: each new one counts as one in estimateMemory, so that a change in the data is
// followed, and a single odd task is not.
const estimateMemory = 16

// estimate is what a stage's tasks were measured to make.
type estimate struct {
	tasks int
	// in and out are the mean size of an input (rows for the first stage, else bytes) and the mean bytes made of it;
	// output is the mean size of one output, seconds the mean duration of a task.
	in, out, output, seconds float64
	// fanout is the mean number of outputs of a task.
	fanout         float64
	outputs, timed int
	// ratio is out/in as decisions use it. It changes in steps, as every change is a change for all nodes; since
	// counts the tasks after the last one.
	ratio float64
	since int
}

// follow moves a mean to the n-th value.
func follow(mean *float64, value float64, n int) {
	*mean += (value - *mean) / float64(min(n, estimateMemory))
}

// weight is the size of an input as estimates use it.
func weight(p *part) float64 {
	if p.stage == 0 {
		return float64(max(p.src.rows, 1))
	}
	return float64(max(p.bytes, 1))
}

// measureTask takes the figures of a finished task that made all of its outputs.
func (c *Core) measureTask(t *task) {
	e := &c.stages[t.part.stage].est
	if d := c.now - t.started; d > 0 && !t.wasPaused {
		e.timed++
		follow(&e.seconds, d.Seconds(), e.timed)
	}
	if t.partial {
		return
	}
	e.tasks++
	e.since++
	follow(&e.in, weight(t.part), e.tasks)
	follow(&e.out, float64(t.produced), e.tasks)
	follow(&e.fanout, float64(len(t.part.kids)), e.tasks)
	ratio := e.out / e.in
	off := ratio - e.ratio
	// The first figure counts at once. Later ones are taken when they differ by an eighth, and not so often that the
	// cost of telling all nodes would matter.
	if e.tasks == 1 || (off > e.ratio/8 || -off > e.ratio/8) && e.since*8 >= len(c.nodes) {
		e.ratio, e.since = ratio, 0
		c.estimatesChanged()
	}
}

func (c *Core) measureOutput(p *part) {
	e := &c.made(p).est
	e.outputs++
	follow(&e.output, float64(p.bytes), e.outputs)
}

// estimatesChanged restores what depends on estimates, for all nodes.
func (c *Core) estimatesChanged() {
	for n := c.nodeList.head; n != nil; n = n.next {
		n.headroom = c.headroom(n)
		c.markDirty(n)
	}
	for s := range c.stages {
		c.stages[s].free.rebuild()
	}
}

// expect is the expected output in bytes of a task on p, if it runs on n.
func (c *Core) expect(p *part, n *node) int64 {
	st := c.stages[p.stage]
	if p.stage == 0 && p.src.expect > 0 {
		return p.src.expect
	}
	switch {
	case st.est.tasks > 0:
		return clampBytes(st.est.ratio * weight(p))
	case st.spec.ExpectBytes > 0:
		return st.spec.ExpectBytes
	case p.stage > 0:
		return p.bytes
	}
	return max(1, n.budget/2/int64(max(1, c.parallel(n, 0))))
}

func clampBytes(b float64) int64 { return int64(min(max(b, 0), float64(Unlimited))) }

// need is what a task on p is charged on n when it starts.
func (c *Core) need(p *part, n *node) int64 {
	bytes := c.expect(p, n)
	if p.counted {
		all := int64(len(p.kids))
		bytes = bytes/all*int64(p.absentKids) + bytes%all*int64(p.absentKids)/all
	}
	bytes = max(bytes, c.stages[p.stage].spec.MaxOutputBytes)
	return bytes + copied(p, n)
}

// copied is the size of the copy of its input that a task makes on n.
func copied(p *part, n *node) int64 {
	if p.stage == 0 || p.node == n {
		return 0
	}
	return p.bytes
}

// nextOutput is what a running task should have in reserve.
func (c *Core) nextOutput(t *task) int64 {
	st := c.stages[t.part.stage]
	switch {
	case t.blocked:
		return t.blockedBytes
	case st.spec.MaxOutputBytes > 0:
		return st.spec.MaxOutputBytes
	case t.promised > 0:
		return min(clampBytes(st.est.output), t.promised+t.reserve)
	case t.produced < t.expected:
		return 0 // it has all that is expected of it
	}
	return clampBytes(st.est.output)
}

// headroom is the room that the later stages need to run at full width on n. Without it, source partitions would fill
// the node to the brim and each later task would have to wait for bytes instead of slots. It is never more than a sixth
// of the budget, so that there is room for source partitions too.
func (c *Core) headroom(n *node) int64 {
	if !c.policy.overlaps() {
		return 0
	}
	most := (n.budget - n.reserve) / 6
	var sum int64
	for s := 1; s < len(c.stages); s++ {
		st := c.stages[s]
		one := max(st.spec.MaxOutputBytes, st.spec.ExpectBytes)
		if st.est.tasks > 0 {
			one = max(st.spec.MaxOutputBytes, clampBytes(st.est.out))
		}
		if width := int64(c.parallel(n, s)); one > 0 && width > most/one {
			return most
		} else {
			sum += width * one
		}
	}
	return min(sum, most)
}
