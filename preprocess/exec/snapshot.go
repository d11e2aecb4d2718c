package exec

// Snapshot is the state of a Core, for status pages and metrics.
type Snapshot struct {
	// Sources is the number of live source partitions; Partitions is that of partitions held and of source partitions
	// queued or running.
	Sources, Partitions int
	// Nodes are in the order in which they joined, Stages in that of the plan.
	Nodes  []NodeStatus
	Stages []StageStatus
}

// NodeStatus is the state of one node.
type NodeStatus struct {
	Node     NodeID
	Draining bool
	// SlotsUsed and SlotsTotal are by resource, for the resources that the plan uses.
	SlotsUsed, SlotsTotal map[string]int
	// BytesCharged is what partitions held and running tasks are charged, BytesHeld the part of it that is held.
	BytesCharged, BytesHeld, BudgetBytes int64
	// Tasks run (or are being cancelled) on the node, Paused of them are paused, and Held partitions are on it.
	Tasks, Paused, Held int
}

// StageStatus is the state of one stage.
type StageStatus struct {
	Name string
	// Queued inputs are ready for a task, Running tasks run and Done tasks have finished since New.
	Queued, Running int
	Done            int64
	// Bytes and Outputs of the stage are held now, and of them UnreadBytes were not taken yet.
	Bytes, UnreadBytes int64
	Outputs            int
	// MeanBytes is the expected output of one task; MeanSeconds is its measured duration, 0 before any.
	MeanBytes   int64
	MeanSeconds float64
}
