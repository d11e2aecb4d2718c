package executor

import (
	"io"
	"math"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/plan"
	"github.com/millrace/millrace/preprocess/recipe"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The bounds are those of the paper's problems at a tenth of their time.
func TestBoundsAreThoseOfThePaper(t *testing.T) {
	want := map[string]float64{"M1": 15, "M2": 15, "M3": 10.25, "M4": 10.45, "M5": 10, "M6": 14.4, "M7": 10.24, "M8": 15}
	if len(Scenarios()) != len(want) {
		t.Errorf("%d scenarios, want %d", len(Scenarios()), len(want))
	}
	for name, bound := range want {
		s, err := Find(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Bound(.1); math.Abs(got-bound) > 1e-9 {
			t.Errorf("%s: bound is %v s, want %v", name, got, bound)
		}
	}
}

// Every variant is a plan of as many stages, which share slots as the scenario says, and of partitions of whole frames.
func TestEveryVariantIsAPlan(t *testing.T) {
	for _, s := range Scenarios() {
		s = s.filled()
		for _, v := range Variants(s, "", nil) {
			s := s.with(v)
			r, err := recipe.Parse([]byte(s.Recipe("samples.tar", .1)))
			if err != nil {
				t.Fatalf("%s: %v", s.Name, err)
			}
			p, err := plan.New(r)
			if err != nil {
				t.Fatalf("%s: %v", s.Name, err)
			}
			if len(p.Stages) != len(s.stages) {
				t.Errorf("%s: %d stages, want %d", s.Name, len(p.Stages), len(s.stages))
				continue
			}
			for i, st := range p.Stages {
				if len(st.Resources) != 1 || st.Resources[s.stages[i].resource] != 1 {
					t.Errorf("%s: stage %d takes %v, want one slot of %s", s.Name, i, st.Resources, s.stages[i].resource)
				}
			}
			if whole := p.TargetBytes % p.Stages[0].RowBytes; whole != 0 && whole != s.FrameBytes {
				t.Errorf("%s: partitions of %d bytes do not hold whole frames of %d", s.Name, p.TargetBytes, p.Stages[0].RowBytes)
			}
		}
	}
}

func TestVariantsAsAsked(t *testing.T) {
	s, err := Find("m2")
	if err != nil {
		t.Fatal(err)
	}
	got := Variants(s, "static", []int64{9})
	want := []Variant{{Policy: "static", Frames: 9}, {Policy: "static", Frames: 9, Whole: true}}
	if len(got) != len(want) || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("variants are %+v, want %+v", got, want)
	}
	if _, err := Find("M9"); errkind.Of(err) != errkind.Invalid {
		t.Errorf("a scenario that is not there: %v", err)
	}
}

func TestRunsThatMakeNoSense(t *testing.T) {
	s, err := Find("M7")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		v     Variant
		scale float64
	}{{Variant{Frames: 0}, 1}, {Variant{Frames: 1}, 0}, {Variant{Frames: 1, Rows: 3}, 1}} {
		if _, err := Run(t.Context(), s, c.v, Options{Scale: c.scale}); errkind.Of(err) != errkind.Invalid {
			t.Errorf("%+v at scale %v: %v", c.v, c.scale, err)
		}
	}
	if _, err := Run(t.Context(), s, Variant{Frames: 1}, Options{Scale: 1, Program: filepath.Join(t.TempDir(), "none")}); err == nil {
		t.Error("a program that is not there: no error")
	}
}

// Workers that do at once what they are told never run out of work, and no more is live than was said.
func TestDispatchKeepsEveryWorkerBusy(t *testing.T) {
	const workers = 3
	d, err := newDispatch(workers)
	if err != nil {
		t.Fatal(err)
	}
	for range 10_000 {
		if err := d.event(); err != nil {
			t.Fatal(err)
		}
	}
	snapshot := d.core.Snapshot()
	tasks := 0
	for _, n := range snapshot.Nodes {
		tasks += n.Tasks
	}
	if snapshot.Sources != livePartitions || tasks != workers*grants || len(snapshot.Nodes) != workers {
		t.Errorf("%d source partitions are live and %d tasks run on %d workers", snapshot.Sources, tasks, len(snapshot.Nodes))
	}
	if _, err := Dispatch(t.Context(), 0); errkind.Of(err) != errkind.Invalid {
		t.Errorf("no workers: %v", err)
	}
}

// What Ray's side says becomes a result beside ours; what keeps it from running is told.
func TestRayBesideOurs(t *testing.T) {
	s, err := Find("M1")
	if err != nil {
		t.Fatal(err)
	}
	python := func(script string) string {
		path := filepath.Join(t.TempDir(), "python")
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	o := Options{Scale: .1, Log: io.Discard}
	r, err := RunRay(t.Context(), s, 61, python(`[ "$3" = 61 ] && [ "$5" = 160 ] && [ "$7" = 0.1 ] && grep -q "ray.data" "$1" && echo '{"seconds": 30, "finished": true}'`), o)
	if err != nil {
		t.Fatal(err)
	}
	want := Result{Scenario: "M1", Policy: "ray", Frames: 61, Seconds: 30, Bound: 15, Ratio: 2, CapMiB: 244, Finished: true, PeakMiB: r.PeakMiB, CPUSeconds: r.CPUSeconds}
	if *r != want {
		t.Errorf("result is %+v, want %+v", *r, want)
	}
	if r, err := RunRay(t.Context(), s, 61, python(`echo '{"seconds": 30, "finished": false}'`), o); err != nil || r.Finished || r.Error == "" {
		t.Errorf("wrong rows: %+v, %v", r, err)
	}
	other, err := Find("M2")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		s      Scenario
		python string
		kind   errkind.Kind
	}{
		{other, python("true"), errkind.Invalid},
		{s, filepath.Join(t.TempDir(), "none"), errkind.Invalid},
		{s, python("exit 1"), errkind.Unavailable},
		{s, python("echo what"), errkind.Internal},
	} {
		if _, err := RunRay(t.Context(), c.s, 61, c.python, o); errkind.Of(err) != c.kind {
			t.Errorf("%s by %s: %v, want an error of kind %v", c.s.Name, c.python, err, c.kind)
		}
	}
}
