package fetch

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/grpcerr"
	"github.com/millrace/millrace/preprocess/partition"
	"github.com/millrace/millrace/preprocess/partition/flightdata"
)

// connectTimeout is how long a worker may take to accept a connection and to greet.
const connectTimeout = 10 * time.Second

// errNoChannels is the error of a worker that speaks Flight alone.
var errNoChannels = errors.New("the worker has no channels")

// channel is a connection that carries slices without HTTP/2, for one ticket at a time.
type channel struct {
	conn   net.Conn
	frames *flightdata.FrameReader
	idle   time.Time
	used   bool // it has carried a ticket before
	came   bool // something has come of the present ticket
}

// openChannel connects to the worker at an address.
func openChannel(ctx context.Context, cfg *Config, address string) (*channel, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := dialWorker(ctx, cfg, address)
	if err != nil {
		return nil, errkind.With(errkind.Unavailable, fmt.Errorf("connecting to the worker at %s: %w", address, err))
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	secure, err := greet(ctx, conn, cfg.tlsFor(address), address)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return &channel{conn: secure, frames: flightdata.NewFrameReader(secure, MaxMessageBytes)}, nil
}

func dialWorker(ctx context.Context, cfg *Config, address string) (net.Conn, error) {
	if cfg.Dial != nil {
		return cfg.Dial(ctx, address)
	}
	var dialer net.Dialer
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		return dialer.DialContext(ctx, "unix", "/"+strings.TrimLeft(path, "/"))
	}
	return dialer.DialContext(ctx, "tcp", address)
}

// greet is the client's half of the beginning.
func greet(ctx context.Context, conn net.Conn, config *tls.Config, address string) (net.Conn, error) {
	mine := partition.Greeting{TLS: config != nil}
	if _, err := conn.Write(mine.Append(nil)); err != nil {
		return nil, errNoChannels
	}
	var b [partition.GreetingBytes]byte
	if _, err := io.ReadFull(conn, b[:]); err != nil {
		if ctx.Err() != nil {
			return nil, errkind.With(errkind.Unavailable, fmt.Errorf("the worker at %s does not greet: %w", address, context.Cause(ctx)))
		}
		return nil, errNoChannels
	}
	theirs, err := partition.ParseGreeting(b[:])
	switch {
	case err != nil:
		return nil, errNoChannels
	case theirs.TLS && !mine.TLS:
		return nil, errkind.Errorf(errkind.Unavailable, "the worker at %s wants TLS, which this sidecar is not set to; give it --tls-cert, --tls-key and --tls-ca", address)
	case !theirs.TLS && mine.TLS:
		return nil, errkind.Errorf(errkind.Unavailable, "the worker at %s does not encrypt, which this sidecar is set to; give the worker --tls-cert, --tls-key and --tls-ca", address)
	case config == nil:
		return conn, nil
	}
	if config.ServerName == "" {
		config = config.Clone()
		if config.ServerName, _, err = net.SplitHostPort(address); err != nil {
			return nil, errkind.Errorf(errkind.Invalid, "address of a worker: %w", err)
		}
	}
	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, errkind.With(errkind.Unavailable, fmt.Errorf("handshake of TLS with the worker at %s: %w", address, err))
	}
	return secure, nil
}

// read asks for a ticket and calls fn for each record batch that comes. A channel on which it fails is of no use any more,
// other than by an error of the ticket.
func (c *channel) read(ctx context.Context, ticket []byte, pool *partition.Pool, fn func(i int, rec arrow.RecordBatch) error) error {
	stop := context.AfterFunc(ctx, func() { _ = c.conn.Close() })
	defer stop()
	c.came = false
	if _, err := c.conn.Write(partition.AppendRequest(nil, ticket)); err != nil {
		return errkind.With(errkind.Unavailable, fmt.Errorf("asking a worker for slices: %w", err))
	}
	err := readStream(c, pool, fn)
	if err != nil && ctx.Err() != nil {
		return errkind.With(errkind.Canceled, context.Cause(ctx))
	}
	return err
}

// RecvMsg reads the next message; io.EOF after the last one.
func (c *channel) RecvMsg(m any) error {
	in, ok := m.(*flightdata.Incoming)
	if !ok {
		return errkind.Errorf(errkind.Internal, "a channel carries no %T", m)
	}
	slice, sum, err := c.frames.Next(in)
	if remote, ok := errors.AsType[*flightdata.RemoteError](err); ok {
		c.came = true
		return grpcerr.FromStatus(status.Error(codes.Unknown, remote.Text))
	}
	c.came = c.came || err == nil || errors.Is(err, io.EOF)
	if err != nil {
		return err
	}
	in.AppMetadata = partition.AppMetadata{Slice: slice, CRC32C: sum}.Append(nil)
	return nil
}

// stale says whether a ticket failed since the worker hung up on a channel that nobody used for a while.
func (c *channel) stale() bool { return c.used && !c.came }
