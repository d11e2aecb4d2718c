package worker

import (
	"context"
	"slices"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/exec/run"
	"github.com/millrace/millrace/preprocess/lineage"
	"github.com/millrace/millrace/preprocess/op"
	"github.com/millrace/millrace/preprocess/partition"
	"github.com/millrace/millrace/preprocess/plan"
)

// maxChunkRows bounds the rows that operators work on at a time where rows differ in size.
const maxChunkRows = 256

// between is an output of a stage that waits for the next one.
type between struct {
	batch *op.Batch
	mem   *arena
	refs  int // guarded by job.mu
}

var _ run.Stages = (*job)(nil)

// Run runs one stage of the job's plan on one partition.
func (j *job) Run(ctx context.Context, t run.Task, emit func(run.Output) error) (int, error) {
	s := &j.plan.Stages[t.Stage]
	w := &stageTask{
		job: j, task: t, stage: s, emit: emit, bad: bad{},
		// Where bad samples are told of, those of all outputs are: their number is part of the stream.
		aligned: keepsRows(s) && rowsPerOutput(s, j.plan.TargetBytes) > 0 && j.onError == plan.Raise,
	}
	w.out = newAssembler(s, j.plan.TargetBytes, w.output)
	defer w.out.drop()
	defer func() {
		for _, release := range w.releases {
			release()
		}
	}()
	var err error
	if t.Stage == 0 {
		err = w.fromSource(ctx)
	} else {
		err = w.fromStage(ctx)
	}
	if err == nil {
		err = w.out.flush()
	}
	if err == nil {
		j.found(t.Input, w.bad)
	}
	return int(w.next), err
}

// keepsRows reports whether row i of a stage's output comes from row i of its input.
func keepsRows(s *plan.Stage) bool {
	return !slices.ContainsFunc(s.Ops, func(o op.Operator) bool { return !o.Info().KeepsRows })
}

// stageTask is one task at work.
type stageTask struct {
	job   *job
	task  run.Task
	stage *plan.Stage
	emit  func(run.Output) error
	out   *assembler
	// aligned says that each chunk of rows is exactly one output, so that those not wanted need not be made.
	aligned bool
	next    uint32 // output
	bad     bad
	input   *op.Batch // all of it, where bad samples are replaced by others
	// releases give back what was read besides.
	releases []func()
}

// span is a run of rows.
type span struct{ from, to int }

// fromSource reads the samples of a source partition, those that are wanted, and runs the stage on them.
func (w *stageTask) fromSource(ctx context.Context) error {
	ordinals, err := w.job.ordinals(w.task.Input)
	if err != nil {
		return err
	}
	spans := []span{{0, len(ordinals)}}
	var skip []bool
	if w.aligned {
		spans, skip = w.alignedSpans(len(ordinals))
		ordinals, spans = wanted(ordinals, spans, skip)
	}
	if len(ordinals) == 0 {
		w.next += uint32(len(skip)) //nolint:gosec // At most the rows of a partition.
		return nil
	}
	data, err := w.job.source.open(ctx)
	if err != nil {
		return err
	}
	samples, release, err := data.ReadWindow(ctx, w.job.window(w.task), ordinals, w.job.plan.Want)
	defer release()
	if err != nil {
		return err
	}
	if samples, err = w.readable(ctx, samples); err != nil {
		return err
	}
	b, err := w.job.plan.Batch(samples)
	if err != nil {
		return err
	}
	w.input = b
	if !w.aligned {
		spans = w.spans(b)
	}
	if err := w.chunks(ctx, b, spans, skip); err != nil {
		return err
	}
	w.job.metrics.samples.Add(float64(len(samples)))
	w.job.made.Add(int64(len(samples)))
	return nil
}

