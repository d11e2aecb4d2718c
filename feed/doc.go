// Package feed is the sidecar beside a trainer: it joins jobs for the ranks on its host, fetches the slices that they
// need from workers, puts their batches together and serves them over Arrow Flight.
//
// package flight speaks with trainers, session keeps the jobs, session/deal decides what each rank is fed, fetch brings
// slices and batch joins them.
package feed
