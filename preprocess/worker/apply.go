package worker

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/op"
)

// chain runs operators one after the other.
type chain struct {
	ops []op.Operator
	env *op.Env
	// skip, if set, is told of samples that an operator can't process; they are left out. mem is the memory of env.
	skip func(sample uint64, err error)
	mem  *arena
}

// apply runs all operators on b and hands what the last one makes to emit as it is made, in order. An operator does not
// get another row while what it made of the last ones waits for room.
func (c *chain) apply(ctx context.Context, b *op.Batch, emit func(*op.Batch) error) error {
	return c.from(ctx, 0, b, emit)
}

func (c *chain) from(ctx context.Context, i int, b *op.Batch, emit func(*op.Batch) error) error {
	if i == len(c.ops) {
		return emit(b)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	passed := 0 // what the operator has made before a bad row was found; with that row left out it makes it again first
	for {
		seen, mark := 0, 0
		if c.mem != nil {
			mark = len(c.mem.bufs)
		}
		err := c.guarded(ctx, i, b, func(out *op.Batch) error {
			if seen++; seen <= passed {
				return nil
			}
			passed++
			return c.from(ctx, i+1, out, emit)
		})
		if panicked, ok := err.(*panicError); ok { //nolint:errorlint // One of a later operator is wrapped already.
			// A panic of an operator becomes an error that names the sample: it is looked for by running each row alone.
			err = c.blame(ctx, i, b, panicked)
		}
		failed, ok := isBad(err)
		if !ok || c.skip == nil {
			return err
		}
		if seen == 0 {
			c.mem.shrink(mark)
		}
		if b, err = c.without(ctx, i, b, failed); err != nil {
			return err
		}
		if b.NumRows == 0 {
			return nil
		}
	}
}

// panicError is a panic of an operator.
type panicError struct{ value any }

func (e *panicError) Error() string { return fmt.Sprintf("operator panicked: %v", e.value) }

func (c *chain) guarded(ctx context.Context, i int, b *op.Batch, emit func(*op.Batch) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &panicError{value: p}
		}
	}()
	return c.ops[i].Apply(ctx, c.env, b, emit)
}

// blame finds the row on which operator i panics. If none does so alone, the whole batch is to blame.
func (c *chain) blame(ctx context.Context, i int, b *op.Batch, panicked *panicError) error {
	name := c.ops[i].Info().Name
	for row := range b.NumRows {
		one := cut(b, row, row+1)
		err := c.guarded(ctx, i, one, func(*op.Batch) error { return nil })
		again, ok := errors.AsType[*panicError](err)
		if !ok {
			continue
		}
		sample := &op.SampleError{Key: one.Keys[0], Operator: name, Row: row, Err: errkind.With(errkind.BadData, again)}
		if one.Origin != nil {
			sample.Origin = one.Origin(0)
		}
		return sample
	}
	return errkind.With(errkind.Internal, fmt.Errorf("operator %s on samples %s to %s: %w", name, b.Keys[0], b.Keys[b.NumRows-1], panicked))
}
