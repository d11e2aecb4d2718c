package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/millrace/millrace/loader/dataset/datasettest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// command runs a command line in this process, with a cache of the test's own.
func command(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	cache := t.TempDir()
	code = run(t.Context(), args, streams{in: strings.NewReader(""), out: &o, err: &e}, func(name string) (string, bool) {
		return cache, name == "MILLRACE_CACHE_DIR"
	})
	return code, o.String(), e.String()
}

func TestADrainCountsEveryRow(t *testing.T) {
	dir := t.TempDir()
	datasettest.WriteTar(t, dir, "train-000000.tar", datasettest.Samples(40)...)
	recipe := datasettest.WriteFile(t, dir, "recipe.yaml", fmt.Appendf(nil,
		"source: %s/train-000000.tar\nfields: {data: bin, label: cls}\noutput: {data: {}, label: {dtype: int64}}\n", dir))
	code, out, errs := command(t, "run", recipe, "--json", "--batch", "16", "--epochs", "2")
	var got drained
	if err := json.Unmarshal([]byte(out), &got); code != exitDone || err != nil {
		t.Fatalf("exit code %d, %v: %s%s", code, err, out, errs)
	}
	if got.Epochs != 2 || got.Rows != 80 || got.Batches != 6 || got.Bytes == 0 {
		t.Errorf("it drained %+v", got)
	}
}

func TestMistakesOfTheCommandLineAreUsageErrors(t *testing.T) {
	for _, args := range [][]string{
		{"plna", "x"},
		{"plan"},
		{"plan", "x", "--shufle", "none"},
		{"plan", "x", "--batch", "0"},
		{"bench", "e1e"},
		{"local", "--socket", "s", "--metrics", "nowhere"},
		{"status"},
		{"run", "x", "--tail", "long"},
	} {
		code, out, errs := command(t, args...)
		if code != exitUsage || out != "" || !strings.HasPrefix(errs, "error: ") || strings.Count(errs, "\n") != 2 {
			t.Errorf("%v: exit code %d, out %q, errors %q", args, code, out, errs)
		}
	}
}

func TestErrorsAreOneLine(t *testing.T) {
	if got := oneLine(errors.New("yaml: errors:\n  line 1: no\n  line 2: no")); got != "yaml: errors: line 1: no line 2: no" {
		t.Errorf("got %q", got)
	}
}

func TestARoleServesUntilItsContextEnds(t *testing.T) {
	dir, err := os.MkdirTemp("", "role") //nolint:usetesting // The test's own directory has its name, too long for sockets.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	var errs bytes.Buffer
	code := make(chan int, 1)
	go func() {
		args := []string{"local", "--socket", socket, "--metrics", "127.0.0.1:0", "--cache-dir", dir}
		code <- run(ctx, args, streams{in: strings.NewReader(""), out: w, err: &errs}, func(string) (string, bool) { return "", false })
	}()
	var ready struct {
		Ready           bool
		Socket, Metrics string
	}
	if err := json.NewDecoder(r).Decode(&ready); err != nil || !ready.Ready || ready.Socket != socket || ready.Metrics == "" {
		t.Errorf("ready line: %+v, %v", ready, err)
	}
	cancel()
	if got := <-code; got != exitDone {
		t.Errorf("exit code %d\n%s", got, errs.String())
	}
	if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

func TestTheIdleTimerWaitsForTheLastSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var expired atomic.Int64
		var busy atomic.Bool
		busy.Store(true)
		timer := newIdleTimer(time.Second, func() { expired.Add(1) })
		timer.busy = busy.Load
		timer.start()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if expired.Load() != 0 {
			t.Error("it expired under an open session")
		}
		busy.Store(false)
		timer.start()
		time.Sleep(900 * time.Millisecond)
		timer.start() // counts anew
		time.Sleep(900 * time.Millisecond)
		synctest.Wait()
		if expired.Load() != 0 {
			t.Error("it expired too early")
		}
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		if n := expired.Load(); n != 1 {
			t.Errorf("it expired %d times", n)
		}
		timer.stop()
	})
}
