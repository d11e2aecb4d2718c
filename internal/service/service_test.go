package service_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"go.uber.org/goleak"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/service"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAddressesAreReadInEveryForm(t *testing.T) {
	for _, c := range []struct{ address, network, target string }{
		{"unix:///run/m.sock", "unix", "/run/m.sock"},
		{"unix:/run/m.sock", "unix", "/run/m.sock"},
		{"grpc+unix:///run/m.sock", "unix", "/run/m.sock"},
		{"grpc://localhost:4000", "tcp", "localhost:4000"},
		{"[::1]:4000", "tcp", "[::1]:4000"},
		{":0", "tcp", ":0"},
	} {
		network, target, err := service.SplitAddress(c.address)
		if err != nil || network != c.network || target != c.target {
			t.Errorf("%s: %s %s, %v", c.address, network, target, err)
		}
	}
	for _, bad := range []string{"", "localhost", "unix:relative.sock", "http://x"} {
		if _, _, err := service.SplitAddress(bad); errkind.Of(err) != errkind.Invalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestAnAddressThatIsTakenIsNamed(t *testing.T) {
	socket := "unix://" + filepath.Join(t.TempDir(), "m.sock")
	for _, address := range []string{socket, "127.0.0.1:0"} {
		first, err := service.Listen(t.Context(), address)
		if err != nil {
			t.Fatal(err)
		}
		if address != socket {
			address = first.Addr().String()
		}
		if _, err := service.Listen(t.Context(), address); errkind.Of(err) != errkind.Conflict || !strings.Contains(err.Error(), "in use") {
			t.Errorf("%s twice: %v", address, err)
		}
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAStaleSocketIsReplacedAndAFileIsNot(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "m.sock")
	l, err := net.Listen("unix", path) //nolint:noctx // Nothing to cancel.
	if err != nil {
		t.Fatal(err)
	}
	socket, ok := l.(*net.UnixListener)
	if !ok {
		t.Fatalf("listener is a %T", l)
	}
	socket.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := service.Listen(t.Context(), "unix://"+path)
	if err != nil {
		t.Fatalf("stale socket: %v", err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket has mode %v, %v", info.Mode(), err)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("keep"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := service.Listen(t.Context(), "unix://"+file); errkind.Of(err) != errkind.Conflict {
		t.Errorf("a file in the way: %v", err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "keep" {
		t.Error("the file was harmed")
	}
}

func flagSet() (*pflag.FlagSet, *service.Bytes, *int, *[]string) {
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	var size service.Bytes
	flags.Var(&size, "budget", "")
	slots := flags.Int("cpu-slots", 1, "")
	listen := flags.StringSlice("listen", nil, "")
	flags.String(service.ConfigFlag, "", "")
	return flags, &size, slots, listen
}

func TestFlagsWinOverEnvironmentOverFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("budget: 1GiB\ncpu_slots: 2\nlisten: [a, b]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	flags, size, slots, listen := flagSet()
	if err := flags.Parse([]string{"--config", file, "--budget", "3MiB"}); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"MILLRACE_CPU_SLOTS": "5", "MILLRACE_BUDGET": "7"}
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	if err := service.Configure(flags, lookup); err != nil {
		t.Fatal(err)
	}
	if *size != 3<<20 || *slots != 5 || strings.Join(*listen, " ") != "a b" {
		t.Errorf("budget %d, slots %d, listen %v", *size, *slots, *listen)
	}
}

func TestMistakesInConfigurationAreNamed(t *testing.T) {
	dir := t.TempDir()
	write := func(text string) string {
		path := filepath.Join(dir, "c.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	none := func(string) (string, bool) { return "", false }
	for _, c := range []struct {
		text, want string
		lookup     func(string) (string, bool)
	}{
		{"bugdet: 1", `unknown key "bugdet"; did you mean "budget"?`, none},
		{"cpu-slots: many", "cpu-slots", none},
		{"- a", "is not a YAML mapping", none},
		{"", `MILLRACE_BUDGET="lots"`, func(name string) (string, bool) { return "lots", name == "MILLRACE_BUDGET" }},
	} {
		flags, _, _, _ := flagSet()
		if err := flags.Parse([]string{"--config", write(c.text)}); err != nil {
			t.Fatal(err)
		}
		if err := service.Configure(flags, c.lookup); errkind.Of(err) != errkind.Invalid || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v does not say %q", c.text, err, c.want)
		}
	}
}

func TestSizesRoundTrip(t *testing.T) {
	for text, want := range map[string]int64{"256MiB": 256 << 20, "1.5GB": 15e8, "17": 17, "2 GiB": 2 << 30, "0": 0, "3kB": 3000} {
		var b service.Bytes
		if err := b.Set(text); err != nil || int64(b) != want {
			t.Errorf("%q is %d, %v; want %d", text, b, err, want)
		}
		var again service.Bytes
		if err := again.Set(b.String()); err != nil || again != b {
			t.Errorf("%q is written as %q and read as %d", text, b.String(), again)
		}
	}
	for _, bad := range []string{"", "-1", "MiB", "1e30TB", "NaN"} {
		var b service.Bytes
		if b.Set(bad) == nil {
			t.Errorf("%q passed as %d", bad, b)
		}
	}
}

func TestAGroupEndsWithItsFirstError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := service.NewGroup(t.Context())
		broken := errors.New("broken")
		g.Go(func(ctx context.Context) error { <-ctx.Done(); return nil })
		g.Go(func(context.Context) error { return broken })
		if err := g.Wait(time.Second); !errors.Is(err, broken) {
			t.Errorf("group ended with %v", err)
		}
		stopped := service.NewGroup(t.Context())
		stopped.Go(func(ctx context.Context) error { <-ctx.Done(); return nil })
		stopped.Stop()
		if err := stopped.Wait(time.Second); err != nil {
			t.Errorf("a group stopped on purpose ended with %v", err)
		}
		release := make(chan struct{})
		stuck := service.NewGroup(t.Context())
		stuck.Go(func(context.Context) error { <-release; return nil })
		stuck.Stop()
		if err := stuck.Wait(time.Second); err == nil {
			t.Error("a part that does not stop goes unnoticed")
		}
		close(release)
	})
}

func TestMonitorServesMetrics(t *testing.T) {
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "millrace_test_total", Help: "Test."})
	counter.Add(3)
	registry, err := service.NewRegistry(counter)
	if err != nil {
		t.Fatal(err)
	}
	l, err := service.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := service.NewGroup(t.Context())
	g.Go(func(ctx context.Context) error { return service.ServeMonitor(ctx, l, registry) })
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for path, want := range map[string]string{"/metrics": "millrace_test_total 3", "/healthz": "ok"} {
		resp, err := client.Get("http://" + l.Addr().String() + path) //nolint:noctx // Nothing to cancel.
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if closeErr := resp.Body.Close(); err != nil || closeErr != nil || !strings.Contains(string(body), want) {
			t.Errorf("%s says %q, %v", path, body, err)
		}
	}
	g.Stop()
	if err := g.Wait(time.Second); err != nil {
		t.Error(err)
	}
}
