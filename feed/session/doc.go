// Package session keeps the jobs that a sidecar feeds and the ranks that take part in them.
//
// A [Table] opens sessions: one is the membership of one rank in one job. Each job has one stream to the dispatcher,
// which is opened again when it breaks, and a state machine (package deal) that decides what to fetch and what is ready.
// A [Stream] hands the batches of one rank over, in order, for the rest of an epoch.
package session
