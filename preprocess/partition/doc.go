// Package partition holds finished partitions in memory and hands their rows to whoever feeds trainers.
//
// A [Partition] is an immutable Arrow record batch with its identity, attempt, size and content hash. A [Store] keeps
// the partitions of one process by job and identity until everyone has consumed them. Rows of them are asked for with
// a [Ticket] and come through a [Fetcher]: by reference inside one process ([Local]), from a [Server] over Arrow
// Flight otherwise, as one record batch per slice, in the order of the ticket. A [Pool] keeps the buffers off the Go
// heap, so that the memory of the process follows what the store holds.
package partition
