package transport_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/millrace/millrace/bench/transport"
	"github.com/millrace/millrace/internal/errkind"
)

// sideVariable makes this test program one process of a side.
const sideVariable = "MILLRACE_TEST_SIDE"

func TestMain(m *testing.M) {
	if os.Getenv(sideVariable) == "" {
		goleak.VerifyTestMain(m)
		return
	}
	if err := side(os.Args[1:]).Run(context.Background(), os.Stdin, os.Stdout); err != nil {
		_, _ = os.Stderr.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
}

// side reads the arguments that the runner gives.
func side(args []string) transport.Side {
	s := transport.Side{Rows: 2}
	for i, a := range args {
		value := args[min(i+1, len(args)-1)]
		switch a {
		case "--kind":
			s.Kind = value
		case "--role":
			s.Role = value
		case "--network":
			s.Network = value
		case "--dir":
			s.Dir = value
		case "--address":
			s.Address = value
		case "--rows":
			s.Rows, _ = strconv.Atoi(value)
		case "--tls":
			s.TLS = true
		case "--hash":
			s.Hash = true
		}
	}
	return s
}

// Each scenario moves batches on both sides, encrypted or not, and gives figures of each.
func TestScenariosMoveBatches(t *testing.T) {
	t.Setenv(sideVariable, "1")
	for _, encrypted := range []bool{false, true} {
		for _, s := range transport.Scenarios()[:2] {
			var log bytes.Buffer
			s.Rows = 2
			result, err := transport.Run(t.Context(), s, transport.Options{
				Program: os.Args[0], Rounds: 1, Window: 100 * time.Millisecond, WarmUp: 50 * time.Millisecond, TLS: encrypted, Log: &log,
			})
			if err != nil {
				t.Fatalf("%v\n%s", err, &log)
			}
			r, ok := result.(*transport.Result)
			if !ok || r.GBPerSecond <= 0 || r.StockGBPerSecond <= 0 || r.CPURatio <= 0 || r.Scenario != s.Name || strings.Count(log.String(), "\n") != 2 {
				t.Errorf("%+v\n%s", r, &log)
			}
		}
	}
}

// Partitions are moved and hashed over either network, and what that takes is told by size and by partition.
func TestPartitionsAreMoved(t *testing.T) {
	t.Setenv(sideVariable, "1")
	for _, network := range []string{"unix", "tcp"} {
		var log bytes.Buffer
		r, err := transport.Move(t.Context(), network, 7, transport.Options{
			Program: os.Args[0], Rounds: 1, Window: 100 * time.Millisecond, WarmUp: 50 * time.Millisecond, Log: &log,
		})
		if err != nil {
			t.Fatalf("%v\n%s", err, &log)
		}
		if r.Scenario != transport.NameMove || r.Network != network || r.MiB != 1 || r.MBPerSecond <= 0 || r.CPUPerGB <= 0 || r.CPUMicros <= 0 {
			t.Errorf("%+v", r)
		}
	}
}

// Python trainers get batches, ours from a sidecar, and the figures of each are there.
func TestTrainersTakeBatches(t *testing.T) {
	t.Setenv(sideVariable, "1")
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	o := transport.Options{
		Program: os.Args[0], Rounds: 1, Window: 100 * time.Millisecond, WarmUp: 50 * time.Millisecond,
		Python: filepath.Join(root, ".cache/venv/bin/python"), Env: append(os.Environ(), "PYTHONPATH="+filepath.Join(root, "clients/python/src")),
	}
	for name, check := range map[string]func(any) bool{
		"ring": func(r any) bool {
			v, ok := r.(transport.RingResult)
			return ok && v.HandoverUS > 0 && v.HandoverP99US >= v.HandoverUS && v.SidecarCPUUS > 0 && v.TrainerCPUUS > 0 && v.PacedHandoverUS > 0 && v.PacedSidecarCPUUS > 0
		},
		"ring_copy": func(r any) bool {
			v, ok := r.(transport.CopyResult)
			return ok && v.GBPerSecond > 0 && v.CPUPerGB > 0 && v.MemcpyGBPerSecond > 0
		},
		"e2e_virtual": func(r any) bool {
			v, ok := r.(transport.VirtualResult)
			return ok && v.GBPerSecond > 0 && v.PeerGBPerSecond > 0 && v.PeerCPUPerGB > 0 && v.Ratio > 0 && v.Peer != ""
		},
	} {
		s, err := transport.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		s.Rows, s.Tries, o.Log = 2, 1, &log
		r, err := transport.Run(t.Context(), s, o)
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, &log)
		}
		if !check(r) {
			t.Errorf("%s: %+v\n%s", name, r, &log)
		}
	}
}

func TestWrongRunsAreRefused(t *testing.T) {
	if _, err := transport.Find("nothing"); errkind.Of(err) != errkind.Invalid {
		t.Errorf("an unknown scenario: %v", err)
	}
	if _, err := transport.Run(t.Context(), transport.Scenarios()[0], transport.Options{Log: io.Discard}); errkind.Of(err) != errkind.Invalid {
		t.Errorf("no rounds: %v", err)
	}
	if err := (transport.Side{Kind: "other"}).Run(t.Context(), nil, io.Discard); errkind.Of(err) != errkind.Invalid {
		t.Errorf("an unknown side: %v", err)
	}
}
