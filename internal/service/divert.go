package service

import (
	"net"
	"sync"
	"time"
)

// firstByteTimeout is how long a client may take to send its first byte.
const firstByteTimeout = 10 * time.Second

// Divert lets a second protocol share the address of l: connections that begin with the byte first go to handle, each in a
// goroutine of its own and without that byte, all others to Accept. Closing what it returns closes l and the connections that were diverted, and
// waits for their goroutines.
func Divert(l net.Listener, first byte, handle func(net.Conn)) net.Listener {
	return &diverter{
		Listener: l, first: first, handle: handle,
		rest: make(chan net.Conn), failed: make(chan error, 1), closed: make(chan struct{}), held: map[net.Conn]struct{}{},
	}
}

type diverter struct {
	net.Listener

	first  byte
	handle func(net.Conn)
	begin  sync.Once
	rest   chan net.Conn
	failed chan error // of Listener, once
	closed chan struct{}
	parts  sync.WaitGroup

	mu    sync.Mutex
	held  map[net.Conn]struct{} // connections whose first byte has not come, and diverted ones
	ended bool
}

// Accept waits for a connection that is not diverted.
func (d *diverter) Accept() (net.Conn, error) {
	d.begin.Do(func() { d.start(d.accept) })
	select {
	case conn := <-d.rest:
		return conn, nil
	case err := <-d.failed:
		d.failed <- err
		return nil, err
	case <-d.closed:
		return nil, net.ErrClosed
	}
}

// start runs part in a goroutine that Close waits for, unless it was closed.
func (d *diverter) start(part func()) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return false
	}
	d.parts.Go(part)
	return true
}

func (d *diverter) accept() {
	for {
		conn, err := d.Listener.Accept()
		if err != nil {
			d.failed <- err
			return
		}
		d.mu.Lock()
		d.held[conn] = struct{}{}
		d.mu.Unlock()
		if !d.start(func() { d.sort(conn) }) {
			_ = conn.Close()
		}
	}
}

// sort looks at the first byte of conn and passes it on.
func (d *diverter) sort(conn net.Conn) {
	var b [1]byte
	_ = conn.SetReadDeadline(time.Now().Add(firstByteTimeout))
	_, err := conn.Read(b[:])
	_ = conn.SetReadDeadline(time.Time{})
	if err == nil && b[0] == d.first {
		d.handle(conn)
	}
	d.mu.Lock()
	delete(d.held, conn)
	d.mu.Unlock()
	if err != nil || b[0] == d.first {
		_ = conn.Close()
		return
	}
	select {
	case d.rest <- &begunConn{Conn: conn, first: b[:]}:
	case <-d.closed:
		_ = conn.Close()
	}
}

// Close ends all.
func (d *diverter) Close() error {
	err := d.Listener.Close()
	d.mu.Lock()
	if !d.ended {
		d.ended = true
		close(d.closed)
	}
	for conn := range d.held {
		_ = conn.Close()
	}
	d.mu.Unlock()
	d.parts.Wait()
	return err
}

// begunConn is a connection of which the first byte was read.
type begunConn struct {
	net.Conn

	first []byte
}

// Read gives the first byte back first.
func (c *begunConn) Read(b []byte) (int, error) {
	if len(c.first) > 0 && len(b) > 0 {
		n := copy(b, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	return c.Conn.Read(b)
}
