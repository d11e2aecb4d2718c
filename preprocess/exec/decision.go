package exec

import "github.com/millrace/millrace/preprocess/lineage"

// Decision is something to do now; see [Core.Decide]. The decision types of this package are all there are.
type Decision interface{ decision() }

// Launch starts a task on a node.
type Launch struct {
	Task TaskID
	// Attempt is 1 for the first and rises by one with each launch of the task.
	Attempt uint32
	// Stage indexes Config.Stages.
	Stage int
	Node  NodeID
	// Input is the partition to run the stage on. InputNode is where it is held; for the first stage, which reads
	// from the store, it is empty.
	Input     lineage.ID
	InputNode NodeID
	// Replay says that the task makes lost partitions again.
	Replay bool
	// Skip lists outputs not to be kept or reported: they are held or were freed already. It is in stream order.
	Skip []lineage.ID
}

// Cancel stops an attempt. What it has reported stays, or is discarded by decisions of its own. Its slots and bytes stay charged until TaskDone or TaskFailed is reported for it (either
// will do), as a task may take a while to stop.
type Cancel struct {
	Task    TaskID
	Attempt uint32
	Node    NodeID
}

// Pause stops a task at its next output, which it may not report before Resume: the node has no room for it, or too
// many of its outputs wait for a reader. When the task has that output it reports OutputBlocked; a task that has no
// more outputs just ends.
type Pause struct {
	Task    TaskID
	Attempt uint32
	Node    NodeID
}

// Resume lets a paused task go on.
type Resume struct {
	Task    TaskID
	Attempt uint32
	Node    NodeID
}

// FreeInput drops an intermediate partition that the next stage has used up.
type FreeInput struct {
	Node NodeID
	ID   lineage.ID
}

// Discard drops an output that nobody needs: of a withdrawn source partition, or made twice. Task and Attempt made it:
// where a source partition is withdrawn and offered anew, an earlier task that is not yet stopped and a later one may
// make the same output on the same node.
type Discard struct {
	Node    NodeID
	ID      lineage.ID
	Task    TaskID
	Attempt uint32
}

func (Launch) decision()    {}
func (Cancel) decision()    {}
func (Pause) decision()     {}
func (Resume) decision()    {}
func (FreeInput) decision() {}
func (Discard) decision()   {}
