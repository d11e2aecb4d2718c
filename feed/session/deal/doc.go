// Package deal decides what a sidecar does for the ranks of one job: which slices of which partitions to fetch, which
// batches are ready to be handed to whom, and which marks to send to the dispatcher.
//
// [State] is a state machine. Its methods are the events: a rank asks for a position, the dispatcher places a
// partition or seals a global batch, a slice has arrived, a rank has consumed batches. What is to be done about them is
// left in a list of [Action] that the caller takes after each event. There is no clock, goroutine or network here.
//
// Each rank has a window of planned batches, counted from the beginning of the generation: those below the consumed
// mark whose global batch is not consumed whole (they keep no data), those handed over and not yet consumed, and
// those made ready, up to prefetch+1 beyond the consumed mark. So what a rank holds is bounded by its credit whatever
// the dispatcher sends. The window runs across the end of an epoch.
//
// Gradient accumulation of A parts over W ranks deals part a of a global batch to rank r as an order of A*W ranks does
// to its rank a*W+r; therefore 8 ranks of one part, 4 of two and 2 of four see the same global batches.
package deal
