package measure_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/cmd/millrace/measure"
	"github.com/millrace/millrace/loader/dataset/datasettest"
	"github.com/millrace/millrace/preprocess/plan"
	"github.com/millrace/millrace/preprocess/recipe"
)

func options(t *testing.T, operators string) measure.Options {
	t.Helper()
	set := datasettest.Synthetic(t, 40, 15)
	r, err := recipe.Parse([]byte("source: mem://data/train-{000000..000002}.tar\nfields: {text: txt, label: cls}\noperators: " + operators))
	if err != nil {
		t.Fatal(err)
	}
	p, err := plan.New(r)
	if err != nil {
		t.Fatal(err)
	}
	return measure.Options{Plan: p, Manifest: set.Build(t), Resolver: set.Resolver, Samples: 20, Limit: time.Minute}
}

// On the clock of a bubble only what operators are told to take passes.
func TestEachStageHasItsOwnTimeAndSize(t *testing.T) {
	o := options(t, `[{virtual_sleep: {seconds: 0.25}}, {virtual_emit: {rows: 3, bytes: 100, barrier: true}}, {virtual_sleep: {seconds: 0.5, barrier: true}}]`)
	synctest.Test(t, func(t *testing.T) {
		got, err := measure.Plan(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		// The first sample finds everything cold and does not count. A text has 13 bytes, a label 1.
		want := &measure.Result{Samples: 19, Read: measure.Stage{Rows: 19, Bytes: 19 * 14}, Stages: []measure.Stage{
			{Rows: 19, Bytes: 19 * 14, Time: 19 * 250 * time.Millisecond},
			{Rows: 57, Bytes: 57 * 108},
			{Rows: 57, Bytes: 57 * 108, Time: 57 * 500 * time.Millisecond},
		}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	})
}

func TestSlowOperatorsAreMeasuredOnFewSamples(t *testing.T) {
	for seconds, want := range map[string]int{"60": 1, "25": 2, "12": 6} {
		o := options(t, "[{virtual_sleep: {seconds: "+seconds+"}}]")
		synctest.Test(t, func(t *testing.T) {
			got, err := measure.Plan(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			if got.Samples != want {
				t.Errorf("%s s each: measured on %d samples, not %d", seconds, got.Samples, want)
			}
		})
	}
}

func TestSamplesThatCannotBeProcessedDoNotCount(t *testing.T) {
	// The text of sample n is "sample 00000n"; its label n modulo 10 becomes a truth value, which only 0 and 1 are.
	o := options(t, "[{label: {field: label}}]\noutput: {label: {dtype: bool}}")
	got, err := measure.Plan(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	// Every second sample of 40: their labels are 0, 2, 4, 6 and 8 in turn.
	if got.Samples != 4 || got.Bad != 16 {
		t.Errorf("%d were measured and %d could not be; want 4 and 16", got.Samples, got.Bad)
	}
	o = options(t, "[{label: {field: text, dtype: int64}}]")
	if got, err = measure.Plan(t.Context(), o); err != nil || got.Samples != 0 || got.Bad != 20 {
		t.Errorf("nothing can be processed: %+v, %v", got, err)
	}
}

func TestWithoutPermissionFunctionsAreNotMeasured(t *testing.T) {
	_, err := measure.Plan(t.Context(), options(t, "[{python: {call: 'm:f'}}]"))
	if err == nil || !strings.Contains(err.Error(), "m:f can't be called here") {
		t.Errorf("%v", err)
	}
}
