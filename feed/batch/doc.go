// Package batch puts the batches of ranks together: runs of rows of record batches become one record batch whose
// columns each lie in one buffer.
//
// A [Layout] is made once for a job from the schema of its partitions. [Layout.Assemble] copies rows of fixed size with
// one copy per run and column into buffers from a pool, aligned to 64 bytes; when the record batch is released they
// return there. So a stream of batches makes next to no garbage and its memory stays flat.
package batch
