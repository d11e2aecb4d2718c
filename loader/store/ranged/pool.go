package ranged

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"time"
)

// Pool fits a transport to many long reads at a time: as many idle connections as requests in flight, large buffers,
// HTTP/1.1, whose connections do not share one window, and spread over all addresses of the host.
func Pool(t *http.Transport, inFlight int) {
	if inFlight <= 0 {
		inFlight = 128
	}
	t.MaxIdleConns, t.MaxIdleConnsPerHost, t.MaxConnsPerHost = 0, 2*inFlight, 0
	t.IdleConnTimeout = 30 * time.Second
	t.ReadBufferSize = 64 << 10
	t.DisableCompression = true
	t.ForceAttemptHTTP2 = false
	t.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	t.DialContext = dialSpread
}

const dialTimeout = 5 * time.Second

// dialSpread connects to an address of the host drawn at random, or to another one if that does not answer: stores
// give their name many addresses, and a second request should find another server than the first.
func dialSpread(ctx context.Context, network, address string) (net.Conn, error) {
	d := &net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("address %s: %w", address, err)
	}
	if net.ParseIP(host) != nil {
		return d.DialContext(ctx, network, address)
	}
	ips, err := net.DefaultResolver.LookupIP(ctx, "ip", host)
	if err != nil || len(ips) < 2 {
		return d.DialContext(ctx, network, address)
	}
	for _, i := range rand.Perm(len(ips))[:min(3, len(ips))] {
		conn, dialErr := d.DialContext(ctx, network, net.JoinHostPort(ips[i].String(), port))
		if dialErr == nil {
			return conn, nil
		}
		err = dialErr
	}
	return nil, err
}
