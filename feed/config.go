package feed

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"time"

	"google.golang.org/grpc"

	"github.com/millrace/millrace/feed/fetch"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/partition"
	"github.com/millrace/millrace/preprocess/partition/flightdata"
)

// MinBudgetBytes is the smallest budget that a sidecar works with, besides the windows of its data streams.
const MinBudgetBytes = 16 << 20

// Config is what a Sidecar needs.
type Config struct {
	// Name of the sidecar, unique among live ones.
	Name string
	// Dispatcher is the connection for control messages. It stays the caller's.
	Dispatcher grpc.ClientConnInterface
	// Listeners are where trainers connect; the sidecar closes them. Beside the path of each Unix socket is one of the ring
	// protocol.
	Listeners []net.Listener
	// NoRing keeps batches out of shared memory: all go by Flight.
	NoRing bool
	// BudgetBytes is what slices, batches and the windows of data streams may take.
	BudgetBytes int64
	// Streams is how many slices are fetched at a time; 0: fetch.DefaultStreams.
	Streams int
	// Local has the fetchers of workers in the same process by their address, such as "local:w0".
	Local map[string]partition.Fetcher
	// Dial connects to workers; nil: over the network. WorkerTLS says how to encrypt that; nil: plain text.
	Dial      func(ctx context.Context, address string) (net.Conn, error)
	WorkerTLS func() *tls.Config
	// ServerOptions are added to those of the server for trainers.
	ServerOptions []grpc.ServerOption
	// Services, if set, adds more services to the server for trainers, such as those of a dispatcher in the same process.
	Services func(grpc.ServiceRegistrar)
	// GoneTimeout is how long a session stays open without a connection; 0: 30 seconds.
	GoneTimeout time.Duration
	// OnIdle, if set, is called each time the last session has closed.
	OnIdle func()
	// Logger; nil: slog's default.
	Logger *slog.Logger
}

// Validate names what is wrong, as an error of kind Invalid, and fills defaults in.
func (c *Config) Validate() error {
	switch {
	case c.Dispatcher == nil:
		return errkind.Errorf(errkind.Internal, "sidecar: Dispatcher must be set")
	case c.Name == "":
		return errkind.Errorf(errkind.Invalid, "the sidecar needs a name")
	case len(c.Listeners) == 0:
		return errkind.Errorf(errkind.Invalid, "the sidecar needs an address to listen on")
	case c.Streams < 0 || c.Streams > 1024:
		return errkind.Errorf(errkind.Invalid, "%d data streams; choose 1 to 1024", c.Streams)
	case c.GoneTimeout < 0:
		return errkind.Errorf(errkind.Invalid, "sidecar: timeouts cannot be negative")
	}
	if c.Streams == 0 {
		c.Streams = fetch.DefaultStreams
	}
	if c.payload() < MinBudgetBytes {
		return errkind.Errorf(errkind.Invalid, "a budget of %d bytes is too small: %d data streams take %d, and batches at least %d",
			c.BudgetBytes, c.Streams, c.windows(), MinBudgetBytes)
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return nil
}

// windows is what the flow-control windows of data streams take.
func (c *Config) windows() int64 { return int64(c.Streams) * flightdata.WindowBytes }

// payload is what is left for slices and batches.
func (c *Config) payload() int64 { return c.BudgetBytes - c.windows() }