// fromStage runs the stage on an output of the stage before.
func (w *stageTask) fromStage(ctx context.Context) error {
	in, release, err := w.job.input(w.task.Input)
	if err != nil {
		return err
	}
	defer release()
	w.input = in
	if w.aligned {
		spans, skip := w.alignedSpans(in.NumRows)
		kept := spans[:0]
		for i, s := range spans {
			if !skip[i] {
				kept = append(kept, s)
			}
		}
		return w.chunks(ctx, in, kept, skip)
	}
	return w.chunks(ctx, in, w.spans(in), nil)
}

// alignedSpans is the rows of each output, and which outputs are not wanted.
func (w *stageTask) alignedSpans(rows int) ([]span, []bool) {
	size := w.out.rows
	n := (rows + size - 1) / size
	spans, skip := make([]span, n), make([]bool, n)
	for i := range spans {
		spans[i] = span{i * size, min(rows, (i+1)*size)}
		id, err := w.task.Input.Child(uint32(i))
		skip[i] = err == nil && w.skips(id)
	}
	return spans, skip
}

// wanted leaves out the rows of skipped spans and moves the others together.
func wanted(ordinals []int64, spans []span, skip []bool) ([]int64, []span) {
	var rows []int64
	var kept []span
	for i, s := range spans {
		if !skip[i] {
			kept = append(kept, span{len(rows), len(rows) + s.to - s.from})
			rows = append(rows, ordinals[s.from:s.to]...)
		}
	}
	return rows, kept
}

// spans cuts an input whose outputs differ in size: where operators may drop or regroup rows, they get all rows
// at once.
func (w *stageTask) spans(b *op.Batch) []span {
	if !keepsRows(w.stage) {
		return []span{{0, b.NumRows}}
	}
	var out []span
	from, bytes := 0, int64(0)
	for i := range b.NumRows {
		bytes += rowBytes(b, i)
		if i+1-from == maxChunkRows || bytes >= w.job.plan.TargetBytes {
			out = append(out, span{from, i + 1})
			from, bytes = i+1, 0
		}
	}
	if from < b.NumRows {
		out = append(out, span{from, b.NumRows})
	}
	return out
}

// chunks runs the operators on each span of b in turn. skip, where given, says which outputs have no span.
func (w *stageTask) chunks(ctx context.Context, b *op.Batch, spans []span, skip []bool) error {
	for _, s := range spans {
		w.passSkipped(skip)
		if err := w.chunk(ctx, cut(b, s.from, s.to)); err != nil {
			return err
		}
	}
	if err := w.out.flush(); err != nil {
		return err
	}
	w.passSkipped(skip)
	return nil
}

// passSkipped counts the skipped outputs that come next.
func (w *stageTask) passSkipped(skip []bool) {
	for int(w.next) < len(skip) && skip[w.next] {
		w.next++
	}
}

func (w *stageTask) chunk(ctx context.Context, b *op.Batch) error {
	c := &chunk{mem: &arena{pool: w.job.pool}, refs: 1}
	defer c.release()
	env := &op.Env{Seed: w.job.seed, Epoch: w.task.Input.Epoch, Scalar: w.job.scalar, Alloc: w.alloc(ctx, c.mem), Charge: w.job.share.Held}
	if w.job.python != nil {
		env.Python = w.job.python
	}
	if w.job.outside != nil {
		env.Outside = w.job.outside
	}
	ops := chain{ops: w.stage.Ops, env: env, mem: c.mem}
	switch w.job.onError {
	case plan.Replace:
		return w.replaced(ctx, ops, b, c)
	case plan.Skip:
		ops.skip = w.bad.add
	case plan.Raise:
	}
	return ops.apply(ctx, b, func(out *op.Batch) error { return w.out.add(out, c) })
}

// alloc gives memory of mem to operators, once there is room for the output that they are about to make. That the task is
// not wanted any more is told by emit.
func (w *stageTask) alloc(ctx context.Context, mem *arena) func(int) []byte {
	if w.task.Room == nil {
		return mem.alloc
	}
	return func(n int) []byte {
		_ = w.task.Room(ctx)
		return mem.alloc(n)
	}
}

