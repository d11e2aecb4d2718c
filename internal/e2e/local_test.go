package e2e

import (
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/feed/client"
)

// nothingLeft checks that a role which has ended left no socket and no temporary file or directory.
func nothingLeft(t *testing.T, p *place, sockets ...string) {
	t.Helper()
	for _, s := range sockets {
		if _, err := os.Lstat(p.path(s)); !os.IsNotExist(err) {
			t.Errorf("socket %s is still there (%v)", s, err)
		}
	}
	left, err := os.ReadDir(p.path("tmp"))
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range left {
		t.Errorf("%s is left behind", entry.Name())
	}
}

func TestLocalSaysWhenItCanBeUsed(t *testing.T) {
	p, recipe := imageSet(t, 1, 32)
	r := p.start(millrace(), "local", "--socket", p.path("s"), "--listen", "127.0.0.1:0")
	expect(t, r.ready, map[string]any{"role": "local", "socket": p.path("s"), "pid": float64(r.cmd.Process.Pid)})
	info, err := os.Stat(p.path("s"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Type() != os.ModeSocket || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket has mode %s; no other user may read from it", info.Mode())
	}
	for i := range 2 {
		expect(t, decode(t, p.must("run", recipe, "--json", "--endpoint", r.address(i), "--job", "job"+strconv.Itoa(i))), map[string]any{"rows": 32.0})
	}
	r.stop()
	nothingLeft(t, p, "s")
}

func TestLocalStopsWhenItsStandardInputCloses(t *testing.T) {
	for _, workers := range []string{"0", "2"} {
		p := newPlace(t)
		r := p.start(millrace(), "local", "--socket", p.path("s"), "--watch-stdin", "--workers", workers)
		if err := r.stdin.Close(); err != nil {
			t.Fatal(err)
		}
		if code := r.wait(stopLimit); code != 0 {
			t.Errorf("exit code %d\n%s", code, r.errs)
		}
		nothingLeft(t, p, "s")
	}
}

func TestWorkerProcessesDoNotOutliveALocalThatIsKilled(t *testing.T) {
	p := newPlace(t)
	r := p.start(millrace(), "local", "--socket", p.path("s"), "--workers", "2")
	eventually(t, patience, "two worker processes", func() bool { return len(running(t, r.mark)) == 3 })
	r.signal(syscall.SIGKILL)
	r.wait(patience)
}

// Who scrapes a local sees its worker processes too, each under its name; one that has died takes only its own away.
func TestLocalServesTheMetricsOfItsWorkerProcesses(t *testing.T) {
	p := newPlace(t)
	r := p.start(millrace(), "local", "--socket", p.path("s"), "--workers", "2", "--metrics", "127.0.0.1:0")
	eventually(t, patience, "metrics of both worker processes", func() bool {
		_, text := scrape(t, r)
		return strings.Contains(text, `millrace_worker_sessions_total{worker="w0"} 1`) &&
			strings.Contains(text, `millrace_worker_sessions_total{worker="w1"} 1`) && strings.Contains(text, "millrace_dispatcher_workers 2")
	})
	r.stop()
	nothingLeft(t, p, "s")
}

func TestLocalStopsWhenItHasBeenIdle(t *testing.T) {
	p, recipe := imageSet(t, 1, 32)
	r := p.start(millrace(), "local", "--socket", p.path("s"), "--idle-exit", "300ms")
	s := open(t, dial(t, r.address(0)), ask(t, recipe, "job", 0, 1, 8))
	started := time.Now()
	for time.Since(started) < 400*time.Millisecond { // an open session keeps it
		read(t, s, 0)
		select {
		case <-r.ended:
			t.Fatalf("it ended under an open session\n%s", r.errs)
		default:
		}
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if code := r.wait(patience); code != 0 {
		t.Errorf("exit code %d\n%s", code, r.errs)
	}
	nothingLeft(t, p, "s")
}

// Ctrl-C in the middle: the rank hears of it, everything ends soon, and nothing stays behind.
func TestASignalInTheMiddleOfAnEpochLeavesNothing(t *testing.T) {
	for _, c := range []struct {
		name    string
		signal  syscall.Signal
		workers string
		group   bool // as a terminal sends it: to everyone
	}{
		{"interrupt", syscall.SIGINT, "0", false},
		{"terminate", syscall.SIGTERM, "0", false},
		{"terminate with worker processes", syscall.SIGTERM, "2", false},
		{"interrupt of a terminal with worker processes", syscall.SIGINT, "2", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, recipe := imageSet(t, 4, 64)
			r := p.start(millrace(), "local", "--socket", p.path("s"), "--workers", c.workers)
			s := open(t, dial(t, r.address(0)), ask(t, recipe, "job", 0, 1, 4))
			first, ended := make(chan struct{}), make(chan error, 1)
			go func() {
				taken := 0
				ended <- s.Read(t.Context(), s.Info.Start, func(client.Batch) error {
					if taken++; taken == 3 {
						close(first)
						<-r.ended // the trainer is busy; what is ready waits for it
					}
					return nil
				})
			}()
			select {
			case <-first:
			case err := <-ended:
				t.Fatalf("the stream ended: %v\n%s", err, r.errs)
			}
			pid := r.cmd.Process.Pid
			if c.group {
				pid = -pid
			}
			if err := syscall.Kill(pid, c.signal); err != nil {
				t.Fatal(err)
			}
			if code := r.wait(stopLimit); code != 0 {
				t.Errorf("exit code %d\n%s", code, r.errs)
			}
			if err := <-ended; err == nil {
				t.Error("the rank was not told that its stream is cut off")
			}
			nothingLeft(t, p, "s")
		})
	}
}

func TestRunStopsInTheMiddle(t *testing.T) {
	p, recipe := imageSet(t, 4, 64)
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		c := exec.CommandContext(t.Context(), millrace(), "run", recipe, "--epochs", "1000000", "--log-level", "info")
		var errs log
		c.Dir, c.Env, c.Stderr = p.dir, p.env, &errs
		c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL) })
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = c.Wait() // its exit code is looked at
		}()
		eventually(t, patience, "the job to run", func() bool { return regexp.MustCompile("generation began").MatchString(errs.String()) })
		if err := c.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		select {
		case <-ended:
		case <-time.After(stopLimit):
			t.Fatalf("it still runs after %s\n%s", stopLimit, errs.String())
		}
		if code := c.ProcessState.ExitCode(); code != 1 {
			t.Errorf("exit code %d: a drain that was cut off has not done what was asked\n%s", code, errs.String())
		}
	}
	nothingLeft(t, p)
}

func TestASecondStartOnTheSameSocket(t *testing.T) {
	p, recipe := imageSet(t, 1, 32)
	first := p.start(millrace(), "local", "--socket", p.path("s"))
	a := p.millrace("local", "--socket", p.path("s"))
	if a.code != 1 || a.out != "" {
		t.Errorf("a second start on a live socket: %+v", a)
	}
	p.must("run", recipe, "--endpoint", first.address(0)) // the first goes on

	first.signal(syscall.SIGKILL) // leaves its socket
	first.wait(patience)
	if _, err := os.Lstat(p.path("s")); err != nil {
		t.Fatalf("the killed process left no socket, so this tests nothing: %v", err)
	}
	second := p.start(millrace(), "local", "--socket", p.path("s"))
	p.must("run", recipe, "--endpoint", second.address(0))
	second.stop()
	nothingLeft(t, p, "s")
}
