package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func nothing(string) (string, bool) { return "", false }

func TestItServesUntilItsContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	var errs bytes.Buffer
	code := make(chan int, 1)
	go func() {
		args := []string{"--dispatcher", "127.0.0.1:1", "--listen", "127.0.0.1:0", "--name", "s0", "--metrics", "127.0.0.1:0"}
		code <- run(ctx, args, w, &errs, nothing)
	}()
	var ready struct {
		Ready               bool
		Role, Name, Metrics string
		Addresses           []string
	}
	if err := json.NewDecoder(r).Decode(&ready); err != nil || !ready.Ready || ready.Name != "s0" || len(ready.Addresses) != 1 || ready.Metrics == "" {
		t.Errorf("ready line: %+v, %v", ready, err)
	}
	cancel()
	if got := <-code; got != 0 {
		t.Errorf("exit code %d\n%s", got, errs.String())
	}
}

func TestMistakesAreUsageErrors(t *testing.T) {
	for _, args := range [][]string{
		{},
		{"--dispatcher", "127.0.0.1:1"},
		{"--what"},
		{"--dispatcher", "127.0.0.1:1", "--listen", "nowhere"},
		{"--dispatcher", "127.0.0.1:1", "--listen", "127.0.0.1:0", "--budget", "1MiB"},
		{"--config", "nowhere.yaml"},
		{"--dispatcher", "127.0.0.1:1", "--listen", "127.0.0.1:0", "--log-level", "loud"},
	} {
		var out, errs bytes.Buffer
		if code := run(t.Context(), args, &out, &errs, nothing); code != 2 || out.Len() > 0 || !bytes.HasPrefix(errs.Bytes(), []byte("error: ")) {
			t.Errorf("%v: exit code %d, out %q, errors %q", args, code, out.String(), errs.String())
		}
	}
}
