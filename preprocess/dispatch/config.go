// Package dispatch is the dispatcher: it plans jobs, gives source partitions to workers, keeps the account of
// each job's stream and tells sidecars where every row is. It handles metadata only, never payload.
//
// A [Dispatcher] serves two gRPC services: workers hold one stream each (millrace.worker.v1), sidecars open jobs and
// hold one stream for each job that they feed (millrace.feed.v1). All state is in memory; it is guarded by one
// mutex, held for short, bounded work only: planning and reading manifests happen outside it.
package dispatch

import (
	"log/slog"
	"time"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/store"
	"github.com/millrace/millrace/preprocess/dispatch/journal/keep"
)

// DefaultLease is how long a log may show no sign of life before a standby takes over.
const DefaultLease = time.Second

// Config is what a Dispatcher needs.
type Config struct {
	// Version of the program, for status.
	Version string
	// Resolver opens the stores that sources live in.
	Resolver *store.Resolver
	// Cache keeps manifests and indices.
	Cache *dataset.Cache
	// PlanDir keeps the plan of every job, so that a cursor of another recipe can be told apart by what changed; empty:
	// plans are not kept.
	PlanDir string
	// Heartbeat is the pause between a worker's signs of life; 0: one second.
	Heartbeat time.Duration
	// IdleTimeout is how long a job without ranks keeps its memory; 0: 30 minutes.
	IdleTimeout time.Duration
	// Log, if set, is where the dispatcher remembers its jobs; its term has begun (see keep.Log.Lead). Only the dispatcher
	// uses it from now on.
	Log *keep.Log
	// Lease is how long the log may show no sign of life before a standby takes over; 0: one second.
	Lease time.Duration
	// OnIndexing, if set, hears of the progress of building manifests.
	OnIndexing func(source []string, p dataset.Progress)
	// Logger; nil: slog's default.
	Logger *slog.Logger
}

// Validate names what is missing and fills defaults in.
func (c *Config) Validate() error {
	if c.Resolver == nil || c.Cache == nil {
		return errkind.Errorf(errkind.Internal, "dispatcher: Resolver and Cache must be set")
	}
	if c.Heartbeat < 0 || c.IdleTimeout < 0 || c.Lease < 0 {
		return errkind.Errorf(errkind.Invalid, "dispatcher: heartbeat, idle timeout and lease cannot be negative")
	}
	if c.Heartbeat == 0 {
		c.Heartbeat = time.Second
	}
	if c.Lease == 0 {
		c.Lease = DefaultLease
	}
	if c.IdleTimeout == 0 {
		c.IdleTimeout = 30 * time.Minute
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return nil
}
