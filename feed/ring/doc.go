// Package ring is the shared memory through which a sidecar hands batches to the trainers of its host: an arena of slots
// in a memfd, the image of a batch in a slot, and the messages that say whose a slot is. docs/formats/ring.md is its
// specification; package serve speaks it to trainers.
//
// There is nothing atomic in shared memory. A slot has one owner at a time, and passes on by a message.
package ring
