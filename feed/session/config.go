package session

import (
	"log/slog"
	"time"

	"github.com/millrace/millrace/feed/fetch"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/partition"
	feedv1 "github.com/millrace/millrace/proto/millrace/feed/v1"
)

// Config is what a Table needs.
type Config struct {
	// Sidecar is the name of this one, unique among live ones.
	Sidecar string
	// Client speaks to the dispatcher.
	Client feedv1.FeedServiceClient
	// Queue brings slices; Pool holds batches.
	Queue *fetch.Queue
	Pool  *partition.Pool
	// BudgetBytes is what the batches of all sessions may take.
	BudgetBytes int64
	// GoneTimeout is how long a session stays open without a connection; 0: 30 seconds.
	GoneTimeout time.Duration
	// Leave, if set, is called when the stream to the dispatcher broke: there may be another one to go on with.
	Leave func()
	// OnIdle, if set, is called each time the last session has closed.
	OnIdle func()
	// Metrics; nil: they are not kept.
	Metrics *Metrics
	// Logger; nil: slog's default.
	Logger *slog.Logger
}

// Validate names what is missing and fills defaults in.
func (c *Config) Validate() error {
	switch {
	case c.Client == nil || c.Queue == nil || c.Pool == nil:
		return errkind.Errorf(errkind.Internal, "session: Client, Queue and Pool must be set")
	case c.Sidecar == "":
		return errkind.Errorf(errkind.Invalid, "the sidecar needs a name")
	case c.BudgetBytes <= 0:
		return errkind.Errorf(errkind.Invalid, "a budget of %d bytes; it must be positive", c.BudgetBytes)
	case c.GoneTimeout < 0:
		return errkind.Errorf(errkind.Invalid, "session: timeouts cannot be negative")
	}
	if c.GoneTimeout == 0 {
		c.GoneTimeout = 30 * time.Second
	}
	if c.Leave == nil {
		c.Leave = func() {}
	}
	if c.OnIdle == nil {
		c.OnIdle = func() {}
	}
	if c.Metrics == nil {
		c.Metrics = NewMetrics()
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return nil
}
