package worker

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/grpcerr"
	"github.com/millrace/millrace/loader/dataset/datasettest"
	"github.com/millrace/millrace/preprocess/exec"
	"github.com/millrace/millrace/preprocess/lineage"
	"github.com/millrace/millrace/preprocess/partition"
	workerv1 "github.com/millrace/millrace/proto/millrace/worker/v1"
)

func TestPartitionsAreTheSameWhateverPolicySlotsAndBudget(t *testing.T) {
	d := newData(t, datasettest.Samples(numSamples))
	for _, columns := range []string{variableColumns, fixedColumns} {
		var first made
		for _, c := range []struct {
			policy exec.Policy
			slots  int
			budget int64
		}{
			{0, 1, 1 << 30},
			{0, 1, 1},
			{0, 4, 1 << 30},
			{0, 4, 20_000},
			{0, 8, 3_000},
			{exec.PolicyStaged, 4, 1 << 30},
			{exec.PolicyStaged, 4, 20_000},
			{exec.PolicyStaged, 1, 1},
			{exec.PolicyStatic, 4, 1 << 30},
			{exec.PolicyStatic, 4, 20_000},
			{exec.PolicyStatic, 1, 1},
		} {
			synctest.Test(t, func(t *testing.T) {
				w := newWorldWith(t, d, Config{Policy: c.policy, Slots: map[string]int{"cpu": c.slots}, BudgetBytes: c.budget}, slog.New(slog.DiscardHandler))
				defer w.finish()
				s := w.accept()
				s.welcome()
				s.plan(planOf(t, d, "job", columns))
				s.run("job", 1, 1, nil, everySource()...)
				got, failed := w.collect(s, "job", numSources)
				if len(failed) > 0 {
					t.Fatalf("failed: %v", failed)
				}
				if first == nil {
					first = got
				}
				if diff := cmp.Diff(first, got); diff != "" || len(got) < numSources {
					t.Errorf("%v, %d slots, %d bytes: %d outputs differ: %s", c.policy, c.slots, c.budget, len(got), diff)
				}
			})
		}
	}
}

func TestManyJobsShareAWorker(t *testing.T) {
	d := newData(t, datasettest.Samples(numSamples))
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, d, 2, 30_000)
		defer w.finish()
		s := w.accept()
		s.welcome()
		names := []string{"a", "b", "c"}
		for i, name := range names {
			p := planOf(t, d, name, variableColumns)
			p.Weight = uint32(i + 1)
			s.plan(p)
			s.run(name, 1, 1, nil, everySource()...)
		}
		var results []made
		for _, name := range names {
			got, failed := w.collect(s, name, numSources)
			if len(failed) > 0 {
				t.Fatalf("job %s failed: %v", name, failed)
			}
			results = append(results, got)
		}
		if !cmp.Equal(results[0], results[1]) || !cmp.Equal(results[0], results[2]) {
			t.Error("jobs of the same plan made different partitions")
		}
	})
}

func TestABadSampleIsNamed(t *testing.T) {
	samples := datasettest.Samples(numSamples)
	samples[42].Members[1].Data = []byte("seven")
	d := newData(t, samples)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, d, 2, 1<<20)
		defer w.finish()
		s := w.accept()
		s.welcome()
		s.plan(planOf(t, d, "job", variableColumns))
		s.run("job", 1, 1, nil, everySource()...)
		_, failed := w.collect(s, "job", numSources)
		if len(failed) != 1 {
			t.Fatalf("%d source partitions failed: %v", len(failed), failed)
		}
		f := failed[0]
		if f.GetKind() != "bad_data" || f.GetRetry() || !strings.Contains(f.GetText(), "train-000001.tar") || !strings.Contains(f.GetText(), "label") {
			t.Errorf("it says %v", f)
		}
	})
}

