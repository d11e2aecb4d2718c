package e2e

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/millrace/millrace/feed/client"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/testcert"
)

// Encrypted, with certificates on both sides, all roles give the same stream; who does not encrypt, or has no certificate, is
// told what to do.
func TestEncryptedRolesGiveTheSameStream(t *testing.T) {
	const batch = 24
	p, recipe := imageSet(t, 4, 30)
	want := byLocal(t, p, recipe, batch)
	ours := testcert.NewAuthority(t)
	good := ours.Issue("good", time.Now().Add(time.Hour))
	files := service.TLSFiles{Cert: good.Cert, Key: good.Key, CA: ours.File}
	encrypted := files.Args()

	dispatcher := p.start(millrace(), append(encrypted, "dispatcher", "--listen", "127.0.0.1:0")...)
	for range 2 {
		p.start(millrace(), append(encrypted, "worker", "--dispatcher", dispatcher.address(0), "--cpu-slots", "1")...)
	}
	first := p.start(millrace(), append(encrypted, "sidecar", "--dispatcher", dispatcher.address(0), "--listen", "127.0.0.1:0")...)
	second := p.start(sidecar(), append(encrypted, "--dispatcher", dispatcher.address(0), "--listen", "127.0.0.1:0", "--listen", "unix://"+p.path("s"))...)
	keys, err := files.Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := service.Dial(first.address(0), keys, client.DialOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	sameStream(t, want, readRanks(t, recipe, batch, [2]*grpc.ClientConn{conn, dial(t, second.address(1))}, idle))

	run := []string{"run", recipe, "--endpoint", second.address(0), "--batch", "24"}
	p.must(append(encrypted, run...)...)
	for _, c := range []struct {
		args []string
		says string
	}{
		{nil, "if it encrypts, give --tls-ca"},
		{[]string{"--tls-ca", testcert.NewAuthority(t).File}, "certificate signed by unknown authority"},
		{[]string{"--tls-cert", good.Cert}, "--tls-cert and --tls-key belong together"},
	} {
		for _, args := range [][]string{run, {"status", "--endpoint", dispatcher.address(0)}} {
			if a := p.millrace(append(c.args, args...)...); a.code == 0 || !strings.Contains(a.errors, c.says) {
				t.Errorf("%v %v: exit code %d\n%s", c.args, args, a.code, a.errors)
			}
		}
	}
}

// A trainer in Python reads from another host as the roles do, by the same settings.
func TestTrainersInPythonEncrypt(t *testing.T) {
	p, recipe := imageSet(t, 2, 32)
	ours := testcert.NewAuthority(t)
	good := ours.Issue("good", time.Now().Add(time.Hour))
	files := service.TLSFiles{Cert: good.Cert, Key: good.Key, CA: ours.File}
	r := p.start(millrace(), append(files.Args(), "local", "--listen", "127.0.0.1:0")...)
	read := func(env ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		c := exec.CommandContext(ctx, "python3", "-c", "import sys, millrace as mr\n"+
			"loader = mr.DataLoader(sys.argv[1], batch_size=16, endpoint='grpc://' + sys.argv[2], rank=0, world_size=1)\n"+
			"print(sum(len(b['label']) for b in loader))", recipe, r.address(0))
		c.Env = append(append(c.Environ(), p.env...), env...)
		out, err := c.CombinedOutput()
		return string(out), err
	}
	if out, err := read("MILLRACE_TLS_CERT="+good.Cert, "MILLRACE_TLS_KEY="+good.Key, "MILLRACE_TLS_CA="+ours.File); err != nil || strings.TrimSpace(out) != "64" {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := read("MILLRACE_TLS_CA=" + ours.File); err == nil || !strings.Contains(out, "UnavailableError") {
		t.Errorf("without a certificate: %v: %s", err, out)
	}
}
