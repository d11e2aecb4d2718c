package e2e

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"google.golang.org/grpc"
)

// counter is the sum of a role's counter over all labels.
func (r *role) counter(name string) float64 {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, "http://"+r.metrics()+"/metrics", http.NoBody)
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close(); http.DefaultClient.CloseIdleConnections() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	total := 0.0
	for _, m := range regexp.MustCompile(`(?m)^`+name+`(?:\{[^}]*\})? (\S+)$`).FindAllSubmatch(text, -1) {
		v, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil {
			r.t.Fatal(err)
		}
		total += v
	}
	return total
}

// pair is two workers and two sidecars that look for their dispatcher at some addresses.
type pair struct {
	workers  []*role
	sidecars []*role
}

func newPair(p *place, dispatchers string) *pair {
	c := &pair{}
	for i := range 2 {
		// The budget holds a part of an epoch, so that the dispatcher is needed on the way.
		c.workers = append(c.workers, p.start(millrace(), "worker", "--dispatcher", dispatchers, "--listen", "unix://"+p.path(fmt.Sprintf("w%d", i)),
			"--name", fmt.Sprintf("w%d", i), "--cpu-slots", "1", "--budget", "256KiB", "--metrics", "127.0.0.1:0"))
		c.sidecars = append(c.sidecars, p.start(sidecar(), "--dispatcher", dispatchers, "--listen", "unix://"+p.path(fmt.Sprintf("s%d", i))))
	}
	return c
}

func (c *pair) conns(t *testing.T) [2]*grpc.ClientConn {
	t.Helper()
	return [2]*grpc.ClientConn{dial(t, c.sidecars[0].address(0)), dial(t, c.sidecars[1].address(0))}
}

// samples is how many samples the workers have made.
func (c *pair) samples() float64 {
	return c.workers[0].counter("millrace_worker_samples_total") + c.workers[1].counter("millrace_worker_samples_total")
}

// A dispatcher that is killed and started again with its log goes on where it was: every rank gets the stream of the
// undisturbed run, from the same session, and not a sample is made twice.
func TestADispatcherThatIsKilledGoesOnWithItsLog(t *testing.T) {
	const samples, batch, epochs = 400, 16, 2
	p, recipe := imageSet(t, 4, samples/4)
	want := byLocal(t, p, recipe, batch)
	d := "unix://" + p.path("d")
	start := func() *role {
		return p.start(millrace(), "dispatcher", "--listen", d, "--log", p.path("log"), "--metrics", "127.0.0.1:0")
	}
	dispatcher := start()
	c := newPair(p, d)
	var kills sync.Mutex
	killed := map[string]bool{}
	got := readRanks(t, recipe, batch, c.conns(t), func(epoch, _, step int) {
		kills.Lock()
		defer kills.Unlock()
		at := fmt.Sprint(epoch, "/", step)
		if killed[at] || (step != 4 && step != 15) {
			return
		}
		killed[at] = true
		dispatcher.signal(syscall.SIGKILL)
		dispatcher.wait(patience)
		dispatcher = start()
	})
	sameStream(t, want, got)
	if n := c.samples(); n != samples*epochs {
		t.Errorf("%v samples were made; %d are needed", n, samples*epochs)
	}
	if len(killed) != 4 {
		t.Errorf("the dispatcher was killed %d times, want 4", len(killed))
	}
}

// A standby takes over when the dispatcher that leads is killed or frozen. One that wakes up finds itself replaced: nobody
// listens to it, and it ends.
func TestAStandbyTakesOver(t *testing.T) {
	const samples, batch = 400, 16
	for _, how := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
		t.Run(how.String(), func(t *testing.T) {
			p, recipe := imageSet(t, 4, samples/4)
			want := byLocal(t, p, recipe, batch)
			first, second := "unix://"+p.path("d0"), "unix://"+p.path("d1")
			leader := p.start(millrace(), "dispatcher", "--listen", first, "--log", p.path("log"))
			standby := p.start(millrace(), "dispatcher", "--listen", second, "--log", p.path("log"), "--standby")
			c := newPair(p, first+","+second)
			var once sync.Once
			got := readRanks(t, recipe, batch, c.conns(t), func(epoch, _, step int) {
				if epoch == 0 && step == 4 {
					once.Do(func() { leader.signal(how) })
				}
			})
			sameStream(t, want, got)
			matches(t, standby.errs.String(), `standby has taken over`)
			if how == syscall.SIGKILL {
				leader.wait(patience)
				return
			}
			leader.signal(syscall.SIGCONT)
			if code := leader.wait(patience); code != 1 {
				t.Errorf("the dispatcher that was replaced ended with code %d, want 1\n%s", code, leader.errs)
			}
			matches(t, leader.errs.String(), `another dispatcher, which leads now|was replaced`)
		})
	}
}