func TestAJobThatCannotRunSaysWhy(t *testing.T) {
	d := newData(t, datasettest.Samples(numSamples))
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, d, 2, 1<<20)
		defer w.finish()
		s := w.accept()
		s.welcome()
		p := planOf(t, d, "job", variableColumns)
		p.Recipe.Operators[0].Name = "lable"
		s.plan(p)
		s.run("job", 1, 1, nil, 0)
		gpu := planOf(t, d, "gpu", variableColumns)
		gpu.Recipe.Operators[0].Resources = map[string]uint32{"gpu": 1}
		s.plan(gpu)
		s.run("gpu", 1, 1, nil, 0)
		s.run("nobody", 1, 1, nil, 0)
		lost := planOf(t, d, "lost", variableColumns)
		lost.Manifest = make([]byte, 16)
		s.plan(lost)
		s.run("lost", 1, 1, nil, 0)
		for _, c := range []struct {
			job, kind, text string
			retry           bool
		}{
			{"job", "invalid", "label", false},
			{"gpu", "unavailable", "slots of gpu", true},
			{"nobody", "unavailable", "does not know", true},
			{"lost", "not_found", "manifest", true},
		} {
			_, failed := w.collect(s, c.job, 1)
			if len(failed) != 1 || failed[0].GetKind() != c.kind || failed[0].GetRetry() != c.retry || !strings.Contains(failed[0].GetText(), c.text) {
				t.Errorf("%s: %v", c.job, failed)
			}
		}
	})
}

func TestAfterABreakTheWorkerRegistersWhatItHolds(t *testing.T) {
	d := newData(t, datasettest.Samples(numSamples))
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, d, 2, 1<<20)
		defer w.finish()
		s := w.accept()
		s.welcome()
		s.plan(planOf(t, d, "job", variableColumns))
		s.run("job", 1, 1, nil, 0, 1, 2)
		synctest.Wait()
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		before := w.worker.Store().Held()
		if len(before) < 4 {
			t.Fatalf("only %d partitions were made", len(before))
		}
		// One of them is lost on the way: it is to be made again, the others are not.
		lost := before[1]
		w.worker.Store().Free("job", lost.ID)
		s.end <- grpcerr.ToStatus(errkind.Errorf(errkind.Unavailable, "the dispatcher is stopping"))
		s = w.accept()
		if got := len(s.register.GetSources()); got != 3 {
			t.Errorf("%d source partitions are registered, 3 were given", got)
		}
		var skip []lineage.ID
		for _, h := range s.register.GetSources() {
			if n := len(h.GetDone()); n == 0 || len(h.GetDone()[n-1].GetId().GetPath()) != 0 || h.GetGeneration() != 1 || h.GetAttempt() != 1 || h.GetPartial() {
				t.Errorf("registered as %v", h)
			}
			for _, o := range h.GetOutputs() {
				id, err := partition.IDFromWire(o.GetId())
				if err != nil {
					t.Fatal(err)
				}
				if id != lost.ID {
					skip = append(skip, id)
				}
			}
		}
		if len(skip) != len(before)-1 {
			t.Errorf("%d partitions are registered, %d are held", len(skip)+1, len(before))
		}
		s.welcome()
		s.plan(planOf(t, d, "job", variableColumns))
		s.run("job", 1, 2, skip, lost.ID.Source)
		for done := false; !done; {
			time.Sleep(time.Millisecond)
			s.mu.Lock()
			done = slices.ContainsFunc(s.events, func(e *workerv1.Event) bool { return e.GetDone() != nil && len(e.GetDone().GetId().GetPath()) == 0 })
			s.mu.Unlock()
		}
		var again []string
		for _, e := range s.events {
			if o := e.GetOutput(); o != nil {
				again = append(again, fmt.Sprintf("%s %d %x", sourceName(t, o.GetId()), o.GetAttempt(), o.GetContentHash()))
			}
		}
		want := fmt.Sprintf("%s 2 %x", lost.ID, lost.Hash)
		if diff := cmp.Diff([]string{want}, again); diff != "" {
			t.Errorf("made again: %s", diff)
		}
	})
}

func TestCancelAndEndJobFreeMemory(t *testing.T) {
	d := newData(t, datasettest.Samples(numSamples))
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, d, 2, 1<<20)
		defer w.finish()
		s := w.accept()
		s.welcome()
		s.plan(planOf(t, d, "job", variableColumns))
		s.run("job", 1, 1, nil, everySource()...)
		settle := func() {
			time.Sleep(time.Second)
			synctest.Wait()
		}
		settle()
		if w.worker.Store().Bytes() == 0 {
			t.Fatal("nothing was made")
		}
		s.send(&workerv1.ConnectResponse{Message: &workerv1.ConnectResponse_Cancel{Cancel: &workerv1.Cancel{Job: "job", BelowGeneration: 2}}})
		settle()
		if n := w.pool.Stats().LiveBytes; n != 0 {
			t.Errorf("%d bytes are left after Cancel", n)
		}
		s.run("job", 2, 1, nil, 3)
		settle()
		if w.worker.Store().Bytes() == 0 {
			t.Error("nothing was made in the next generation")
		}
		s.send(&workerv1.ConnectResponse{Message: &workerv1.ConnectResponse_EndJob{EndJob: &workerv1.EndJob{Job: "job"}}})
		settle()
		if n := w.pool.Stats().LiveBytes; n != 0 {
			t.Errorf("%d bytes are left after EndJob", n)
		}
	})
}

