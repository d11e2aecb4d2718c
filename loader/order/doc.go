// Package order says which sample stands at which place of an epoch, without a table.
//
// An [Epoch] maps a position of the stream to the ordinal of a sample in the manifest (0 to N-1) and back, and cuts
// the stream into source partitions, in memory that does not grow with the number of samples. It is a pure function
// of (layout, seed, epoch): nothing about workers, timing or ranks can change it. [Plan] fixes a [Layout] once, when
// the job is created. [Batching] deals rows of the stream to global batches and these to ranks; [Cursor] is a place in
// the stream as one short string.
package order