func (w *stageTask) skips(id lineage.ID) bool {
	_, found := slices.BinarySearchFunc(w.task.Skip, id, lineage.ID.Compare)
	return found
}

// output hands on an output partition. mem is its memory.
func (w *stageTask) output(b *op.Batch, mem *arena) error {
	id, err := w.task.Input.Child(w.next)
	if err != nil {
		mem.release()
		return err
	}
	w.next++
	switch {
	case w.skips(id):
		mem.release()
		return nil
	case w.task.Stage < len(w.job.plan.Stages)-1:
		return w.intermediate(id, b, mem)
	}
	return w.final(id, b, mem)
}

func (w *stageTask) final(id lineage.ID, b *op.Batch, mem *arena) error {
	rec, err := record(w.job.schema, b, mem)
	mem.release()
	if err != nil {
		return err
	}
	p := partition.New(id, w.task.Grant.Attempt, rec)
	rec.Release()
	return w.emit(run.Output{
		ID: id, Rows: p.NumRows(), Bytes: p.Bytes(), Drop: p.Release,
		Keep: func() { w.job.keep(p, w.task.Grant) },
	})
}

func (w *stageTask) intermediate(id lineage.ID, b *op.Batch, mem *arena) error {
	out := &between{mem: &arena{pool: mem.pool}, refs: 1}
	out.batch = owned(b, mem, out.mem)
	mem.release()
	return w.emit(run.Output{
		ID: id, Rows: int64(b.NumRows), Bytes: batchBytes(b), Drop: out.mem.release,
		Keep: func() { w.job.hold(id, out) },
	})
}

// owned is b with all bytes in memory of to: those of from move, others are copied, since they belong to an input.
func owned(b *op.Batch, from, to *arena) *op.Batch {
	out := *b
	out.Columns = slices.Clone(b.Columns)
	for i := range out.Columns {
		c := &out.Columns[i]
		switch c.Kind {
		case op.KindBytes, op.KindText:
			c.Bytes = slices.Clone(c.Bytes)
			for r := range c.Bytes {
				c.Bytes[r] = from.own(c.Bytes[r], to)
			}
		case op.KindImage:
			c.Images = slices.Clone(c.Images)
			for r := range c.Images {
				c.Images[r].Pix = from.own(c.Images[r].Pix, to)
			}
		case op.KindTensor:
			c.Tensor = from.own(c.Tensor, to)
		case op.KindInt64, op.KindFloat64, op.KindInvalid:
		}
	}
	// Where the samples were read from is asked of the input later, so it is written down.
	if b.Origin != nil {
		origins := make([]op.Origin, b.NumRows)
		for r := range origins {
			origins[r] = b.Origin(r)
		}
		out.Origin = func(i int) op.Origin { return origins[i] }
	}
	return &out
}

// hold keeps an intermediate output until Free.
func (j *job) hold(id lineage.ID, b *between) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if old := j.between[id]; old != nil {
		old.unref()
	}
	j.between[id] = b
}

// Free drops an intermediate output; a task that still reads it keeps it until then.
func (j *job) Free(id lineage.ID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if b := j.between[id]; b != nil {
		delete(j.between, id)
		b.unref()
	}
}

// freeBetween drops all intermediate outputs.
func (j *job) freeBetween() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, b := range j.between {
		b.unref()
	}
	clear(j.between)
}

// input is an intermediate output to read until release.
func (j *job) input(id lineage.ID) (b *op.Batch, release func(), err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	found := j.between[id]
	if found == nil {
		return nil, nil, errkind.Errorf(errkind.Internal, "partition %s of job %s is to be read but is not held", id, j.name)
	}
	found.refs++
	return found.batch, func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		found.unref()
	}, nil
}

// unref gives up a reference. job.mu is held.
func (b *between) unref() {
	if b.refs--; b.refs == 0 {
		b.mem.release()
	}
}