func TestAWorkerThatStopsAsksFirst(t *testing.T) {
	d := newData(t, datasettest.Samples(numSamples))
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, d, 1, 1<<20)
		s := w.accept()
		s.welcome()
		w.worker.Stop()
		w.worker.Stop()
		synctest.Wait()
		s.mu.Lock()
		drained := s.drained
		s.mu.Unlock()
		if !drained || len(w.ran) != 0 {
			t.Errorf("asked to leave: %v; Run has returned: %v", drained, len(w.ran) != 0)
		}
		s.send(&workerv1.ConnectResponse{Message: &workerv1.ConnectResponse_Drained{Drained: &workerv1.Drained{}}})
		synctest.Wait()
		if len(w.ran) != 1 {
			t.Error("Run goes on after the drain")
		}
		w.finish()
	})
}

func TestARefusedWorkerEnds(t *testing.T) {
	d := newData(t, datasettest.Samples(numSamples))
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, d, 1, 1<<20)
		s := w.accept()
		s.end <- grpcerr.ToStatus(errkind.Errorf(errkind.Conflict, "another worker of the same name has registered"))
		err := <-w.ran
		if errkind.Of(err) != errkind.Conflict || !strings.Contains(err.Error(), "same name") {
			t.Errorf("Run: %v", err)
		}
		w.ran <- nil
		w.finish()
	})
}

func TestHeartbeatsComeAtTheAgreedPace(t *testing.T) {
	d := newData(t, datasettest.Samples(numSamples))
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, d, 2, 1<<20)
		defer w.finish()
		s := w.accept()
		s.welcome()
		s.plan(planOf(t, d, "job", variableColumns))
		s.run("job", 1, 1, nil, everySource()...)
		time.Sleep(3500 * time.Millisecond)
		synctest.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.beats) != 3 {
			t.Fatalf("%d heartbeats in 3.5 s", len(s.beats))
		}
		last := s.beats[2]
		if last.GetSamples() != numSamples || last.GetHeldBytes() != w.worker.Store().Bytes() || last.GetHeldBytes() == 0 {
			t.Errorf("it says %v", last)
		}
		if s.batches >= len(s.events) {
			t.Errorf("%d events came in %d messages", len(s.events), s.batches)
		}
	})
}

func TestMetricsAreWellFormed(t *testing.T) {
	d := newData(t, datasettest.Samples(numSamples))
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, d, 1, 1<<20)
		defer w.finish()
		registry := prometheus.NewPedanticRegistry()
		for _, c := range w.worker.Collectors() {
			if err := registry.Register(c); err != nil {
				t.Fatal(err)
			}
		}
		s := w.accept()
		s.welcome()
		s.plan(planOf(t, d, "job", variableColumns))
		s.run("job", 1, 1, nil, everySource()...)
		if _, failed := w.collect(s, "job", numSources); len(failed) > 0 {
			t.Fatal(failed)
		}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		values := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				values[f.GetName()] += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
		for name, want := range map[string]float64{
			"millrace_worker_samples_total": numSamples, "millrace_worker_rows_total": numSamples, "millrace_worker_sessions_total": 1,
			"millrace_worker_budget_bytes": 1 << 20, "millrace_worker_jobs": 1, "millrace_worker_running_tasks": 0,
		} {
			if values[name] != want {
				t.Errorf("%s is %v, want %v", name, values[name], want)
			}
		}
	})
}

func TestConfigsAreChecked(t *testing.T) {
	good := Config{Name: "w", DataAddress: "local:w", Slots: map[string]int{"cpu": 1}, BudgetBytes: 1}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, edit := range map[string]func(*Config){
		"no name":    func(c *Config) { c.Name = "" },
		"no address": func(c *Config) { c.DataAddress = "" },
		"no slots":   func(c *Config) { c.Slots = nil },
		"zero slots": func(c *Config) { c.Slots = map[string]int{"cpu": 0} },
		"no budget":  func(c *Config) { c.BudgetBytes = 0 },
	} {
		c := good.clone()
		edit(&c)
		if err := c.Validate(); errkind.Of(err) != errkind.Invalid {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := New(c, Deps{}); errors.Is(err, nil) {
			t.Errorf("%s: New accepts it", name)
		}
	}
}
