package sheet

import (
	"context"
	"errors"
	"slices"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/preprocess/op"
	"github.com/millrace/millrace/preprocess/plan"
)

// partition runs the operators on samples of one source partition.
func partition(ctx context.Context, set *dataset.Dataset, p *plan.Plan, ordinals []int64, o Options) ([]*Sample, error) {
	read, release, err := set.Read(ctx, ordinals, p.Want)
	defer release()
	if err != nil {
		return nil, err
	}
	r := newRunner(p, op.Env{Seed: o.Seed, Epoch: o.Epoch, Scalar: o.Scalar, Python: o.Python, Outside: o.Outside})
	var good []dataset.Sample
	out := make([]*Sample, len(read))
	for i := range read {
		out[i] = &Sample{Key: read[i].Key, Number: read[i].Ordinal, Drawn: []Drawing{}}
		r.byNumber[uint64(read[i].Ordinal)] = out[i] //nolint:gosec // Never negative.
		err := r.alone(ctx, out[i], read[i:i+1])
		if bad, ok := errors.AsType[*op.SampleError](err); ok {
			out[i].Error = bad.Error()
		} else if err != nil {
			return nil, err
		} else {
			good = append(good, read[i])
		}
	}
	if r.plain < len(r.chain) && len(good) > 0 { // the rest wants all rows at once
		for _, s := range out {
			s.Drawn = s.Drawn[:0]
		}
		b, err := p.Batch(good)
		if err == nil {
			err = r.from(ctx, r.chain, b, r.row)
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// runner runs the operators of all stages.
type runner struct {
	plan     *plan.Plan
	env      op.Env
	byNumber map[uint64]*Sample
	chain    []op.Operator
	// plain is the number of first operators whose rows depend on one sample only.
	plain int
}

func newRunner(p *plan.Plan, env op.Env) *runner {
	r := &runner{plan: p, env: env, byNumber: map[uint64]*Sample{}}
	for _, stage := range p.Stages {
		r.chain = append(r.chain, stage.Ops...)
	}
	r.plain = slices.IndexFunc(r.chain, func(o op.Operator) bool { return !o.Info().KeepsRows })
	if r.plain < 0 {
		r.plain = len(r.chain)
	}
	return r
}

// alone shows a sample as it is read, and runs those operators on it that need no other sample.
func (r *runner) alone(ctx context.Context, s *Sample, read []dataset.Sample) error {
	for _, f := range read[0].Fields {
		if p, ok := decoded(ctx, f.Data); ok {
			p.field = fieldOf(r.plan, f.Name)
			s.before = append(s.before, p)
		}
	}
	b, err := r.plan.Batch(read)
	if err != nil {
		return err
	}
	if r.plain == len(r.chain) {
		return r.from(ctx, r.chain, b, r.row)
	}
	return r.from(ctx, r.chain[:r.plain], b, func(*op.Batch) error { return nil })
}

// fieldOf is the recipe's field that is read from a member.
func fieldOf(p *plan.Plan, member string) string {
	for _, f := range p.Recipe.Fields {
		if slices.Contains(f.From, member) {
			return f.Name
		}
	}
	return member
}

// from runs operators on b, one after the other.
func (r *runner) from(ctx context.Context, ops []op.Operator, b *op.Batch, emit func(*op.Batch) error) error {
	if len(ops) == 0 {
		return emit(b)
	}
	env := r.env
	env.Drawn = func(row int, operator, values string) {
		if s := r.byNumber[b.Samples[row]]; s != nil {
			s.drew(Drawing{Operator: operator, Values: values})
		}
	}
	return ops[0].Apply(ctx, &env, b, func(out *op.Batch) error { return r.from(ctx, ops[1:], out, emit) })
}

// drew takes note of a draw; that of the rows that one sample became is the same.
func (s *Sample) drew(d Drawing) {
	if !slices.Contains(s.Drawn, d) {
		s.Drawn = append(s.Drawn, d)
	}
}

// row shows finished rows.
func (r *runner) row(b *op.Batch) error {
	for i := range b.NumRows {
		s := r.byNumber[b.Samples[i]]
		if s == nil {
			return errkind.Errorf(errkind.Internal, "a row is of sample %d, which was not read", b.Samples[i])
		}
		for c := range b.Columns {
			if p, ok := tensorPicture(&b.Columns[c], i); ok {
				s.after = append(s.after, p)
			} else if v := (Value{Field: b.Columns[c].Name, Text: valueText(&b.Columns[c], i)}); !slices.Contains(s.Values, v) {
				s.Values = append(s.Values, v)
			}
		}
	}
	return nil
}
