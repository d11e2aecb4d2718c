package scenario

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// roleVariable makes this test binary play a program that takes batches instead of running tests.
const roleVariable = "MILLRACE_BENCH_TEST_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		play(role, os.Args[1:])
		return
	}
	goleak.VerifyTestMain(m)
}

// play follows the protocol of consume.py, or breaks it.
func play(role string, args []string) {
	say := func(line string) { fmt.Println(line) }
	wait := func() { _, _ = os.Stdin.Read(make([]byte, 3)) }
	first := `{"first_batch_s": 0.5, "shape": [64, 3, 224, 224], "dtype": "uint8"}`
	switch role {
	case "good":
		say(first)
		say(`{"ready": true}`)
		wait()
		say(`{"images": 640, "seconds": 2.5, "wait_seconds": 2}`)
		wait()
	case "small":
		say(`{"first_batch_s": 0.5, "shape": [64, 3, 96, 96], "dtype": "uint8"}`)
	case "dies":
		say(first)
		fmt.Fprintln(os.Stderr, "Traceback …\nMillraceError: no such shard")
		os.Exit(1)
	case "babbles":
		say("hello")
	case "stubborn":
		// Ends on no signal but one, like the process in a session of its own that it starts.
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
		child := exec.CommandContext(context.Background(), os.Args[0])
		child.Env = append(os.Environ(), roleVariable+"=sleeper")
		child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := child.Start(); err != nil {
			panic(err)
		}
		pids := strconv.Itoa(os.Getpid()) + " " + strconv.Itoa(child.Process.Pid)
		if err := os.WriteFile(args[0]+".new", []byte(pids), 0o600); err != nil {
			panic(err)
		}
		if err := os.Rename(args[0]+".new", args[0]); err != nil {
			panic(err)
		}
		select {}
	case "sleeper":
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
		time.Sleep(time.Hour)
	}
}

func sideOf(t *testing.T, role string, args ...string) side {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return side{name: role, argv: append([]string{self}, args...), env: append(os.Environ(), roleVariable+"="+role), limit: time.Minute}
}

func TestATurnIsWhatTheProgramAndTheKernelSay(t *testing.T) {
	turn, err := sideOf(t, "good").measure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if turn.Images != 640 || turn.Seconds != 2.5 || turn.WaitSeconds != 2 || turn.FirstBatchSeconds != 0.5 {
		t.Errorf("turn = %+v, want what the program said", turn)
	}
	if turn.PeakPSSBytes < 1<<20 {
		t.Errorf("peak PSS = %d bytes; a Go program takes a megabyte at least", turn.PeakPSSBytes)
	}
}

func TestBrokenProgramsAreErrorsThatSayWhy(t *testing.T) {
	for role, want := range map[string]string{
		"dies":    "MillraceError: no such shard",
		"small":   "the first batch is uint8 [64 3 96 96], not uint8 [64 3 224 224]",
		"babbles": `the program said "hello"`,
		"mute":    "it ended early: it said nothing",
	} {
		_, err := sideOf(t, role).measure(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), role) {
			t.Errorf("%s: err = %v, want %q in it", role, err, want)
		}
	}
}

func TestNoProcessIsLeftWhenInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	pidFile := filepath.Join(t.TempDir(), "pids")
	ended := make(chan error)
	go func() {
		_, err := sideOf(t, "stubborn", pidFile).measure(ctx)
		ended <- err
	}()
	var text []byte
	for text == nil {
		select {
		case err := <-ended:
			t.Fatalf("it ended before it was interrupted: %v", err)
		case <-time.After(5 * time.Millisecond):
			text, _ = os.ReadFile(pidFile)
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v, want context.Canceled", err)
	}
	for field := range strings.FieldsSeq(string(text)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
			t.Errorf("process %d is still there: %v", pid, err)
		}
	}
}

func TestAProgramThatHangsIsEnded(t *testing.T) {
	s := sideOf(t, "stubborn", filepath.Join(t.TempDir(), "pids"))
	s.limit = 300 * time.Millisecond
	_, err := s.measure(t.Context())
	if err == nil || !strings.Contains(err.Error(), "no end within 300ms") {
		t.Errorf("err = %v, want the limit in it", err)
	}
}

func TestMedianHasHalfOfTheValuesOnEachSide(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64Range(-1e6, 1e6), 1, 20).Draw(t, "values")
		m := median(values)
		below, above := 0, 0
		for _, v := range values {
			if v < m {
				below++
			}
			if v > m {
				above++
			}
		}
		if below > len(values)/2 || above > len(values)/2 {
			t.Errorf("median %g of %v has %d below and %d above", m, values, below, above)
		}
	})
}

func TestTheResultIsMediansOverRounds(t *testing.T) {
	turn := func(images int, cpu, others float64) Turn {
		return Turn{
			Images: images, Seconds: 10, WaitSeconds: 9, CPUSeconds: cpu, PeakPSSBytes: 100 << 20,
			FirstBatchSeconds: 0.6, OtherCores: others,
		}
	}
	c := &E2E{Peer: PeerTorch, Rounds: 3, Window: 10 * time.Second, WarmUp: 3 * time.Second, Workers: 2, Version: "v1"}
	rounds := []Round{
		{Ours: turn(20000, 20, 0), Peer: turn(10000, 20, 0)},
		{Ours: turn(22000, 11, 0.5), Peer: turn(5000, 20, 0)},
		{Ours: turn(30000, 60, 0), Peer: turn(8000, 20, 0)},
	}
	r := newResult(c, map[string]any{"python": "3.11.7"}, rounds)
	if r.ImagesPerSecond != 2200 || r.PeerImagesPerS != 800 || r.Ratio != 2.75 || r.CPUPer1000 != 1 || r.WaitFraction != 0.9 ||
		r.PeakPSSMiB != 100 || r.FirstBatchSeconds != 0.6 {
		t.Errorf("result = %+v", r)
	}
	if diff := cmp.Diff(Range{2, 4.4}, r.Spread["ratio"]); diff != "" {
		t.Errorf("spread of the ratio: %s", diff)
	}
	if r.Quiet {
		t.Error("a round with half a core used by others counts as quiet")
	}

	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(text, &fields); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"scenario", "images_per_s", "cpu_s_per_1000", "wait_fraction", "peak_pss_mb", "first_batch_s", "peer", "peer_images_per_s",
		"peer_cpu_s_per_1000", "peer_peak_pss_mb", "peer_first_batch_s", "ratio", "spread", "config",
	} {
		if _, ok := fields[name]; !ok {
			t.Errorf("the result has no %q", name)
		}
	}
	if bytes.ContainsRune(text, '\n') {
		t.Error("the result is not one line")
	}
}

func TestOtherCoresLeavesOutTheSideAndThisProcess(t *testing.T) {
	start := time.Unix(100, 0)
	a := clocks{at: start, whole: 50 * time.Second, side: time.Second, self: time.Second}
	b := clocks{at: start.Add(10 * time.Second), whole: 70 * time.Second, side: 16 * time.Second, self: 2 * time.Second}
	if got := otherCores(a, b); got != 0.4 {
		t.Errorf("others used %g cores, want 0.4", got)
	}
}

func TestModelName(t *testing.T) {
	if got := modelName([]byte("processor\t: 0\nmodel name\t: AMD EPYC 9B14\n")); got != "AMD EPYC 9B14" {
		t.Errorf("model name = %q", got)
	}
	if got := modelName([]byte("processor\t: 0\n")); got != "unknown" {
		t.Errorf("model name = %q, want unknown", got)
	}
}
