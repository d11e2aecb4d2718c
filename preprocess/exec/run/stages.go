package run

import (
	"context"

	"github.com/millrace/millrace/preprocess/exec"
	"github.com/millrace/millrace/preprocess/lineage"
)

// Grant is what whoever gave a source partition calls it. The Runner only hands it on.
type Grant struct {
	Attempt    uint32
	Generation uint64
}

// Offer is a source partition to run.
type Offer struct {
	exec.Offered

	Grant Grant
}

// Task is one attempt to run a stage on a partition.
type Task struct {
	// Grant is that of the source partition.
	Grant Grant
	// Stage indexes the stages of the plan.
	Stage int
	// Input is the partition to run on: a source partition for stage 0, else an output of the stage before.
	Input lineage.ID
	// Skip lists outputs that are not to be emitted, in stream order. They count as outputs all the same.
	Skip []lineage.ID
	// Room waits while there is no room for the task's next output. A stage calls it before it takes memory for one, so
	// that no output lies in memory that the executor has not charged. It costs nothing while there is room.
	Room func(ctx context.Context) error
}

// Output is a partition that a task has made.
type Output struct {
	ID lineage.ID
	// Rows and Bytes are its exact size.
	Rows, Bytes int64
	// Keep is called if the output is wanted, Drop if it is not: exactly one of them, once, before emit returns. They
	// must not wait for anything.
	Keep, Drop func()
}

// Stages runs tasks and holds partitions between stages.
type Stages interface {
	// Run runs t to its end on the calling goroutine and returns how many outputs it has, skipped ones included. It
	// hands its outputs to emit in order, but not those that Skip lists. emit waits while the task is paused; after
	// an error of emit, Run returns that error. Run may panic: that fails the task.
	Run(ctx context.Context, t Task, emit func(Output) error) (outputs int, err error)
	// Free drops a kept output that is not of the last stage: the next stage has used it up, or nobody wants it.
	// Outputs of the last stage belong to whoever they are reported to.
	Free(id lineage.ID)
}

// Reports is told how source partitions end. Its methods must not wait for anything, nor call the Runner.
type Reports interface {
	// SourceDone says that every output of a source partition was kept; outputs is their number, skipped ones included.
	SourceDone(id lineage.ID, grant Grant, outputs int)
	// InputDone says that every output that a stage after the first makes of one of its inputs was kept. From it whoever
	// keeps the outputs in order knows that no more come before those of the next input.
	InputDone(id lineage.ID, grant Grant, outputs int)
	// SourceFailed says that a source partition is given up. Outputs that were kept before stay.
	SourceFailed(id lineage.ID, grant Grant, err error)
}
