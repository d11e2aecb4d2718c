package pypool_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/op"
	"github.com/millrace/millrace/preprocess/pypool"
)

// functions is what the tests call. It needs nothing but Python itself.
const functions = `
import os, signal, sys, time

def same(row): return row
def double(row, ctx): return {"n": row["n"] * 2, "text": f"{row['text']} of {ctx.key}, {ctx.sample}, {ctx.epoch}"}
def odd(row): return row["n"] % 2 == 1
def some(row):
    for i in range(row["n"] % 4): yield {**row, "n": row["n"] * 10 + i}
def long(row): return {"text": "é" * 3_000_000}
def add(row, by): return {"n": row["n"] + by}
def pid(row): return {"n": os.getpid()}
def says(row):
    print("hello from", row["text"]); print("and more", file=sys.stderr); os.write(1, b"straight\n")
    return row
def fails(row):
    if row["n"] == 3: raise ValueError("three\n is too much")
    return row
def wrong(row): return {"n": "x" if row["n"] == 2 else 1}
def unknown(row): return {"m": 1}
def nothing(row): return None
def hangs(row):
    if row["n"] == 3: time.sleep(3600)
    return row
def slow(row):
    time.sleep(0.03)
    return row
def dies(row):
    if row["n"] == 3: os.kill(os.getpid(), signal.SIGSEGV)
    return row
def dies_once(row):
    # in the middle of what it gives, once for each row
    for i in range(3):
        yield {"n": row["n"] * 10 + i}
        path = os.path.join(os.environ["MARKS"], str(row["n"]))
        if i == 1 and not os.path.exists(path):
            open(path, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
def leaves(row): os._exit(7)
def has_children(row):
    child = os.fork()
    if child == 0:
        time.sleep(3600)
    return {"n": child}
class Counter:
    def __init__(self, start): self.n = start
    def __call__(self, row):
        self.n += 1
        return {"n": self.n}
number = 3
`

// world is a pool with a session, and functions to call.
type world struct {
	t       *testing.T
	pool    *pypool.Pool
	session *pypool.Session
	// sessions are all that there were; session is the last.
	sessions []*pypool.Session
	charged  atomic.Int64
	log      strings.Builder
	logMu    sync.Mutex
}

func (w *world) Write(b []byte) (int, error) {
	w.logMu.Lock()
	defer w.logMu.Unlock()
	return w.log.Write(b)
}

func (w *world) logged() string {
	w.logMu.Lock()
	defer w.logMu.Unlock()
	return w.log.String()
}

func newWorld(t *testing.T, slots int) *world {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Fatal(err)
	}
	client, err := filepath.Abs("../../clients/python/src")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "functions.py"), []byte(functions), 0o600); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t}
	w.pool = pypool.New(pypool.Config{
		Executable: python, Slots: slots, Logger: slog.New(slog.NewTextHandler(w, nil)),
		Env: append(os.Environ(), "PYTHONPATH="+client+":"+dir, "MARKS="+dir, "PYTHONDONTWRITEBYTECODE=1"),
	})
	w.begin()
	t.Cleanup(func() {
		for _, s := range w.sessions {
			s.Close()
		}
		w.pool.Close()
		if s := w.pool.Stats(); s != (pypool.Stats{}) {
			t.Errorf("after its end the pool has %+v", s)
		}
		if n := w.charged.Load(); n != 0 {
			t.Errorf("%d bytes are still charged", n)
		}
	})
	return w
}

// begin begins another session.
func (w *world) begin() {
	w.session = w.pool.Join(func(delta int64) { w.charged.Add(delta) })
	w.sessions = append(w.sessions, w.session)
}

// rows is a batch of n rows with a number and a text.
func rows(n int) *op.Batch {
	b := &op.Batch{NumRows: n, Columns: []op.Column{
		{Field: op.Field{Name: "n", Kind: op.KindInt64, DType: op.DTypeInt64}},
		{Field: op.Field{Name: "text", Kind: op.KindText}},
	}}
	for i := range n {
		b.Samples = append(b.Samples, uint64(100+i))
		b.Keys = append(b.Keys, fmt.Sprintf("a.tar!%d", i))
		b.Columns[0].Ints = append(b.Columns[0].Ints, int64(i))
		b.Columns[1].Bytes = append(b.Columns[1].Bytes, []byte("t"+strconv.Itoa(i)))
	}
	return b
}

