package measure

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/preprocess/op"
	"github.com/millrace/millrace/preprocess/plan"
)

// measurer measures some samples.
type measurer struct {
	plan   *plan.Plan
	env    op.Env
	result *Result
}

func (m *measurer) chunk(ctx context.Context, set *dataset.Dataset, numbers []int64) error {
	begin := time.Now()
	samples, release, err := set.Read(ctx, numbers, m.plan.Want)
	defer release()
	if err != nil {
		return err
	}
	read := Stage{Time: time.Since(begin)}
	for len(samples) > 0 {
		stages := make([]Stage, len(m.plan.Stages))
		err := m.stages(ctx, samples, stages)
		if bad, ok := errors.AsType[*op.SampleError](err); ok {
			left := slices.DeleteFunc(slices.Clone(samples), func(s dataset.Sample) bool { return s.Key == bad.Key })
			if len(left) == len(samples) {
				return err
			}
			m.result.Bad += len(samples) - len(left)
			samples = left
			continue
		}
		if err != nil {
			return err
		}
		m.result.Stages = stages
		break
	}
	for i := range samples {
		read.Rows++
		for _, f := range samples[i].Fields {
			if m.plan.Want(f.Name) {
				read.Bytes += int64(len(f.Data))
			}
		}
	}
	m.result.Samples, m.result.Read = len(samples), read
	return nil
}

// stages runs the stages in turn, so that each has its own time.
func (m *measurer) stages(ctx context.Context, samples []dataset.Sample, out []Stage) error {
	first, err := m.plan.Batch(samples)
	if err != nil {
		return err
	}
	batches := []*op.Batch{first}
	for i := range m.plan.Stages {
		var made []*op.Batch
		begin := time.Now()
		for _, b := range batches {
			err := m.apply(ctx, m.plan.Stages[i].Ops, b, func(b *op.Batch) error { made = append(made, b); return nil })
			if err != nil {
				return err
			}
		}
		out[i].Time = time.Since(begin)
		for _, b := range made {
			out[i].Rows += int64(b.NumRows)
			out[i].Bytes += b.Bytes()
		}
		batches = made
	}
	return nil
}

func (m *measurer) apply(ctx context.Context, ops []op.Operator, b *op.Batch, emit func(*op.Batch) error) error {
	if len(ops) == 0 {
		return emit(b)
	}
	return ops[0].Apply(ctx, &m.env, b, func(b *op.Batch) error { return m.apply(ctx, ops[1:], b, emit) })
}
