package worker

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/rng"
	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/preprocess/lineage"
	"github.com/millrace/millrace/preprocess/op"
	"github.com/millrace/millrace/preprocess/plan"
	workerv1 "github.com/millrace/millrace/proto/millrace/worker/v1"
)

// bad is what a task has found to be bad, by sample number.
type bad map[uint64]string

// add notes a sample and why it can't be processed. The first cause stays.
func (b bad) add(sample uint64, err error) {
	if _, known := b[sample]; !known {
		b[sample] = err.Error()
	}
}

func (b bad) toWire() []*workerv1.BadSample {
	out := make([]*workerv1.BadSample, 0, len(b))
	for sample, text := range b {
		out = append(out, &workerv1.BadSample{Sample: sample, Text: text})
	}
	slices.SortFunc(out, func(a, b *workerv1.BadSample) int { return cmp.Compare(a.GetSample(), b.GetSample()) })
	return out
}

// isBad reports whether err says that a sample can't be processed, by anyone: then the policy says what becomes of it.
// That a process died or that a store did not answer says nothing of the sample.
func isBad(err error) (*op.SampleError, bool) {
	sample, ok := errors.AsType[*op.SampleError](err)
	if !ok {
		return nil, false
	}
	kind := errkind.Of(sample)
	return sample, kind == errkind.BadData || kind == errkind.Exhausted
}

// found keeps what a task found until the end of its input is reported.
func (j *job) found(id lineage.ID, b bad) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.bad, id) // of an earlier attempt
	if len(b) > 0 {
		j.bad[id] = b
	}
}

// takeBad is what was found in an input, which has ended.
func (j *job) takeBad(id lineage.ID) bad {
	j.mu.Lock()
	defer j.mu.Unlock()
	b := j.bad[id]
	delete(j.bad, id)
	return b
}

// quarantine notes samples that must not be touched any more.
func (j *job) quarantine(samples []*workerv1.BadSample) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, s := range samples {
		j.quarantined[s.GetSample()] = s.GetText()
	}
}

// readable makes samples that can't be read, or must not be touched, bad ones: an error, or left out, or others in their
// places, as the policy says.
func (w *stageTask) readable(ctx context.Context, samples []dataset.Sample) ([]dataset.Sample, error) {
	w.job.mu.Lock()
	for i := range samples {
		if why, known := w.job.quarantined[uint64(samples[i].Ordinal)]; known { //nolint:gosec // Never negative.
			samples[i].Err = errkind.Errorf(errkind.BadData, "%s", why)
		}
	}
	w.job.mu.Unlock()
	if w.job.onError == plan.Raise {
		return samples, nil
	}
	wrong := make([]bool, len(samples))
	good := 0
	for i := range samples {
		_, err := w.job.plan.Batch(samples[i : i+1])
		sample, isSample := isBad(err)
		switch {
		case isSample:
			wrong[i] = true
			w.bad.add(uint64(samples[i].Ordinal), sample) //nolint:gosec // As above.
		case err != nil:
			return nil, err
		default:
			good++
		}
	}
	if good == len(samples) {
		return samples, nil
	}
	if w.job.onError == plan.Skip {
		kept := make([]dataset.Sample, 0, good)
		for i := range samples {
			if !wrong[i] {
				kept = append(kept, samples[i])
			}
		}
		return kept, nil
	}
	out := slices.Clone(samples)
	for i := range samples {
		if wrong[i] && good == 0 {
			spare, err := w.spare(ctx, uint64(samples[i].Ordinal), func(*op.Batch) error { return nil }) //nolint:gosec // As above.
			if err != nil {
				return nil, err
			}
			out[i] = *spare
		} else if wrong[i] {
			at := w.draw(uint64(samples[i].Ordinal), len(samples)) //nolint:gosec // As above.
			for wrong[at] {
				at = (at + 1) % len(samples)
			}
			out[i] = samples[at]
		}
	}
	return out, nil
}

// replacement marks the draws of replacements among those of operators.
const replacement = 1<<32 - 1

// draw is where the search for a sample in the place of another begins, among n.
func (w *stageTask) draw(sample uint64, n int) int {
	key := rng.Key{Seed: w.job.seed, Epoch: w.task.Input.Epoch, Sample: sample, Op: replacement}
	source := key.Source()
	return int(source.IntN(int64(n)))
}

// maxSpares is how many samples are tried in the place of another.
const maxSpares = 64

// spare is a sample of anywhere in the dataset, drawn by the key of the bad one whose place it takes: its source partition
// has no good one. fits says whether it can be processed. Its bytes stay until the task ends.
func (w *stageTask) spare(ctx context.Context, sample uint64, fits func(*op.Batch) error) (*dataset.Sample, error) {
	data, err := w.job.source.open(ctx)
	if err != nil {
		return nil, err
	}
	key := rng.Key{Seed: w.job.seed, Epoch: w.task.Input.Epoch, Sample: sample, Op: replacement}
	draws := key.Source()
	for range maxSpares {
		ordinal := draws.IntN(w.job.layout.NumSamples)
		w.job.mu.Lock()
		_, forbidden := w.job.quarantined[uint64(ordinal)] //nolint:gosec // Never negative.
		w.job.mu.Unlock()
		if forbidden {
			continue
		}
		read, release, err := data.Read(ctx, []int64{ordinal}, w.job.plan.Want)
		if err != nil {
			release()
			return nil, err
		}
		b, err := w.job.plan.Batch(read)
		if err == nil {
			err = fits(b)
		}
		if err == nil {
			w.releases = append(w.releases, release)
			return &read[0], nil
		}
		release()
		if _, isSample := isBad(err); !isSample {
			return nil, err
		}
	}
	return nil, w.allBad()
}

