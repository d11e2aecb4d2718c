package e2e

import (
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/millrace/millrace/feed/client"
)

// kill ends one worker process of a local role as the kernel's memory killer would.
func kill(t *testing.T, p *place, r *role) {
	t.Helper()
	for _, pid := range running(t, r.mark) {
		if pid != r.cmd.Process.Pid {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Error(err)
			}
			return
		}
	}
	t.Errorf("there is no worker process of %s", p.dir)
}

func get(t *testing.T, address, path string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s%s: %s, %v", address, path, resp.Status, err)
	}
	return string(body)
}

// scrape is the names of a role's own metrics, and the values of those and of its process.
func scrape(t *testing.T, r *role) (names []string, text string) {
	t.Helper()
	text = get(t, r.metrics(), "/metrics")
	seen := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (millrace_\w+) `).FindAllStringSubmatch(text, -1) {
		seen[m[1]] = true
	}
	lines := regexp.MustCompile(`(?m)^(millrace|process)_.*$`).FindAllString(text, -1)
	return slices.Sorted(maps.Keys(seen)), strings.Join(lines, "\n")
}

// cluster is each role as a process of its own.
type cluster struct{ dispatcher, worker, sidecar, small *role }

func startCluster(p *place) *cluster {
	p.t.Helper()
	c := &cluster{dispatcher: p.start(millrace(), "dispatcher", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0")}
	address := c.dispatcher.address(0)
	c.worker = p.start(millrace(), "worker", "--dispatcher", address, "--listen", "unix://"+p.path("w"), "--metrics", "127.0.0.1:0")
	c.sidecar = p.start(millrace(), "sidecar", "--dispatcher", address, "--listen", "unix://"+p.path("a"), "--metrics", "127.0.0.1:0")
	c.small = p.start(sidecar(), "--dispatcher", address, "--listen", "unix://"+p.path("b"), "--metrics", "127.0.0.1:0")
	return c
}

func TestEveryRoleSaysThatItIsHealthy(t *testing.T) {
	p := newPlace(t)
	c := startCluster(p)
	local := p.start(millrace(), "local", "--socket", p.path("s"), "--metrics", "127.0.0.1:0")
	for address, r := range map[string]*role{
		c.dispatcher.address(0): c.dispatcher, "unix://" + p.path("w"): c.worker, c.sidecar.address(0): c.sidecar,
		c.small.address(0): c.small, local.address(0): local,
	} {
		answer, err := healthv1.NewHealthClient(dial(t, address)).Check(t.Context(), &healthv1.HealthCheckRequest{})
		if err != nil || answer.GetStatus() != healthv1.HealthCheckResponse_SERVING {
			t.Errorf("%v: %v, %v", r.ready, answer, err)
		}
		if got := get(t, r.metrics(), "/healthz"); got != "ok\n" {
			t.Errorf("%v: /healthz answers %q", r.ready, got)
		}
	}
}

// What a rank waits for, gets and has ready is seen from outside while it reads.
func TestMetricsOfEveryRoleMove(t *testing.T) {
	p, recipe := imageSet(t, 4, 64)
	c := startCluster(p)
	arrived, looked := make(chan struct{}), make(chan struct{})
	readRanks(t, recipe, 16, [2]*grpc.ClientConn{dial(t, c.sidecar.address(0)), dial(t, c.small.address(0))}, func(epoch, rank, step int) {
		if epoch != 1 || step != 3 {
			return
		}
		if rank == 0 {
			close(arrived)
			<-looked
			return
		}
		<-arrived
		defer close(looked)
		for _, x := range []struct {
			role     *role
			patterns []string
		}{
			{c.dispatcher, []string{
				`millrace_dispatcher_jobs 1`, `millrace_dispatcher_workers 1`, `millrace_dispatcher_sealed_batches_total [1-9]\d*`,
				`millrace_dispatcher_held_bytes \d`, `millrace_dispatcher_outstanding_partitions \d`,
			}},
			{c.worker, []string{
				`millrace_worker_samples_total [1-9]\d*`, `millrace_worker_rows_total [1-9]\d*`, `millrace_worker_held_bytes \d`,
				`millrace_worker_budget_bytes 1\.073741824e\+09`, `millrace_worker_task_duration_seconds_count\{stage=".+"\} [1-9]\d*`,
			}},
			{c.small, []string{
				`millrace_feed_rows_total\{job="train",rank="1"\} [1-9]\d*`, `millrace_feed_bytes_total\{job="train",rank="1"\} [1-9]`,
				`millrace_feed_batches_total\{job="train",rank="1"\} [1-9]\d*`, `millrace_feed_ready_batches\{job="train",rank="1"\} \d`,
				`millrace_feed_stall_seconds_total\{job="train",rank="1"\} \d`, `millrace_feed_fetched_bytes_total [1-9]`, `millrace_feed_sessions 1`,
			}},
			{c.sidecar, []string{`millrace_feed_rows_total\{job="train",rank="0"\} [1-9]\d*`, `process_resident_memory_bytes [1-9]`}},
		} {
			_, text := scrape(t, x.role)
			for _, pattern := range x.patterns {
				matches(t, text, `(?m)^`+pattern)
			}
		}
	})
	select {
	case <-looked:
	default:
		t.Error("the metrics were not looked at")
	}
}

// A metric that nobody can look up means nothing, and one that does not exist misleads.
func TestOperationsListsEveryMetric(t *testing.T) {
	p, recipe := imageSet(t, 1, 32)
	c := startCluster(p)
	s := open(t, dial(t, c.sidecar.address(0)), ask(t, recipe, "train", 0, 1, 16))
	if err := s.Read(t.Context(), s.Info.Start, func(client.Batch) error { return nil }); err != nil {
		t.Fatal(err)
	}
	served := map[string]bool{}
	for _, r := range []*role{c.dispatcher, c.worker, c.sidecar, c.small} {
		names, _ := scrape(t, r)
		if len(names) == 0 {
			t.Errorf("%v serves no metrics of its own", r.ready)
		}
		for _, n := range names {
			served[n] = true
		}
	}
	local := p.start(millrace(), "local", "--socket", p.path("s"), "--metrics", "127.0.0.1:0")
	names, _ := scrape(t, local)
	for _, prefix := range []string{"millrace_dispatcher_", "millrace_worker_", "millrace_feed_"} {
		if !slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, prefix) }) {
			t.Errorf("local serves no %s… metric", prefix)
		}
	}
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile("`(millrace_[a-z_]+)`").FindAllStringSubmatch(readFile(t, root+"/docs/operations.md"), -1) {
		listed[m[1]] = true
	}
	// These have a line only once there is something to count.
	rare := []string{"millrace_worker_errors_total", "millrace_worker_waiting_partitions"}
	for name := range served {
		if !listed[name] {
			t.Errorf("docs/operations.md does not list %s", name)
		}
	}
	for name := range listed {
		if !served[name] && !slices.Contains(rare, name) {
			t.Errorf("docs/operations.md lists %s, which no role serves", name)
		}
	}
}
