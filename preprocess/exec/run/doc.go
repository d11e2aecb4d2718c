// Package run carries out what an executor core decides, for one job on one node: it starts tasks on goroutines, holds
// them while they are paused, stops them when they are cancelled and tells the core what became of them.
//
// A [Runner] has no goroutine of its own: whoever tells it something has the decisions that follow carried out, and
// tasks run on goroutines of theirs, as many as there are slots. Runners of several jobs divide the slots and bytes of
// a node by [Shares].
package run
