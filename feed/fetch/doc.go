// Package fetch brings slices of partitions from workers to the sidecar.
//
// A [Queue] takes requests and runs at most a fixed number of them at a time, the one first that a rank waits for
// soonest. What it fetches counts against a byte budget, which only the slices that a rank waits for next may pass: so
// memory is bounded and the trainer never waits for room that nobody frees. A request that fails is tried again after a
// pause until it is cancelled; what went wrong is there to be shown.
//
// Slices come from workers of the same process by reference, from others over Arrow Flight. There is one connection to
// each worker, opened on demand and closed when it was idle for a while. Bodies of messages are received straight into
// buffers of a pool, which return there when the last record batch that refers to them is released.
package fetch
