package fetch

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"time"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/partition"
)

// DefaultStreams is how many slices are fetched at a time where nothing else is said.
const DefaultStreams = 16

// MaxMessageBytes is the largest slice that is received.
const MaxMessageBytes = 256 << 20

// Config is what a Queue needs.
type Config struct {
	// Streams is how many requests run at a time; 0: DefaultStreams.
	Streams int
	// BudgetBytes is what fetched slices and what is made of them may take, but for what ranks wait for next.
	BudgetBytes int64
	// Pool holds what is received.
	Pool *partition.Pool
	// Local has the fetchers of workers in the same process by their address, such as "local:w0".
	Local map[string]partition.Fetcher
	// Dial connects to workers; nil: over the network.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// TLS says how to encrypt a connection to a worker, but for Unix sockets; nil, as what it returns: plain text.
	TLS func() *tls.Config
	// IdleTimeout closes connections that were not used for that long; 0: one minute.
	IdleTimeout time.Duration
	// SilenceTimeout gives an attempt up in which nothing comes for that long; 0: 30 seconds.
	SilenceTimeout time.Duration
	// OnDone, if set, hears of every attempt: its worker, the bytes that came, how long it took and how it ended.
	OnDone func(worker string, bytes int64, took time.Duration, err error)
	// Logger; nil: slog's default.
	Logger *slog.Logger
}

// Validate names what is wrong, as an error of kind Invalid, and fills defaults in.
func (c *Config) Validate() error {
	switch {
	case c.Pool == nil:
		return errkind.Errorf(errkind.Internal, "fetch: Pool must be set")
	case c.Streams < 0 || c.Streams > 1024:
		return errkind.Errorf(errkind.Invalid, "%d data streams; choose 1 to 1024", c.Streams)
	case c.BudgetBytes <= 0:
		return errkind.Errorf(errkind.Invalid, "a budget of %d bytes; it must be positive", c.BudgetBytes)
	case c.IdleTimeout < 0 || c.SilenceTimeout < 0:
		return errkind.Errorf(errkind.Invalid, "fetch: timeouts cannot be negative")
	}
	if c.Streams == 0 {
		c.Streams = DefaultStreams
	}
	if c.IdleTimeout == 0 {
		c.IdleTimeout = time.Minute
	}
	if c.SilenceTimeout == 0 {
		c.SilenceTimeout = 30 * time.Second
	}
	if c.OnDone == nil {
		c.OnDone = func(string, int64, time.Duration, error) {}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return nil
}
