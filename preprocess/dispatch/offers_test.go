package dispatch_test

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/errkind"
	feedv1 "github.com/millrace/millrace/proto/millrace/feed/v1"
)

// with is the request of a rank for a recipe with these operators.
func with(rank, world int, operators string) *feedv1.OpenJobRequest {
	return request(rank, world, func(r *feedv1.OpenJobRequest) { r.Recipe = []byte(textRecipe + "operators: " + operators + "\n") })
}

func (w *fakeWorker) numRuns() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.runs
}

// joined waits until so many workers have registered.
func (h *harness) joined(n int) {
	h.t.Helper()
	waitFor(h.t, func() bool { return len(h.d.Status().GetWorkers()) == n })
}

// A job runs on the workers that have all it takes, and on no other.
func TestAJobRunsOnWorkersThatOfferWhatItTakes(t *testing.T) {
	for name, c := range map[string]struct {
		operators string
		able      func(*fakeWorker)
	}{
		"slots":     {"[{virtual_sleep: {resources: {gpu: 2}}}]", func(w *fakeWorker) { w.slots["gpu"] = 2 }},
		"functions": {"[{python: {call: 'm:f'}}]", func(w *fakeWorker) { w.slots["python"], w.python = 1, "imports" }},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, 30, "")
			plain := h.worker("plain", nil)
			half := h.worker("half", func(w *fakeWorker) { w.slots["gpu"], w.slots["python"] = 1, 1 })
			able := h.worker("able", c.able)
			h.joined(3)
			opened := h.mustOpen(with(0, 1, c.operators))
			stream := h.attach("s1")
			h.send(stream, seek(0, opened.GetStart()))
			var f feed
			collect(t, stream, &f, epochEnds(1))
			if able.numRuns() == 0 || plain.numRuns() != 0 || half.numRuns() != 0 {
				t.Errorf("%d runs where they can, %d and %d where they can't", able.numRuns(), plain.numRuns(), half.numRuns())
			}
		})
	}
}

func TestAJobThatNoWorkerCanRunIsRefused(t *testing.T) {
	h := newHarness(t, 30, "")
	h.worker("w1", func(w *fakeWorker) { w.slots["gpu"], w.python = 1, "imports" })
	h.joined(1)
	for operators, want := range map[string]string{
		"[{virtual_sleep: {resources: {gpu: 2}}}]":    "stage virtual_sleep+output takes 2 gpu, and worker w1 has 1: start workers that have them with --slots gpu=2",
		"[{python: {call: 'm:f', resources: {}}}]":    "takes 1 python, and worker w1 has 0",
		"[{python: {call: 'm:f', pickle: 'gASVBg'}}]": "worker w1: function m:f is shipped with the recipe, and only installed ones are run here",
	} {
		_, err := h.open(with(0, 1, operators))
		if errkind.Of(err) != errkind.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", operators, err, want)
		}
	}
}

// Without a worker to ask, a job waits and says for what.
func TestAJobWaitsForAWorkerThatCanRunIt(t *testing.T) {
	h := newHarness(t, 30, "")
	opened := h.mustOpen(with(0, 1, "[{python: {call: 'm:f'}}]"))
	stream := h.attach("s1")
	h.send(stream, seek(0, opened.GetStart()))
	plain := h.worker("plain", nil)
	waitFor(t, func() bool {
		return strings.Contains(h.d.Status().GetJobs()[0].GetWaiting(), "waits for a worker that can run it; worker plain: function m:f is in Python")
	})
	h.worker("able", func(w *fakeWorker) { w.slots["python"], w.python = 1, "shipped" })
	var f feed
	collect(t, stream, &f, epochEnds(1))
	if plain.numRuns() != 0 {
		t.Error("a worker was given what it can't run")
	}
}

// Ranks pickle one function into different bytes; those of rank 0 are used, whoever comes first.
func TestFunctionsOfRank0AreUsed(t *testing.T) {
	for _, first := range []int{0, 1} {
		h := newHarness(t, 30, "")
		w := h.worker("w1", func(w *fakeWorker) { w.slots["python"], w.python = 1, "shipped" })
		shipped := []string{"[{python: {call: 'm:f', pickle: zero}}]", "[{python: {call: 'm:f', pickle: one}}]"}
		opened := h.mustOpen(with(first, 2, shipped[first]))
		h.mustOpen(with(1-first, 2, shipped[1-first]))
		a, b := h.attach("s1"), h.attach("s2")
		h.send(a, seek(0, opened.GetStart()))
		h.send(b, seek(1, opened.GetStart()))
		var f feed
		collect(t, a, &f, epochEnds(1))
		w.mu.Lock()
		got := w.plan.GetRecipe().GetOperators()[0].GetParams().AsMap()["pickle"]
		w.mu.Unlock()
		if got != "zero" {
			t.Errorf("rank %d comes first: the worker got the function of rank %v", first, got)
		}
	}
}
