package exec

// Reason says why something ready does not run.
type Reason uint8

const (
	// ReasonSlots means that no node that has the stage's resources has enough free slots.
	ReasonSlots Reason = iota + 1
	// ReasonNodeMemory means that the node's budget does not cover the expected output.
	ReasonNodeMemory
	// ReasonDownstreamFull means that what was made before has to be taken by the next stage or a reader first.
	ReasonDownstreamFull
	// ReasonBudget means that the node has room, but keeps it for later stages of what it has admitted, or that it is not
	// yet time to admit more.
	ReasonBudget
	// ReasonOrder means that something else has to come first in the stream or in the plan.
	ReasonOrder
)

// String is the name of r, as a metric label.
func (r Reason) String() string {
	switch r {
	case ReasonSlots:
		return "slots"
	case ReasonNodeMemory:
		return "node_memory"
	case ReasonDownstreamFull:
		return "downstream_full"
	case ReasonBudget:
		return "budget"
	case ReasonOrder:
		return "order"
	}
	return "unknown"
}

// Wait is how many partitions wait for a task of one stage, or how many of its tasks are paused, and why.
type Wait struct {
	// Stage indexes Config.Stages.
	Stage int
	// Node is where they wait; empty where any node will do.
	Node   NodeID
	Reason Reason
	Count  int
}
