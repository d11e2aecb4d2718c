package exec

import (
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/lineage"
)

// Core is the state machine. Make one with New.
type Core struct {
	cfg    Config
	policy policy

	resources []string // names of the plan's resources, sorted
	stages    []*stageState
	// open counts the unfinished inputs of each stage; the last element counts absent final outputs.
	open []int

	now      time.Duration
	joined   uint64
	lastTask TaskID

	nodes    map[NodeID]*node
	nodeList nodeRing
	// dirty nodes have changed since their last turn; deferred ones wait for work that any node could take.
	dirty, deferred []*node

	sources    map[lineage.ID]*source
	sourceTail *source // the last in stream order; see source.prev
	unfinished *heap[*source]
	head       *source // the earliest unfinished source partition, as of the last Decide
	groups     map[uint64]*group

	tasks map[TaskID]*task
	// rated nodes wait for the time of their next admission.
	rated []*node
	// starved tasks lack room for their next output; paused ones were told so, the latest in the stream first.
	starved []*task
	paused  *heap[*task]
	// preempted tasks were cancelled to make place for the head and have not ended yet.
	preempted int
	held      int
	// reserved is the node whose slots are kept together for a task of stage reservedFor of the head.
	reserved    *node
	reservedFor int

	// pending are decisions that follow from events alone.
	pending []addressed
}

// addressed is a decision with the node it is for and the running task it is about, if any: they may be lost or have
// ended before it is given out.
type addressed struct {
	node  *node
	about *task
	what  Decision
}

type take struct{ index, slots int }

// stageState is what is known of one stage.
type stageState struct {
	spec  StageSpec
	takes []take
	wide  bool // one task takes more than one slot
	est   estimate

	queued, running, absent int
	done                    int64
	bytes, unread           int64 // of its outputs that are held
	outputs                 int

	anywhere *queue        // ready parts that any node may take
	waiting  *heap[*queue] // the nodes' queues that are not empty, the earliest part first
	urgent   *heap[*part]  // ready parts of urgent source partitions, in whatever queue they are
	free     *heap[*node]  // nodes with free slots for one more task, the one with most room first
}

// New makes a core without nodes. Errors are of kind Invalid.
func New(cfg Config) (*Core, error) {
	cfg, err := cfg.check()
	if err != nil {
		return nil, err
	}
	c := &Core{
		cfg: cfg, policy: newPolicy(cfg.Policy),
		stages: make([]*stageState, len(cfg.Stages)), open: make([]int, len(cfg.Stages)+1),
		nodes: map[NodeID]*node{}, sources: map[lineage.ID]*source{}, groups: map[uint64]*group{}, tasks: map[TaskID]*task{},
		unfinished: newHeap(sourceBefore, func(s *source) *int32 { return &s.openAt }),
		paused:     newHeap(func(a, b *task) bool { return b.part.before(a.part) }, func(t *task) *int32 { return &t.lateAt }),
	}
	names := map[string]bool{}
	for _, spec := range cfg.Stages {
		for name, slots := range spec.Resources {
			names[name] = names[name] || slots > 0
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if names[name] {
			c.resources = append(c.resources, name)
		}
	}
	for s := range c.stages {
		c.initStage(s)
	}
	return c, nil
}

func (c *Core) initStage(s int) {
	st := &stageState{spec: c.cfg.Stages[s]}
	c.stages[s] = st
	st.spec.Resources = maps.Clone(st.spec.Resources)
	for i, name := range c.resources {
		if slots := st.spec.Resources[name]; slots > 0 {
			st.takes = append(st.takes, take{index: i, slots: slots})
			st.wide = st.wide || slots > 1 || len(st.takes) > 1
		}
	}
	st.anywhere = newQueue(nil)
	st.waiting = newHeap(queueBefore, func(q *queue) *int32 { return &q.waiting })
	st.urgent = newHeap(moreUrgent, func(p *part) *int32 { return &p.urgentAt })
	st.free = newHeap(func(a, b *node) bool {
		if ra, rb := c.roomFor(a, s), c.roomFor(b, s); ra != rb {
			return ra > rb
		}
		return a.order < b.order
	}, func(n *node) *int32 { return &n.freeAt[s] })
}

// Apply takes an event.
//
// Events that are late are ignored, as they are bound to happen: reports of an attempt that is not the running one,
// and events about nodes, source partitions and outputs that are not (or no longer) known. Events that contradict the
// state are errors and change nothing: reports of tasks that were never launched, outputs that are not made from the
// task's input, outputs of a replay that differ from those of the first attempt in number or rows, a node that joins
// twice, a source partition that is offered twice. Kinds: Invalid and Conflict.
func (c *Core) Apply(ev Event) error {
	switch ev := ev.(type) {
	case NodeJoined:
		return c.join(ev)
	case NodeDraining:
		c.drain(ev.Node)
	case NodeLost:
		c.lose(ev.Node)
	case Offered:
		return c.offer(ev)
	case Withdrawn:
		for _, id := range ev.Sources {
			if src := c.sources[id]; src != nil {
				c.withdraw(src)
			}
		}
	case WithdrawnFrom:
		for src := c.sourceTail; src != nil && src.root.id.Compare(ev.Source) >= 0; src = c.sourceTail {
			c.withdraw(src)
		}
	case OutputReady:
		return c.outputReady(ev)
	case OutputBlocked:
		return c.outputBlocked(ev)
	case OutputTaken:
		if p := c.find(ev.ID); p != nil && p.state == held {
			c.markTaken(p)
		}
	case TaskDone:
		return c.taskDone(ev)
	case TaskFailed:
		return c.taskFailed(ev)
	case Freed:
		return c.freed(ev.ID)
	case Needed:
		if src := c.sources[lineage.SourceID(ev.ID.Epoch, ev.ID.Source)]; src != nil && src.open > 0 && !src.needed {
			src.needed = true
			c.makeUrgent(src)
		}
	case Tick:
		c.tick(ev.Now)
	default:
		return errkind.Errorf(errkind.Invalid, "event of type %T is unknown to the executor", ev)
	}
	return nil
}