func (w *stageTask) allBad() error {
	samples := w.bad.toWire()
	return errkind.Errorf(errkind.BadData, "partition %s: no good sample was found that can stand in for one of %d bad ones; the first is: %s", w.task.Input, len(samples), samples[0].GetText())
}

// replaced runs the operators on b, and puts another row of the task's input in the place of each that they can't process.
// What they make comes out when all are done, so that nothing is handed on twice.
func (w *stageTask) replaced(ctx context.Context, ops chain, b *op.Batch, c *chunk) error {
	for {
		var made []*op.Batch
		mark := len(c.mem.bufs)
		err := ops.apply(ctx, b, func(out *op.Batch) error { made = append(made, out); return nil })
		if _, ok := isBad(err); ok {
			c.mem.shrink(mark)
			if b, err = w.substitute(ctx, ops, b, c.mem, err); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		for _, out := range made {
			if err := w.out.add(out, c); err != nil {
				return err
			}
		}
		return nil
	}
}

// substitute is b with other rows in the places of those that the operators can't process. failed is why they are tried.
func (w *stageTask) substitute(ctx context.Context, ops chain, b *op.Batch, mem *arena, failed error) (*op.Batch, error) {
	rows := make([]*op.Batch, b.NumRows)
	found := false
	for i := range rows {
		rows[i] = cut(b, i, i+1)
		err := ops.alone(ctx, 0, len(ops.ops), rows[i])
		sample, isSample := isBad(err)
		if err != nil && !isSample {
			return nil, err
		}
		if !isSample {
			continue
		}
		found = true
		w.bad.add(b.Samples[i], sample)
		at := w.draw(b.Samples[i], w.input.NumRows)
		for tries := 0; ; tries++ {
			if tries == w.input.NumRows {
				_, err := w.spare(ctx, b.Samples[i], func(read *op.Batch) (err error) {
					if rows[i], err = w.before(ctx, ops, read); err != nil {
						return err
					}
					return ops.alone(ctx, 0, len(ops.ops), rows[i])
				})
				if err != nil {
					return nil, err
				}
				break
			}
			candidate := cut(w.input, at, at+1)
			if err = ops.alone(ctx, 0, len(ops.ops), candidate); err == nil {
				rows[i] = candidate
				break
			}
			if _, isSample := isBad(err); !isSample {
				return nil, err
			}
			at = (at + 1) % w.input.NumRows
		}
	}
	if !found {
		return nil, failed // no row fails alone
	}
	return concat(rows, mem), nil
}

// before is what the stages before that of the task make of a sample that was read for it alone.
func (w *stageTask) before(ctx context.Context, ops chain, read *op.Batch) (*op.Batch, error) {
	env := *ops.env
	env.Alloc = nil // for the collector
	var earlier chain
	earlier.env = &env
	for i := range w.task.Stage {
		earlier.ops = append(earlier.ops, w.job.plan.Stages[i].Ops...)
	}
	made := read
	err := earlier.apply(ctx, read, func(out *op.Batch) error { made = out; return nil })
	return made, err
}

// alone runs operators from..to on some rows and forgets what they make.
func (c *chain) alone(ctx context.Context, from, to int, b *op.Batch) error {
	env := *c.env
	env.Alloc = nil // for the collector: it is no part of an output
	probe := chain{ops: c.ops[:to], env: &env}
	return probe.from(ctx, from, b, func(*op.Batch) error { return nil })
}

// without leaves out the rows of b that operator i can't process, and tells skip of them; failed is why they are tried.
// Where no row fails alone, the one that failed says it.
func (c *chain) without(ctx context.Context, i int, b *op.Batch, failed *op.SampleError) (*op.Batch, error) {
	var kept []*op.Batch
	from := 0
	leave := func(row int, err error) {
		c.skip(b.Samples[row], err)
		if from < row {
			kept = append(kept, cut(b, from, row))
		}
		from = row + 1
	}
	for row := range b.NumRows {
		err := c.alone(ctx, i, i+1, cut(b, row, row+1))
		sample, isSample := isBad(err)
		switch {
		case isSample:
			leave(row, sample)
		case err != nil:
			return nil, err
		}
	}
	if from == 0 && failed.Row < b.NumRows {
		leave(failed.Row, failed)
	}
	if from < b.NumRows {
		kept = append(kept, cut(b, from, b.NumRows))
	}
	if len(kept) == 0 {
		return &op.Batch{}, nil
	}
	return concat(kept, c.mem), nil
}
