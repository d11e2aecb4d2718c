package worker

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/loader/dataset/datasettest"
	"github.com/millrace/millrace/preprocess/plan"
	workerv1 "github.com/millrace/millrace/proto/millrace/worker/v1"
)

// spoiltData has labels that are no numbers in some samples.
func spoiltData(t *testing.T, spoilt ...int) *data {
	t.Helper()
	samples := datasettest.Samples(numSamples)
	for _, i := range spoilt {
		samples[i].Members[1].Data = []byte("seven")
	}
	return newData(t, samples)
}

func TestBadSamplesAreSkippedOrReplacedAlikeWhateverSlotsAndBudget(t *testing.T) {
	d := spoiltData(t, 3, 4, 5, 42, 77)
	for _, policy := range []plan.OnError{plan.Skip, plan.Replace} {
		for _, columns := range []string{variableColumns, fixedColumns} {
			var first made
			for _, c := range []struct {
				slots  int
				budget int64
			}{{1, 1 << 30}, {1, 1}, {4, 1 << 30}, {8, 3_000}} {
				synctest.Test(t, func(t *testing.T) {
					w := newWorldWith(t, d, Config{Slots: map[string]int{"cpu": c.slots}, BudgetBytes: c.budget}, slog.New(slog.DiscardHandler))
					defer w.finish()
					s := w.accept()
					s.welcome()
					p := planOf(t, d, "job", columns)
					p.OnError = policy.String()
					s.plan(p)
					s.run("job", 1, 1, nil, everySource()...)
					got, failed := w.collect(s, "job", numSources)
					if len(failed) > 0 {
						t.Fatalf("failed: %v", failed)
					}
					if first == nil {
						first = got
					}
					if diff := cmp.Diff(first, got); diff != "" {
						t.Errorf("%v, %d slots, %d bytes: outputs differ: %s", policy, c.slots, c.budget, diff)
					}
					var told []uint64
					for _, b := range w.bad {
						told = append(told, b.GetSample())
						if !strings.Contains(b.GetText(), "label") || !strings.Contains(b.GetText(), ".tar") {
							t.Errorf("it is told of as %q", b.GetText())
						}
					}
					slices.Sort(told)
					if fmt.Sprint(told) != "[3 4 5 42 77]" {
						t.Errorf("%v: told of %v", policy, told)
					}
				})
			}
		}
	}
}

func TestAQuarantinedSampleIsABadOne(t *testing.T) {
	d := spoiltData(t)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, d, 2, 1<<30)
		defer w.finish()
		s := w.accept()
		s.welcome()
		p := planOf(t, d, "job", variableColumns)
		p.OnError = "skip"
		s.plan(p)
		s.quarantined = []*workerv1.BadSample{{Sample: 17, Text: "sample 17 kills workers"}}
		s.run("job", 1, 1, nil, everySource()...)
		_, failed := w.collect(s, "job", numSources)
		if len(failed) > 0 || len(w.bad) != 1 || w.bad[0].GetSample() != 17 || !strings.Contains(w.bad[0].GetText(), "kills workers") {
			t.Errorf("failed %v, bad %v", failed, w.bad)
		}
	})
}
