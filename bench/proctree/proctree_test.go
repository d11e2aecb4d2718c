package proctree_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/bench/proctree"
)

// fakeProc is a /proc with the given processes.
func fakeProc(t *testing.T, files map[string]string) proctree.Table {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return proctree.New(root)
}

func stat(pid, parent, user, system, childUser, childSystem int) string {
	return fmt.Sprintf("%d (python) S %d 1 1 0 -1 0 1 2 3 4 %d %d %d %d 20 0 1 0 555 1 1\n", pid, parent, user, system, childUser, childSystem)
}

func TestTreeIsTheProcessAndItsDescendantsAlone(t *testing.T) {
	table := fakeProc(t, map[string]string{
		"1/stat":     stat(1, 0, 9, 9, 9, 9),
		"10/stat":    stat(10, 1, 100, 50, 25, 25),
		"11/stat":    stat(11, 10, 30, 0, 0, 0),
		"12/stat":    stat(12, 11, 0, 40, 0, 0),
		"13/stat":    stat(13, 1, 7, 7, 7, 7),
		"14/comm":    "ended before its stat was read",
		"meminfo":    "",
		"self/stat":  stat(99, 10, 1, 1, 1, 1),
		"driver/irq": "",
	})
	tree, err := table.Tree(10)
	if err != nil {
		t.Fatal(err)
	}
	want := []proctree.Process{
		{PID: 10, Parent: 1, CPU: 2 * time.Second},
		{PID: 11, Parent: 10, CPU: 300 * time.Millisecond},
		{PID: 12, Parent: 11, CPU: 400 * time.Millisecond},
	}
	if diff := cmp.Diff(want, tree); diff != "" {
		t.Error(diff)
	}
	if got := proctree.CPU(tree); got != 2700*time.Millisecond {
		t.Errorf("CPU = %v, want 2.7s", got)
	}
}

func TestTreeOfAProcessThatIsGone(t *testing.T) {
	_, err := fakeProc(t, map[string]string{"1/stat": stat(1, 0, 0, 0, 0, 0)}).Tree(2)
	if !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("err = %v, want os.ErrProcessDone", err)
	}
}

func TestPSSIsSummedOverLivingProcesses(t *testing.T) {
	table := fakeProc(t, map[string]string{
		"10/smaps_rollup": "5580-7ffe ---p 0 0:0 0 [rollup]\nRss:  900 kB\nPss:  300 kB\nPss_Dirty: 8 kB\n",
		"11/smaps_rollup": "5580-7ffe ---p 0 0:0 0 [rollup]\nRss: 2000 kB\nPss: 1024 kB\n",
		"12/smaps_rollup": "", // a zombie
	})
	got, err := table.PSS([]proctree.Process{{PID: 10}, {PID: 11}, {PID: 12}, {PID: 13}})
	if err != nil || got != 1324<<10 {
		t.Errorf("PSS = %d, %v; want %d", got, err, 1324<<10)
	}
}

func TestTheRunningProcessIsSeen(t *testing.T) {
	table := proctree.New("/proc")
	tree, err := table.Tree(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if tree[0].PID != os.Getpid() || tree[0].Parent != os.Getppid() {
		t.Errorf("first process = %+v, want pid %d of parent %d", tree[0], os.Getpid(), os.Getppid())
	}
	pss, err := table.PSS(tree[:1])
	if err != nil || pss < 1<<20 {
		t.Errorf("PSS = %d, %v; want a megabyte at least", pss, err)
	}
	if peak, err := table.PeakResident(os.Getpid()); err != nil || peak < pss/2 {
		t.Errorf("peak of resident memory = %d, %v; now it is about %d", peak, err, pss)
	}
	if busy, err := table.Busy(); err != nil || busy <= 0 {
		t.Errorf("Busy = %v, %v; want some time", busy, err)
	}
}

func TestNamesOfProgramsHoldAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringN(0, 15, 15).Draw(t, "name")
		user := rapid.IntRange(0, 1<<35).Draw(t, "user")
		p, err := proctree.ParseStat([]byte("42 (" + name + ") Z 7 1 1 0 -1 0 1 2 3 4 " + strconv.Itoa(user) + " 1 1 1 20 0"))
		if err != nil {
			t.Fatal(err)
		}
		want := proctree.Process{PID: 42, Parent: 7, CPU: time.Duration(user+3) * 10 * time.Millisecond, Zombie: true}
		if p != want {
			t.Errorf("got %+v, want %+v", p, want)
		}
	})
}

func TestBusyLeavesOutIdleAndGuestTime(t *testing.T) {
	// user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice
	got, err := proctree.ParseBusy([]byte("cpu  100 20 3 9999 888 40 5 600 70 7\ncpu0 1 1 1 1 1 1 1 1 0 0\n"))
	if want := 7680 * time.Millisecond; err != nil || got != want {
		t.Errorf("Busy = %v, %v; want %v", got, err, want)
	}
}

func TestDamagedTextIsAnError(t *testing.T) {
	for _, text := range []string{
		"", "1", "1 (a", "1 )a(", "x (a) S 1", "1 (a) S 1 2 3",
		"1 (a) S x 1 1 0 -1 0 1 2 3 4 1 1 1 1", "1 (a) S 1 1 1 0 -1 0 1 2 3 4 -1 1 1 1", "1 (a) S 1 1 1 0 -1 0 1 2 3 4 9223372036854775807 1 1 1",
	} {
		if p, err := proctree.ParseStat([]byte(text)); err == nil {
			t.Errorf("ParseStat(%q) = %+v, want an error", text, p)
		}
	}
	for _, text := range []string{"", "Rss: 1 kB\n", "Pss: x kB\n", "Pss: 1 MB\n", "Pss: -1 kB\n", "Pss: 9223372036854775807 kB\n"} {
		if n, err := proctree.ParsePSS([]byte(text)); err == nil {
			t.Errorf("ParsePSS(%q) = %d, want an error", text, n)
		}
	}
	for _, text := range []string{"", "cpu 1 2 3", "cpu0 1 2 3 4 5 6 7 8", "cpu 1 2 x 4 5 6 7 8", "cpu 1 2 3 4 5 6 7 -8"} {
		if d, err := proctree.ParseBusy([]byte(text)); err == nil {
			t.Errorf("ParseBusy(%q) = %v, want an error", text, d)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("1 (a) S 1 1 1 0 -1 0 1 2 3 4 1 1 1 1 20 0"))
	f.Add([]byte("Pss: 12 kB\n"))
	f.Add([]byte("cpu 1 2 3 4 5 6 7 8 9 10\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if p, err := proctree.ParseStat(text); err == nil && p.CPU < 0 {
			t.Errorf("ParseStat(%q): negative CPU time %v", text, p.CPU)
		}
		if n, err := proctree.ParsePSS(text); err == nil && n < 0 {
			t.Errorf("ParsePSS(%q) = %d", text, n)
		}
		if d, err := proctree.ParseBusy(text); err == nil && d < 0 {
			t.Errorf("ParseBusy(%q) = %v", text, d)
		}
	})
}
