package dispatch_test

import (
	"strings"
	"testing"

	feedv1 "github.com/millrace/millrace/proto/millrace/feed/v1"
	workerv1 "github.com/millrace/millrace/proto/millrace/worker/v1"
)

func steps(f *feed) []int64 {
	var out []int64
	for _, s := range f.sealed {
		out = append(out, s.GetPosition().GetStep())
	}
	return out
}

// Law: a rank is no more than what it reads ahead in front of the slowest one, at the end of an epoch too, and is told for
// whom it waits. A sidecar that attaches anew is told no more either.
func TestNoRankRunsAwayFromTheSlowest(t *testing.T) {
	for prefetch, accumulation := range map[int64]int64{1: 1, 2: 1, 3: 2} {
		ahead := (prefetch + accumulation - 1) / accumulation
		edit := func(r *feedv1.OpenJobRequest) { r.Settings.Prefetch, r.Settings.Accumulation = prefetch, accumulation }
		h := newHarness(t, 64, "")
		h.worker("w1", nil)
		h.mustOpen(request(0, 2, edit))
		h.mustOpen(request(1, 2, edit))
		a, b := h.attach("s1"), h.attach("s2")
		h.send(a, seek(0, position(0, 0)))
		h.send(b, seek(1, position(0, 0)))
		var fa, fb feed
		collect(t, a, &fa, epochEnds(2)) // all is made and sealed
		collect(t, b, &fb, epochEnds(2))
		if int64(len(fa.sealed)) != 1+ahead || int64(len(fb.sealed)) != 1+ahead {
			t.Fatalf("prefetch %d of %d: steps %v and %v may be handed over while nobody has consumed any", prefetch, accumulation, steps(&fa), steps(&fb))
		}
		h.send(a, consumed(0, fa.generation, 1+ahead))
		waitFor(t, func() bool {
			return strings.Contains(h.d.Status().GetJobs()[0].GetWaiting(), "waiting for rank 1 to go on from epoch 0, step 0")
		})

		again := h.attach("s1")
		h.send(again, seek(0, position(1+ahead, 8*(1+ahead))))
		var f feed
		collect(t, again, &f, epochEnds(2))
		for step := int64(1); step <= 8; step++ {
			if step > 1+ahead {
				h.send(again, consumed(0, fa.generation, step))
			}
			h.send(b, consumed(1, fb.generation, step))
			collect(t, again, &f, sealedSteps(int(1+ahead+step)))
		}
		if last := f.sealed[len(f.sealed)-1].GetPosition(); last.GetEpoch() != 1 || last.GetStep() != ahead {
			t.Errorf("ranks are at the end of an epoch, and epoch %d, step %d comes last", last.GetEpoch(), last.GetStep())
		}
	}
}

// Law: batches before a failure are handed over wherever the slowest rank is.
func TestRanksSeeAllBatchesBeforeAFailure(t *testing.T) {
	h := newHarness(t, 64, "")
	h.worker("w1", func(w *fakeWorker) {
		w.broken = func(task *workerv1.SourceTask) string {
			if task.GetId().GetSource() == 13 {
				return "sample 52 is damaged"
			}
			return ""
		}
	})
	h.mustOpen(request(0, 2, nil))
	h.mustOpen(request(1, 2, nil))
	a, b := h.attach("s1"), h.attach("s2")
	h.send(a, seek(0, position(0, 0)))
	h.send(b, seek(1, position(0, 0)))
	var f feed
	collect(t, a, &f, func(f *feed) bool { return f.failed != nil })
	if len(f.sealed) != 6 {
		t.Errorf("steps %v may be handed over before the failure in step 6", steps(&f))
	}
}
