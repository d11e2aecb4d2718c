package fetch

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/partition"
	"github.com/millrace/millrace/preprocess/partition/flightdata"
)

// conns are the connections to workers, one each.
type conns struct {
	cfg *Config

	mu sync.Mutex
	by map[string]*conn
}

type conn struct {
	client *grpc.ClientConn
	users  int
	idle   time.Time // since when there is no user
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
		client, err := c.dial(address)
		if err != nil {
			return nil, nil, err
		}
		v = &conn{client: client}
		c.by[address] = v
	}
	v.users++
	release := func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		v.users--
		v.idle = time.Now()
	}
	return remote{conn: v.client, pool: c.cfg.Pool, silence: c.cfg.SilenceTimeout}, release, nil
}

func (c *conns) dial(address string) (*grpc.ClientConn, error) {
	target := "passthrough:///" + address
	if strings.HasPrefix(address, "unix:") {
		target = address
	}
	options := append(flightdata.DialOptions(),
		grpc.WithTransportCredentials(c.cfg.Credentials),
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
		if v.users == 0 && v.idle.Before(before) {
			_ = v.client.Close() // it can only say that it was closed already
			delete(c.by, address)
		}
	}
}

// len is the number of open connections.
func (c *conns) len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.by)
}
