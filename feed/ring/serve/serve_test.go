package serve_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/feed/ring"
	"github.com/millrace/millrace/feed/ring/serve"
)

// Whoever does not greet is told so, and a server that ends closes the connections of all.
func TestServeEndsWithItsContext(t *testing.T) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s.ring"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serve.NewServer(nil, slog.New(slog.DiscardHandler)).Serve(ctx, l) }()
	dial := func() net.Conn {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "unix", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	silent, rude := dial(), dial() // accepted in this order: an answer to the second says that the first is being served
	if _, err := rude.Write(make([]byte, ring.HelloBytes)); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(rude)
	if err != nil || !strings.HasSuffix(string(answer), "no greeting of the ring protocol [kind=invalid]") {
		t.Errorf("%q, %v", answer, err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := io.ReadAll(silent); err != nil {
		t.Error(err)
	}
	_ = rude.Close()
	_ = silent.Close()
}
