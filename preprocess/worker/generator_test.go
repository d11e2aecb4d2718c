package worker

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/loader/dataset/datasettest"
	"github.com/millrace/millrace/preprocess/exec"
	"github.com/millrace/millrace/preprocess/exec/run"
	"github.com/millrace/millrace/preprocess/lineage"
	"github.com/millrace/millrace/preprocess/op"
	"github.com/millrace/millrace/preprocess/plan"
	"github.com/millrace/millrace/preprocess/recipe"
)

// emitPlan is a plan of one stage that makes eight rows of each sample, each of them an output.
func emitPlan(t *testing.T) *plan.Plan {
	t.Helper()
	const row = 64 << 10
	r := &recipe.Recipe{
		Source: []string{"data"}, Fields: []recipe.Field{{Name: "bin", From: []string{"bin"}}},
		Operators: []recipe.Operator{{Name: "virtual_emit", Params: map[string]any{"rows": 8, "bytes": row, "field": "bin"}}},
		Partition: recipe.Partitioning{TargetBytes: row},
	}
	p, err := plan.New(r)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Law: what an operator hands on leaves as an output before the operator makes more, and without a copy: while a task
// waits for room, there is one output of it in memory beside those that were taken.
func TestOutputsLeaveWhileTheOperatorRuns(t *testing.T) {
	b := newBench(t, datasettest.Synthetic(t, benchSamples, 30), emitPlan(t))
	defer b.close(t)
	const largest = 128 << 10 // of a row, its key and its number, in whole buffers
	outputs := 0
	_, err := b.Run(t.Context(), run.Task{Input: lineage.SourceID(0, 0), Grant: run.Grant{Attempt: 1}}, func(o run.Output) error {
		outputs++
		if live := b.pool.Stats().LiveBytes; live > largest {
			t.Errorf("%d bytes are in use when output %d waits", live, outputs)
		}
		o.Drop()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := 8 * benchPartition; outputs != want {
		t.Errorf("%d outputs, want %d", outputs, want)
	}
}

// Law: whatever operators hand on, a panic of one names the sample of that one, not of those before it.
func TestAPanicAfterOutputsNamesItsSample(t *testing.T) {
	second := upperOp()
	second.info.Name = "second"
	work := second.apply
	second.apply = func(env *op.Env, in *op.Batch, emit func(*op.Batch) error) error {
		if slices.Contains(in.Samples, 26) {
			panic("odd")
		}
		return work(env, in, emit)
	}
	p := testPlan(t, 100, halfOp(), second)
	p.Stages[0].Ops = append(p.Stages[0].Ops, second)
	p.Stages = p.Stages[:1]
	b := newBench(t, datasettest.Synthetic(t, benchSamples, 30), p)
	defer b.close(t)
	failed := 0
	for source := range uint64(benchSamples / benchPartition) {
		_, err := b.run(t.Context(), 0, lineage.SourceID(0, source), nil)
		if err == nil {
			continue
		}
		failed++
		sample, ok := errors.AsType[*op.SampleError](err)
		if !ok || sample.Operator != "second" || !strings.HasSuffix(sample.Key, "!000026") {
			t.Errorf("error %v, want one of sample 26 and the second operator", err)
		}
	}
	if failed != 1 {
		t.Errorf("%d source partitions failed because of one sample", failed)
	}
}

// What a stage will make is known where its rows have one size and each becomes the same number of rows.
func TestExpectedBytes(t *testing.T) {
	const row, label = 1000 + rowOverhead, 8
	emit := func(rows int) recipe.Operator {
		return recipe.Operator{Name: "virtual_emit", Params: map[string]any{"rows": rows, "bytes": row - rowOverhead - label}}
	}
	crop := recipe.Operator{Name: "ten_crop", Params: map[string]any{"field": "image", "size": 2}}
	bytes, image := recipe.Field{Name: "bin", From: []string{"bin"}}, recipe.Field{Name: "image", From: []string{"jpg"}}
	for name, c := range map[string]struct {
		field recipe.Field
		ops   []recipe.Operator
		want  int64
	}{
		"one row of each":        {bytes, []recipe.Operator{emit(1)}, 3 * row},
		"five of each":           {bytes, []recipe.Operator{emit(5)}, 15 * row},
		"two times three":        {bytes, []recipe.Operator{emit(2), emit(3)}, 18 * row},
		"none":                   {bytes, []recipe.Operator{emit(0)}, 0},
		"crops":                  {image, []recipe.Operator{{Name: "decode_image", Params: map[string]any{"field": "image"}}, crop}, 30 * (12 + rowOverhead)},
		"bytes of unknown sizes": {bytes, nil, 0},
		"no rows of crops":       {image, []recipe.Operator{{Name: "decode_image", Params: map[string]any{"field": "image"}}, crop, {Name: "virtual_emit", Params: map[string]any{"rows": 0}}}, 0},
	} {
		p, err := plan.New(&recipe.Recipe{Source: []string{"data"}, Fields: []recipe.Field{c.field}, Operators: c.ops})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := expectedBytes(&p.Stages[0], 3); got != c.want {
			t.Errorf("%s: %d bytes, want %d", name, got, c.want)
		}
	}
	huge := emitPlan(t)
	if got := expectedBytes(&huge.Stages[0], exec.Unlimited); got != 0 {
		t.Errorf("more rows than can be counted: %d bytes", got)
	}
}