func (w *world) operator(name string, params map[string]any) op.Operator {
	w.t.Helper()
	all := map[string]any{"call": "functions:" + name}
	maps.Copy(all, params)
	o, err := op.Build("python", 4, all)
	if err != nil {
		w.t.Fatal(err)
	}
	return o
}

// apply runs an operator on rows and joins what it emits, as lines.
func (w *world) apply(ctx context.Context, o op.Operator, in *op.Batch) ([]string, error) {
	var out []string
	env := &op.Env{Seed: 5, Epoch: 2, Python: w.session}
	err := o.Apply(ctx, env, in, func(b *op.Batch) error {
		if err := b.Check(); err != nil {
			return err
		}
		for i := range b.NumRows {
			text := string(b.Columns[1].Bytes[i])
			if len(text) > 60 {
				text = fmt.Sprintf("%d bytes", len(text))
			}
			out = append(out, fmt.Sprintf("%s %d %d %s", b.Keys[i], b.Samples[i], b.Columns[0].Ints[i], text))
		}
		return nil
	})
	return out, err
}

func (w *world) run(name string, params map[string]any, n int) []string {
	w.t.Helper()
	out, err := w.apply(w.t.Context(), w.operator(name, params), rows(n))
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

func TestModes(t *testing.T) {
	w := newWorld(t, 2)
	for _, c := range []struct {
		name   string
		params map[string]any
		want   []string
	}{
		{"same", nil, []string{"a.tar!0 100 0 t0", "a.tar!1 101 1 t1", "a.tar!2 102 2 t2", "a.tar!3 103 3 t3"}},
		{"double", nil, []string{
			"a.tar!0 100 0 t0 of a.tar!0, 100, 2", "a.tar!1 101 2 t1 of a.tar!1, 101, 2", "a.tar!2 102 4 t2 of a.tar!2, 102, 2",
			"a.tar!3 103 6 t3 of a.tar!3, 103, 2",
		}},
		{"add", map[string]any{"args": map[string]any{"by": 5}, "input": []any{"n"}}, []string{"a.tar!0 100 5 t0", "a.tar!1 101 6 t1", "a.tar!2 102 7 t2", "a.tar!3 103 8 t3"}},
		{"odd", map[string]any{"mode": "filter"}, []string{"a.tar!1 101 1 t1", "a.tar!3 103 3 t3"}},
		{"some", map[string]any{"mode": "flat_map"}, []string{
			"a.tar!1 101 10 t1", "a.tar!2 102 20 t2", "a.tar!2 102 21 t2", "a.tar!3 103 30 t3", "a.tar!3 103 31 t3", "a.tar!3 103 32 t3",
		}},
		{"Counter", map[string]any{"args": map[string]any{"start": 7}}, []string{"a.tar!0 100 8 t0", "a.tar!1 101 9 t1", "a.tar!2 102 10 t2", "a.tar!3 103 11 t3"}},
	} {
		if diff := cmp.Diff(c.want, w.run(c.name, c.params, 4)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

// Rows of any size pass, in pieces where they are many.
func TestLargeRowsGoInPieces(t *testing.T) {
	w := newWorld(t, 1)
	got := w.run("long", nil, 20) // 120 MB
	if len(got) != 20 {
		t.Fatalf("%d rows came back", len(got))
	}
	for i, line := range got {
		if want := fmt.Sprintf("a.tar!%d %d %d 6000000 bytes", i, 100+i, i); line != want {
			t.Errorf("row %d is %q, not %q", i, line, want)
		}
	}
	if got := w.charged.Load(); got < 32<<20 {
		t.Errorf("%d bytes are charged for pieces of 32 MiB", got)
	}
}

func TestMistakesNameTheSample(t *testing.T) {
	w := newWorld(t, 1)
	for _, c := range []struct {
		name   string
		params map[string]any
		kind   errkind.Kind
		first  string // line
		rest   []string
	}{
		{"fails", nil, errkind.BadData, "sample a.tar!3: python functions:fails: ValueError: three is too much", []string{"Traceback (most recent call last):", `functions.py", line `, "in fails"}},
		{"wrong", nil, errkind.BadData, "sample a.tar!2: python functions:wrong: ValueError: field 'n': invalid literal for int() with base 10: 'x'", nil},
		{"unknown", nil, errkind.BadData, "sample a.tar!0: python functions:unknown: ValueError: the function returned field 'm', which `output` does not declare", nil},
		{"nothing", nil, errkind.BadData, "sample a.tar!0: python functions:nothing: TypeError: the function returned None; return the row, as a dict", nil},
		{"nothing", map[string]any{"mode": "filter"}, errkind.BadData, "sample a.tar!0: python functions:nothing: TypeError: the filter returned None; return whether the row stays", nil},
		{"same", map[string]any{"output": map[string]any{"caption": "text"}}, errkind.BadData, "sample a.tar!0: python functions:same: ValueError: the function returned no field 'caption', which `output` declares", nil},
		{"hangs", map[string]any{"timeout": 0.5}, errkind.BadData, "sample a.tar!3: python functions:hangs: the call did not come back within 500ms and its process was killed; timeout sets another limit", nil},
		{"dies", nil, errkind.BadData, "sample a.tar!3: python functions:dies: the Python process crashed 2 times: signal: segmentation fault", nil},
		{"leaves", nil, errkind.BadData, "sample a.tar!0: python functions:leaves: the Python process crashed 2 times: exit status 7", nil},
		{"missing", nil, errkind.Invalid, "python functions:missing: it can't be loaded: AttributeError: module 'functions' has no attribute 'missing'", nil},
		{"number", nil, errkind.Invalid, "python functions:number: it can't be loaded: TypeError: functions:number is a int, which can't be called", nil},
		{"add", map[string]any{"args": map[string]any{"to": 1}}, errkind.BadData, "sample a.tar!0: python functions:add: TypeError: add() got an unexpected keyword argument 'to'", nil},
	} {
		_, err := w.apply(t.Context(), w.operator(c.name, c.params), rows(6))
		if err == nil {
			t.Errorf("%s: no error", c.name)
			continue
		}
		first, rest, _ := strings.Cut(err.Error(), "\n")
		if errkind.Of(err) != c.kind || !strings.HasPrefix(first, c.first) {
			t.Errorf("%s: kind %v, %s\nwant %s", c.name, errkind.Of(err), first, c.first)
		}
		for _, part := range c.rest {
			if !strings.Contains(rest, part) {
				t.Errorf("%s: the traceback has no %q:\n%s", c.name, part, rest)
			}
		}
		if strings.Contains(rest, "_operators") {
			t.Errorf("%s: the traceback shows our own code:\n%s", c.name, rest)
		}
	}
	// The pool is as good as before.
	if got := w.run("same", nil, 2); len(got) != 2 {
		t.Errorf("after all that: %q", got)
	}
}

// A deadline is for one call, not for all the rows of a request.
func TestTheDeadlineIsForEachCall(t *testing.T) {
	w := newWorld(t, 1)
	if got := w.run("slow", map[string]any{"timeout": 0.5}, 40); len(got) != 40 {
		t.Errorf("%d rows of 40 came back", len(got))
	}
}

// Whoever kills a process in the middle of what it gives, each row comes once.
func TestAKilledProcessLosesAndDoublesNothing(t *testing.T) {
	w := newWorld(t, 1)
	var want []string
	for i := range 5 {
		for k := range 3 {
			want = append(want, fmt.Sprintf("a.tar!%d %d %d t%d", i, 100+i, 10*i+k, i))
		}
	}
	// The function kills its process at each row once, so that one call sees as many crashes as it has rows: they are
	// given out row by row.
	o := w.operator("dies_once", map[string]any{"mode": "flat_map"})
	var got []string
	for i := range 5 {
		all := rows(5)
		one := &op.Batch{NumRows: 1, Samples: all.Samples[i : i+1], Keys: all.Keys[i : i+1], Columns: all.Columns}
		one.Columns[0].Ints, one.Columns[1].Bytes = one.Columns[0].Ints[i:i+1], one.Columns[1].Bytes[i:i+1]
		lines, err := w.apply(t.Context(), o, one)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, lines...)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !strings.Contains(w.logged(), "a Python process crashed; its rows are done again") {
		t.Errorf("the log does not tell of it:\n%s", w.logged())
	}
}

// What a function prints goes to the log of the worker, line by line, and nowhere else.
func TestOutputGoesToTheLog(t *testing.T) {
	w := newWorld(t, 1)
	w.run("says", nil, 2)
	w.session.Close()
	for _, part := range []string{`stream=stdout text="hello from t0"`, `stream=stderr text="and more"`, "text=straight", `text="hello from t1"`} {
		if !strings.Contains(w.logged(), part) {
			t.Errorf("the log has no %q:\n%s", part, w.logged())
		}
	}
}

// pidOf is the process that a function runs in.
func (w *world) pidOf(o op.Operator) int {
	w.t.Helper()
	out, err := w.apply(w.t.Context(), o, rows(1))
	if err != nil {
		w.t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.Fields(out[0])[2])
	if err != nil {
		w.t.Fatal(err)
	}
	return pid
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no %s", what)
		}
	}
}

func TestAProcessServesAllFunctionsOfItsSessionAndMakesRoomForOthers(t *testing.T) {
	w := newWorld(t, 2)
	first := w.pidOf(w.operator("pid", nil))
	if first != w.pidOf(w.operator("pid", nil)) {
		t.Error("another function of the session has another process, though one was idle")
	}
	w.begin()
	second := w.pidOf(w.operator("pid", nil))
	if first == second {
		t.Error("two sessions share a process")
	}
	w.begin()
	w.pidOf(w.operator("pid", nil))
	if s := w.pool.Stats(); s != (pypool.Stats{Processes: 2, Idle: 2}) {
		t.Errorf("the pool has %+v", s)
	}
	if alive(first) || !alive(second) {
		t.Error("not the process that was idle longest has made room")
	}
	for _, s := range w.sessions {
		s.Close()
	}
	if alive(second) {
		t.Error("the end of a session leaves its processes")
	}
}

func TestCallsRunSideBySide(t *testing.T) {
	w := newWorld(t, 3)
	o := w.operator("double", nil)
	var running sync.WaitGroup
	for range 6 {
		running.Go(func() {
			if out, err := w.apply(t.Context(), o, rows(30)); err != nil || len(out) != 30 {
				t.Errorf("%d rows, %v", len(out), err)
			}
		})
	}
	running.Wait()
	if s := w.pool.Stats(); s.Processes > 3 {
		t.Errorf("%d processes are kept for 3 slots", s.Processes)
	}
}

func TestACallEndsWithItsCaller(t *testing.T) {
	w := newWorld(t, 1)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := w.apply(ctx, w.operator("hangs", nil), rows(6))
		ended <- err
	}()
	eventually(t, "process", func() bool { return w.pool.Stats().Processes == 1 })
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the call ended with %v", err)
	}
	if s := w.pool.Stats(); s.Processes != 0 {
		t.Errorf("%d processes are left", s.Processes)
	}
}

