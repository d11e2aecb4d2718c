package exec

import (
	"time"

	"github.com/millrace/millrace/preprocess/lineage"
)

// NodeID names a node: a worker process.
type NodeID string

// TaskID names the task that runs one stage on one partition, over all of its attempts. Ids begin at 1.
type TaskID uint64

// Event is something that happened; see [Core.Apply]. The event types of this package are all there are.
type Event interface{ event() }

// NodeJoined says that a node can take work. A node that is known has to be lost before it can join again.
type NodeJoined struct {
	Node NodeID
	// Slots is how many slots of each resource the node has.
	Slots map[string]int
	// BudgetBytes is what the partitions on the node may take, above 0; see Unlimited.
	BudgetBytes int64
}

// NodeDraining says that a node is to leave: it gets no source partitions any more, but finishes what it holds.
type NodeDraining struct{ Node NodeID }

// NodeLost says that a node is gone with all that ran and was held on it.
type NodeLost struct{ Node NodeID }

// Offered gives the core a source partition to run. Source partitions may be offered in any order; the order of their
// ids is the order of the stream. One that is live already is an error of kind Conflict.
type Offered struct {
	ID lineage.ID
	// Rows is the number of samples of the source partition, 0 where it is not known; the expected output grows
	// with it.
	Rows int64
	// ExpectBytes is the expected output of the first stage in bytes; 0 means "as measured".
	ExpectBytes int64
	// Affinity groups source partitions (those of one window) that go to one node by preference; 0 is no group.
	Affinity uint64
	// Replay says that it is made again because it was lost: it may use the replay reserve.
	Replay bool
	// Skip lists outputs of the last stage that are not needed again, in any order. They are made known to the task
	// (Launch.Skip) where the stage that makes them runs, and discarded if they are reported all the same.
	Skip []lineage.ID
}

// Withdrawn says that source partitions are no longer wanted: unstarted ones vanish, running tasks are cancelled and
// outputs discarded. Unknown ones are ignored.
type Withdrawn struct{ Sources []lineage.ID }

// WithdrawnFrom is Withdrawn for a source partition and all that come after it in the stream; from SourceID(0, 0) on
// it withdraws everything. A seek withdraws and offers anew.
type WithdrawnFrom struct{ Source lineage.ID }

// OutputReady says that a running task has made an output, which its node now holds. Outputs that Launch.Skip lists
// are not reported.
type OutputReady struct {
	Task    TaskID
	Attempt uint32
	// ID is the output: made from the task's input.
	ID lineage.ID
	// Rows and Bytes are its exact size.
	Rows, Bytes int64
}

// OutputBlocked says that a paused task has its next output ready but may not report it. It is what makes a paused task
// one that waits: without it a pause may just cover the time until the task's end. A task that is not paused is resumed
// at once.
type OutputBlocked struct {
	Task    TaskID
	Attempt uint32
	// Bytes is the size of the output.
	Bytes int64
}

// OutputTaken says that a reader has taken an output of the last stage from its task. Outputs of earlier stages are
// taken by the Launch that reads them.
type OutputTaken struct{ ID lineage.ID }

// TaskDone says that a task has reported all of its outputs and ended.
type TaskDone struct {
	Task    TaskID
	Attempt uint32
	// Outputs is how many outputs the task has in all, with those that Launch.Skip listed.
	Outputs int
}

// TaskFailed says that a task has ended without finishing. What it reported before stays.
type TaskFailed struct {
	Task    TaskID
	Attempt uint32
	// Fatal gives the whole source partition up, as Withdrawn does; else the task is tried again.
	Fatal bool
}

// Freed says that an output of the last stage was consumed by everyone who needs it: its bytes are the node's again.
type Freed struct{ ID lineage.ID }

// Needed says that a rank waits for a source partition, or for a partition made from it, as the next one, be it for rows
// or for the number of rows. It holds until the source partition is finished. One that was not offered yet is ignored;
// say it again after offering it.
type Needed struct{ ID lineage.ID }

// Tick tells the time since any fixed start. Durations are measured between ticks, so a caller sends one before each
// batch of events, and one at the time of [Core.NextTick]. A time before that of the last Tick is ignored.
type Tick struct{ Now time.Duration }

func (NodeJoined) event()    {}
func (NodeDraining) event()  {}
func (NodeLost) event()      {}
func (Offered) event()       {}
func (Withdrawn) event()     {}
func (WithdrawnFrom) event() {}
func (OutputReady) event()   {}
func (OutputBlocked) event() {}
func (OutputTaken) event()   {}
func (TaskDone) event()      {}
func (TaskFailed) event()    {}
func (Freed) event()         {}
func (Needed) event()        {}
func (Tick) event()          {}
