package service_test

import (
	"errors"
	"io"
	"net"
	"testing"

	"github.com/millrace/millrace/internal/service"
)

// Two protocols share an address: the first byte decides, nothing of what was sent is lost, and closing ends both.
func TestConnectionsAreDivertedByTheirFirstByte(t *testing.T) {
	base, err := service.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	diverted := make(chan string, 1)
	l := service.Divert(base, 'M', func(c net.Conn) {
		var b [3]byte
		_, _ = io.ReadFull(c, b[:])
		diverted <- string(b[:])
		_, _ = c.Read(b[:]) // until it is closed
	})
	accepted := make(chan error, 1)
	rest := make(chan string, 1)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				accepted <- err
				return
			}
			var b [4]byte
			_, _ = io.ReadFull(c, b[:])
			rest <- string(b[:])
			_ = c.Close()
		}
	}()
	dial := func(text string) net.Conn {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		return c
	}
	silent, own, other := dial(""), dial("Mine"), dial("PRI ")
	if got := <-diverted; got != "ine" {
		t.Errorf("diverted: %q", got)
	}
	if got := <-rest; got != "PRI " {
		t.Errorf("accepted: %q", got)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-accepted; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept after Close: %v", err)
	}
	for _, c := range []net.Conn{silent, own, other} {
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("a connection was left open")
		}
		_ = c.Close()
	}
}
