// Package measure runs the stages of a plan on some samples of its source, one after the other on one core, and says what
// each takes and makes.
package measure

import (
	"context"
	"time"

	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/store"
	"github.com/millrace/millrace/preprocess/op"
	"github.com/millrace/millrace/preprocess/plan"
)

// Options say what is measured, and how.
type Options struct {
	Plan *plan.Plan
	// Manifest of the source; Resolver opens its stores, Cache has its indexes.
	Manifest *dataset.Manifest
	Resolver *store.Resolver
	Cache    *dataset.Cache
	// Samples to take at most, spread over the source.
	Samples int
	// Limit ends it early: no more samples are taken after that.
	Limit time.Duration
	// Scalar keeps image kernels from using SIMD.
	Scalar bool
	// Python runs functions of users; nil: the plan has none.
	Python op.Python
	// Outside decodes files in other processes; nil: all are decoded in this one.
	Outside op.Outside
}

// Result is what was measured, of all samples together.
type Result struct {
	// Samples that went through, and Bad ones that could not be processed and count for nothing.
	Samples, Bad int
	// Read is reading the samples; its bytes are those of the members that the recipe takes.
	Read Stage
	// Stages are those of the plan.
	Stages []Stage
}

// Stage is what one stage takes and makes.
type Stage struct {
	Rows, Bytes int64
	Time        time.Duration
}

// chunkRows is how many samples are taken at a time at most. They begin with one, whose time tells whether there will
// be others.
const chunkRows = 16

// Plan measures a plan.
func Plan(ctx context.Context, o Options) (*Result, error) {
	set, err := dataset.Open(o.Manifest, o.Resolver, o.Cache, dataset.OpenOptions{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = set.Close() }()
	all := ordinals(o.Manifest.NumSamples(), int64(o.Samples))
	begin := time.Now()
	var out *Result
	for n := 1; len(all) > 0 && (out == nil || time.Since(begin) < o.Limit); n = min(2*n, chunkRows) {
		chunk := all[:min(n, len(all))]
		m := &measurer{plan: o.Plan, env: op.Env{Scalar: o.Scalar, Python: o.Python, Outside: o.Outside}, result: &Result{Stages: make([]Stage, len(o.Plan.Stages))}}
		if err := m.chunk(ctx, set, chunk); err != nil {
			return nil, err
		}
		all = all[len(chunk):]
		// The first one finds everything cold: it counts only if there is no other.
		if out == nil || (out.Samples <= 1 && n == 2 && m.result.Samples > 0) {
			out = m.result
		} else {
			out.add(m.result)
		}
	}
	if out == nil {
		out = &Result{Stages: make([]Stage, len(o.Plan.Stages))}
	}
	return out, nil
}

// ordinals are n of all samples, spread evenly.
func ordinals(all, n int64) []int64 {
	n = min(n, all)
	out := make([]int64, n)
	for i := range out {
		out[i] = int64(i) * all / n
	}
	return out
}

func (r *Result) add(o *Result) {
	r.Samples += o.Samples
	r.Bad += o.Bad
	r.Read.add(o.Read)
	for i := range r.Stages {
		r.Stages[i].add(o.Stages[i])
	}
}

func (s *Stage) add(o Stage) {
	s.Rows += o.Rows
	s.Bytes += o.Bytes
	s.Time += o.Time
}
