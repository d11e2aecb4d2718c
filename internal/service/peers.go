package service

import (
	"context"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/internal/errkind"
)

const (
	// peerPatience is how long a peer may take to answer a new connection.
	peerPatience = time.Second
	firstRedial  = 50 * time.Millisecond
	mostRedial   = 500 * time.Millisecond
)

// Peers is a connection to whichever of some peers serves: of a dispatcher and its standbys, one does. A peer that does
// not answer is left for the next one; see [Peers.Leave]. It is safe for concurrent use.
type Peers struct {
	addresses []string
	tls       *TLS
	options   []grpc.DialOption

	mu     sync.Mutex
	at     int
	conn   *grpc.ClientConn
	since  time.Time // it is in use since then
	closed bool
}

// DialPeers makes a connection to one of the addresses of a list, separated by commas, encrypted by t unless that is nil; it
// connects when it is first used.
func DialPeers(list string, t *TLS, more ...grpc.DialOption) (*Peers, error) {
	p := &Peers{tls: t, options: append([]grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: firstRedial, Multiplier: 1.6, Jitter: 0.2, MaxDelay: mostRedial},
		MinConnectTimeout: peerPatience,
	})}, more...)}
	for address := range strings.SplitSeq(list, ",") {
		address = strings.TrimSpace(address)
		if _, _, err := SplitAddress(address); err != nil {
			return nil, err
		}
		p.addresses = append(p.addresses, address)
	}
	var err error
	p.conn, err = Dial(p.addresses[0], p.tls, p.options...)
	return p, err
}

// current is the connection in use.
func (p *Peers) current() (*grpc.ClientConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errkind.Errorf(errkind.Canceled, "the connection is closed")
	}
	return p.conn, nil
}

// Leave goes on to the next peer; what runs on the present connection is broken off. It is called when a stream has ended
// because its peer is silent or gone. A connection that was made just now, after another stream found the same, stays.
func (p *Peers) Leave() {
	p.mu.Lock()
	conn, fresh := p.conn, time.Since(p.since) < peerPatience
	p.mu.Unlock()
	if !fresh || conn.GetState() == connectivity.TransientFailure {
		p.leave(conn)
	}
}

// leave goes on from conn, unless that was done already.
func (p *Peers) leave(from *grpc.ClientConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.conn != from {
		return
	}
	next := (p.at + 1) % len(p.addresses)
	conn, err := Dial(p.addresses[next], p.tls, p.options...)
	if err != nil {
		return // not reached: every address was dialled or checked before
	}
	_ = p.conn.Close() // whatever ran on it is broken off
	p.at, p.conn, p.since = next, conn, time.Now()
}

// Invoke implements grpc.ClientConnInterface.
func (p *Peers) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	conn, err := p.current()
	if err != nil {
		return err
	}
	err = conn.Invoke(ctx, method, args, reply, opts...)
	if p.gone(err) {
		p.leave(conn)
	}
	return err
}

// NewStream implements grpc.ClientConnInterface.
func (p *Peers) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	conn, err := p.current()
	if err != nil {
		return nil, err
	}
	stream, err := conn.NewStream(ctx, desc, method, opts...)
	if p.gone(err) {
		p.leave(conn)
	}
	return stream, err
}

// gone says whether an error shows that nobody serves there, where there are others to ask.
func (p *Peers) gone(err error) bool {
	return len(p.addresses) > 1 && status.Code(err) == codes.Unavailable
}

// Close closes the connection.
func (p *Peers) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	return p.conn.Close()
}
