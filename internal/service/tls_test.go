package service_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/testcert"
)

// lockedBuffer is a log that can be read while it is written.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
	end  time.Time
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// waits waits a moment, until too many have passed.
func (b *lockedBuffer) waits(t *testing.T) bool {
	t.Helper()
	if b.end.IsZero() {
		b.end = time.Now().Add(30 * time.Second)
	}
	time.Sleep(time.Millisecond)
	return time.Now().Before(b.end)
}

func openTLS(t *testing.T, f service.TLSFiles) *service.TLS {
	t.Helper()
	out, err := f.Open(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// serveHealth serves health checks, encrypted by server, until the test ends.
func serveHealth(t *testing.T, address string, server *service.TLS) string {
	t.Helper()
	l, err := service.Listen(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(append(service.ServerOptions(), server.ServerOptions()...)...)
	service.RegisterHealth(g)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- service.ServeGRPC(ctx, g, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	if l.Addr().Network() == "unix" {
		return address
	}
	return l.Addr().String()
}

// check asks for the health of a server through a new connection.
func check(t *testing.T, address string, client *service.TLS) error {
	t.Helper()
	conn, err := service.Dial(address, client)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, err = healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{})
	return err
}

// Who may speak to whom, and what those hear who may not.
func TestBothSidesMustBeWhoTheySay(t *testing.T) {
	ours, theirs := testcert.NewAuthority(t), testcert.NewAuthority(t)
	tomorrow := time.Now().Add(24 * time.Hour)
	good, named := ours.Issue("good", tomorrow), ours.Issue("named", tomorrow, "millrace.internal")
	old, foreign := ours.Issue("old", time.Now().Add(-time.Hour)), theirs.Issue("foreign", tomorrow)
	files := func(f testcert.Files, ca string) *service.TLSFiles {
		return &service.TLSFiles{Cert: f.Cert, Key: f.Key, CA: ca}
	}
	mutual := files(good, ours.File)
	withName := *mutual
	withName.Name = "millrace.internal"
	for name, c := range map[string]struct {
		server, client *service.TLSFiles
		says           string // in the error; empty: it works
		log            string // in the server's log
	}{
		"plain text":                              {nil, nil, "", ""},
		"both with certificates":                  {mutual, mutual, "", ""},
		"a server that asks for no certificate":   {files(good, ""), &service.TLSFiles{CA: ours.File}, "", ""},
		"a client without a certificate":          {mutual, &service.TLSFiles{CA: ours.File}, "rpc error", "client didn't provide a certificate"},
		"a client of another authority":           {mutual, files(foreign, ours.File), "rpc error", "certificate signed by unknown authority"},
		"a client whose certificate has expired":  {mutual, files(old, ours.File), "rpc error", "certificate has expired"},
		"a server of another authority":           {files(foreign, ""), mutual, "certificate signed by unknown authority", "bad certificate"},
		"a server whose certificate has expired":  {files(old, ""), mutual, "certificate has expired", "bad certificate"},
		"a server with a certificate for another": {files(named, ""), mutual, "doesn't contain any IP SANs", "bad certificate"},
		"a name that all servers have":            {files(named, ""), &withName, "", ""},
		"another name":                            {files(good, ""), &withName, "wanted to match millrace.internal", "bad certificate"},
		"a client in plain text":                  {mutual, nil, "the other side hung up at once; if it encrypts, give --tls-ca", "first record does not look like a TLS handshake"},
		"a server in plain text":                  {nil, mutual, "the other side does not encrypt, and this one is set to; give it --tls-cert and --tls-key", ""},
	} {
		var server, client *service.TLS
		var log lockedBuffer
		if c.server != nil {
			var err error
			if server, err = c.server.Open(slog.New(slog.NewTextHandler(&log, nil))); err != nil {
				t.Fatal(err)
			}
		}
		if c.client != nil {
			client = openTLS(t, *c.client)
		}
		err := check(t, serveHealth(t, "127.0.0.1:0", server), client)
		if (err != nil) != (c.says != "") || !strings.Contains(fmt.Sprint(err), c.says) {
			t.Errorf("%s: %v", name, err)
		}
		for c.log != "" && !strings.Contains(log.String(), c.log) {
			if !log.waits(t) {
				t.Errorf("%s: the server logged %q", name, log.String())
				break
			}
		}
	}
}

// A Unix socket is not encrypted, whatever the flags say, and a server can have both.
func TestUnixSocketsAreNotEncrypted(t *testing.T) {
	ours := testcert.NewAuthority(t)
	good := ours.Issue("good", time.Now().Add(time.Hour))
	mutual := openTLS(t, service.TLSFiles{Cert: good.Cert, Key: good.Key, CA: ours.File})
	address := serveHealth(t, "unix://"+t.TempDir()+"/s", mutual)
	for _, client := range []*service.TLS{nil, mutual} {
		if err := check(t, address, client); err != nil {
			t.Error(err)
		}
	}
}

// grpc+tls:// encrypts without any flag, by the authorities of the system.
func TestASchemeAsksForEncryption(t *testing.T) {
	ours := testcert.NewAuthority(t)
	good := ours.Issue("good", time.Now().Add(time.Hour))
	address := serveHealth(t, "127.0.0.1:0", openTLS(t, service.TLSFiles{Cert: good.Cert, Key: good.Key}))
	if err := check(t, "grpc+tls://"+address, nil); err == nil || !strings.Contains(err.Error(), "certificate signed by unknown authority") {
		t.Error(err)
	}
	if err := check(t, "grpc+tls://"+address, openTLS(t, service.TLSFiles{CA: ours.File})); err != nil {
		t.Error(err)
	}
}

// Certificates can be renewed under running processes: the next connection has the new ones. Files that cannot be read leave
// the old ones.
func TestCertificatesAreReadAgain(t *testing.T) {
	ours, next := testcert.NewAuthority(t), testcert.NewAuthority(t)
	tomorrow := time.Now().Add(24 * time.Hour)
	good := ours.Issue("good", tomorrow)
	authority := ours.File + ".of.server"
	install := func(from, to string) {
		text, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(to, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		future := time.Now().Add(time.Minute) // a clock too coarse to tell two writes apart must not matter here
		if err := os.Chtimes(to, future, future); err != nil {
			t.Fatal(err)
		}
	}
	install(ours.File, authority)
	server := openTLS(t, service.TLSFiles{Cert: good.Cert, Key: good.Key, CA: authority})
	old := openTLS(t, service.TLSFiles{Cert: good.Cert, Key: good.Key, CA: ours.File})
	address := serveHealth(t, "127.0.0.1:0", server)
	if err := check(t, address, old); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(authority, []byte("half of a fi"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := check(t, address, old); err != nil {
		t.Errorf("while a file is being written: %v", err)
	}
	fresh := next.Issue("fresh", tomorrow)
	install(next.File, authority)
	install(fresh.Cert, good.Cert)
	install(fresh.Key, good.Key)
	if err := check(t, address, openTLS(t, service.TLSFiles{Cert: fresh.Cert, Key: fresh.Key, CA: next.File})); err != nil {
		t.Errorf("with renewed certificates: %v", err)
	}
	// The old client has the new certificate too, since its file is the same, but not the new authority.
	if err := check(t, address, old); err == nil || !strings.Contains(err.Error(), "certificate signed by unknown authority") {
		t.Errorf("with the old authority: %v", err)
	}
}

func TestWrongFilesAreRefused(t *testing.T) {
	ours := testcert.NewAuthority(t)
	good, other := ours.Issue("good", time.Now().Add(time.Hour)), ours.Issue("other", time.Now().Add(time.Hour))
	for _, c := range []struct {
		files service.TLSFiles
		says  string
	}{
		{service.TLSFiles{Cert: good.Cert}, "belong together"},
		{service.TLSFiles{Cert: "nowhere.pem", Key: good.Key}, "nowhere.pem"},
		{service.TLSFiles{Cert: good.Cert, Key: other.Key}, "does not match"},
		{service.TLSFiles{CA: good.Key}, "holds no certificate"},
	} {
		if _, err := c.files.Open(nil); errkind.Of(err) != errkind.Invalid || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v", c.files, err)
		}
	}
	if out, err := (&service.TLSFiles{}).Open(nil); out != nil || err != nil {
		t.Errorf("without files: %v, %v", out, err)
	}
	l, err := service.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if err := openTLS(t, service.TLSFiles{CA: ours.File}).Serves(l); errkind.Of(err) != errkind.Invalid {
		t.Errorf("a server without a certificate: %v", err)
	}
}
