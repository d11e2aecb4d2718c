package fetch

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/partition"
	"github.com/millrace/millrace/preprocess/partition/flightdata"
)

// conns are the connections to workers: a channel for each ticket under way, or one of HTTP/2 to a worker that has none.
type conns struct {
	cfg *Config

	mu sync.Mutex
	by map[string]*conn
}

// conn is what there is to one address.
type conn struct {
	channels []*channel       // nobody uses them; the last one was used last
	client   *grpc.ClientConn // nil unless the worker has no channels
	users    int
	idle     time.Time // since when there is no user
}

func newConns(cfg *Config) *conns { return &conns{cfg: cfg, by: map[string]*conn{}} }

// acquire gives a fetcher for the worker at an address, and what to call when it is not used any more.
func (c *conns) acquire(address string) (partition.Fetcher, func(), error) {
	if f := c.cfg.Local[address]; f != nil {
		return f, func() {}, nil
	}
	if strings.HasPrefix(address, "local:") || address == "" {
		return nil, nil, errkind.Errorf(errkind.Unavailable, "the worker at %q is not in this process", address)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.by[address]
	if v == nil {
		v = &conn{}
		c.by[address] = v
	}
	v.users++
	release := func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		v.users--
		v.idle = time.Now()
	}
	return remote{conns: c, address: address, to: v}, release, nil
}

// read reads a ticket from the worker at an address, to which v is.
func (c *conns) read(ctx context.Context, address string, v *conn, ticket []byte, fn func(int, arrow.RecordBatch) error) error {
	for {
		ch, client, err := c.take(ctx, address, v)
		if err != nil {
			return err
		}
		if client != nil {
			return readFlight(ctx, client, ticket, c.cfg.Pool, fn)
		}
		err = ch.read(ctx, ticket, c.cfg.Pool, fn)
		switch {
		case err == nil && ctx.Err() == nil:
			c.put(v, ch)
			return nil
		case err != nil && ch.stale() && ctx.Err() == nil:
			_ = ch.conn.Close()
			continue // once for each channel that was kept
		}
		_ = ch.conn.Close()
		return err
	}
}

// take is a channel to an address, or a connection of HTTP/2.
func (c *conns) take(ctx context.Context, address string, v *conn) (*channel, *grpc.ClientConn, error) {
	c.mu.Lock()
	client := v.client
	var ch *channel
	if n := len(v.channels); client == nil && n > 0 {
		ch, v.channels = v.channels[n-1], v.channels[:n-1]
	}
	c.mu.Unlock()
	if client != nil || ch != nil {
		return ch, client, nil
	}
	ch, err := openChannel(ctx, c.cfg, address)
	if err == nil || !errors.Is(err, errNoChannels) {
		return ch, nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if v.client == nil {
		if v.client, err = c.dial(address); err != nil {
			return nil, nil, err
		}
	}
	return nil, v.client, nil
}

func (c *conns) put(v *conn, ch *channel) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ch.used, ch.idle = true, time.Now()
	v.channels = append(v.channels, ch)
}

func (c *conns) dial(address string) (*grpc.ClientConn, error) {
	target := "passthrough:///" + address
	if strings.HasPrefix(address, "unix:") {
		target = address
	}
	creds := insecure.NewCredentials()
	if config := c.cfg.tlsFor(address); config != nil {
		creds = credentials.NewTLS(config)
	}
	options := append(flightdata.DialOptions(),
		grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessageBytes)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}),
	)
	if c.cfg.Dial != nil {
		target = "passthrough:///" + address
		options = append(options, grpc.WithContextDialer(c.cfg.Dial))
	}
	client, err := grpc.NewClient(target, options...)
	if err != nil {
		return nil, errkind.With(errkind.Unavailable, fmt.Errorf("connecting to the worker at %s: %w", address, err))
	}
	return client, nil
}

// sweep closes connections without a user since before.
func (c *conns) sweep(before time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for address, v := range c.by {
		kept := v.channels[:0]
		for _, ch := range v.channels {
			if ch.idle.Before(before) {
				_ = ch.conn.Close()
				continue
			}
			kept = append(kept, ch)
		}
		clear(v.channels[len(kept):])
		v.channels = kept
		if v.users > 0 || len(kept) > 0 || !v.idle.Before(before) {
			continue
		}
		if v.client != nil {
			_ = v.client.Close() // it can only say that it was closed already
		}
		delete(c.by, address)
	}
}

// len is the number of workers to which there are connections.
func (c *conns) len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.by)
}

// tlsFor is how to encrypt a connection to an address; nil: not at all. Unix sockets are not: nobody else can listen.
func (c *Config) tlsFor(address string) *tls.Config {
	if c.TLS == nil || strings.HasPrefix(address, "unix:") {
		return nil
	}
	return c.TLS()
}