// What a function has started ends with its process.
func TestChildrenOfAProcessEndWithIt(t *testing.T) {
	w := newWorld(t, 1)
	child := w.pidOf(w.operator("has_children", nil))
	if !alive(child) {
		t.Fatal("there is no child")
	}
	w.session.Close()
	eventually(t, "end of the child", func() bool {
		state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child))
		return err != nil || strings.Contains(string(state), ") Z ")
	})
}

func TestNothingIsLeftOfManyProcesses(t *testing.T) {
	w := newWorld(t, 1)
	open := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	w.pidOf(w.operator("pid", nil))
	before := open()
	for range 8 {
		w.begin()
		w.pidOf(w.operator("pid", nil)) // takes the place of the last
	}
	if after := open(); after > before {
		t.Errorf("%d files are open, %d were", after, before)
	}
}

func TestAnInterpreterThatIsNotThere(t *testing.T) {
	pool := pypool.New(pypool.Config{Executable: "/nowhere/python", Slots: 1, Logger: slog.New(slog.DiscardHandler)})
	defer pool.Close()
	s := pool.Join(func(int64) {})
	defer s.Close()
	o, err := op.Build("python", 0, map[string]any{"call": "a:b"})
	if err != nil {
		t.Fatal(err)
	}
	err = o.Apply(t.Context(), &op.Env{Python: s}, rows(1), func(*op.Batch) error { return nil })
	if errkind.Of(err) != errkind.Unavailable || !strings.Contains(err.Error(), "/nowhere/python") {
		t.Errorf("%v", err)
	}
}
