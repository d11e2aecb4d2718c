package worker

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset/datasettest"
	"github.com/millrace/millrace/loader/order"
	"github.com/millrace/millrace/preprocess/exec/run"
	"github.com/millrace/millrace/preprocess/lineage"
	"github.com/millrace/millrace/preprocess/op"
	"github.com/millrace/millrace/preprocess/partition"
	"github.com/millrace/millrace/preprocess/plan"
	"github.com/millrace/millrace/preprocess/recipe"
)

// bytesOp is an operator of tests: it turns the encoded bytes of "bin" into something else.
type bytesOp struct {
	info  op.Info
	out   op.Field
	apply func(env *op.Env, in *op.Batch, emit func(*op.Batch) error) error
}

func (o *bytesOp) Info() op.Info { return o.info }

func (o *bytesOp) Schema(op.Schema) (op.Schema, error) { return op.Schema{o.out}, nil }

func (o *bytesOp) Apply(_ context.Context, env *op.Env, in *op.Batch, emit func(*op.Batch) error) error {
	return o.apply(env, in, emit)
}

var binField = op.Field{Name: "bin", Kind: op.KindBytes}

const tensorSize = 96

// toTensorOp makes a tensor of each row: the length of its bytes, and the first of them.
func toTensorOp() *bytesOp {
	o := &bytesOp{
		info: op.Info{Name: "tensor", KeepsRows: true},
		out:  op.Field{Name: "bin", Kind: op.KindTensor, DType: op.DTypeUint8, Shape: []int64{tensorSize}},
	}
	o.apply = func(env *op.Env, in *op.Batch, emit func(*op.Batch) error) error {
		scratch := env.Alloc(1000) // decoders have some
		clear(scratch)
		out := *in
		out.Columns = []op.Column{{Field: o.out, Tensor: env.Alloc(in.NumRows * tensorSize)}}
		clear(out.Columns[0].Tensor)
		for i, b := range in.Columns[0].Bytes {
			row := out.Columns[0].TensorRow(i)
			binary.LittleEndian.PutUint64(row, uint64(len(b)))
			copy(row[8:], b)
		}
		return emit(&out)
	}
	return o
}

// halfOp drops every other row and emits what is left in batches of two.
func halfOp() *bytesOp {
	o := &bytesOp{info: op.Info{Name: "half"}, out: binField}
	o.apply = func(_ *op.Env, in *op.Batch, emit func(*op.Batch) error) error {
		var kept []*op.Batch
		for i := range in.NumRows {
			if in.Samples[i]%2 == 0 {
				kept = append(kept, cut(in, i, i+1))
			}
		}
		for pair := range slices.Chunk(kept, 2) {
			if err := emit(concat(pair, &arena{})); err != nil {
				return err
			}
		}
		return nil
	}
	return o
}

// upperOp keeps rows and their sizes, in memory of its own.
func upperOp() *bytesOp {
	o := &bytesOp{info: op.Info{Name: "invert", KeepsRows: true}, out: binField}
	o.apply = func(env *op.Env, in *op.Batch, emit func(*op.Batch) error) error {
		out := *in
		out.Columns = []op.Column{{Field: binField, Bytes: make([][]byte, in.NumRows)}}
		for i, b := range in.Columns[0].Bytes {
			own := env.Alloc(len(b))
			for k := range b {
				own[k] = ^b[k]
			}
			out.Columns[0].Bytes[i] = own
		}
		return emit(&out)
	}
	return o
}

// testPlan makes a plan of one stage for each operator.
func testPlan(t interface {
	Helper()
	Fatal(args ...any)
}, target int64, ops ...*bytesOp,
) *plan.Plan {
	t.Helper()
	p := &plan.Plan{
		Recipe:      &recipe.Recipe{Fields: []recipe.Field{{Name: "bin", From: []string{"bin"}}}},
		TargetBytes: target,
	}
	in := op.Schema{binField}
	for _, o := range ops {
		s := plan.Stage{Name: o.info.Name, Ops: []op.Operator{o}, In: in, Out: op.Schema{o.out}, Resources: map[string]int{"cpu": 1}}
		if o.out.Kind == op.KindTensor {
			s.RowBytes = int64(o.out.RowBytes())
		}
		p.Stages = append(p.Stages, s)
		in = s.Out
	}
	p.Schema = in
	return p
}

// bench is a job whose stages run without an executor.
type bench struct {
	*job
	outputs []output
}

type output struct {
	ID   string
	Rows int64
	Hash [16]byte
}

func newBench(tb testing.TB, set *datasettest.Set, p *plan.Plan) *bench {
	tb.Helper()
	schema, err := plan.ArrowSchema(p.Schema)
	if err != nil {
		tb.Fatal(err)
	}
	src := &source{turn: make(chan struct{}, 1), data: set.Open(tb)}
	src.turn <- struct{}{}
	layout := order.Layout{Shuffle: order.ShuffleBlock, NumSamples: benchSamples, BlockSamples: benchPartition, WindowBlocks: 2, Lanes: 1, PartitionSamples: benchPartition}
	w := &Worker{metrics: newMetrics()}
	return &bench{job: &job{
		jobSpec: jobSpec{name: "job", plan: p, schema: schema, layout: layout, seed: 7},
		store:   partition.NewStore("w", partition.Hooks{}), pool: partition.NewPool(1 << 20), out: newOutbox(),
		metrics: w.metrics, made: &w.made, source: src, share: run.NewShares(nil, 0).Join(1), between: map[lineage.ID]*between{},
	}}
}

// run runs all stages on a source partition, depth first, and keeps what comes out.
func (b *bench) run(ctx context.Context, stage int, in lineage.ID, skip []lineage.ID) (int, error) {
	var next []lineage.ID
	n, err := b.Run(ctx, run.Task{Stage: stage, Input: in, Skip: skip, Grant: run.Grant{Attempt: 1}}, func(o run.Output) error {
		o.Keep()
		next = append(next, o.ID)
		return nil
	})
	if err != nil {
		return n, err
	}
	for _, id := range next {
		if stage < len(b.plan.Stages)-1 {
			if _, err := b.run(ctx, stage+1, id, nil); err != nil {
				return n, err
			}
			b.Free(id)
			continue
		}
		p, err := b.store.Acquire(b.name, id, 1)
		if err != nil {
			return n, err
		}
		b.outputs = append(b.outputs, output{ID: id.String(), Rows: p.NumRows(), Hash: p.Hash()})
		p.Release()
	}
	return n, nil
}

// rows are the keys of all outputs' rows in stream order.
func (b *bench) rows(tb testing.TB) []string {
	tb.Helper()
	var keys []string
	for _, h := range b.store.Held() {
		p, err := b.store.Acquire(b.name, h.ID, h.Attempt)
		if err != nil {
			tb.Fatal(err)
		}
		column, ok := p.Record().Column(int(p.Record().NumCols()) - 2).(*array.String)
		if !ok {
			tb.Fatal("no column of keys")
		}
		for i := range column.Len() {
			keys = append(keys, strings.Clone(column.Value(i)))
		}
		p.Release()
	}
	return keys
}

func (b *bench) close(tb testing.TB) {
	tb.Helper()
	b.store.Close()
	b.freeBetween()
	if err := b.pool.Close(); err != nil {
		tb.Error(err)
	}
}

const (
	benchSamples   = 60
	benchPartition = 20
)

// wantKeys are the keys of the samples of source partitions 0 to 2 that match, in stream order.
func wantKeys(tb testing.TB, b *bench, match func(ordinal int64) bool) []string {
	tb.Helper()
	var keys []string
	for p := range uint64(benchSamples / benchPartition) {
		ordinals, err := b.ordinals(lineage.SourceID(0, p))
		if err != nil {
			tb.Fatal(err)
		}
		for _, o := range ordinals {
			if match(o) {
				keys = append(keys, fmt.Sprintf("train-%06d.tar!%06d", o/30, o))
			}
		}
	}
	return keys
}

func TestRowsComeInStreamOrderWhateverTheTarget(t *testing.T) {
	set := datasettest.Synthetic(t, benchSamples, 30)
	all := func(int64) bool { return true }
	for name, c := range map[string]struct {
		ops   func() []*bytesOp
		match func(int64) bool
	}{
		"tensors":          {func() []*bytesOp { return []*bytesOp{toTensorOp()} }, all},
		"bytes":            {func() []*bytesOp { return []*bytesOp{upperOp()} }, all},
		"dropped rows":     {func() []*bytesOp { return []*bytesOp{halfOp()} }, func(o int64) bool { return o%2 == 0 }},
		"bytes to tensors": {func() []*bytesOp { return []*bytesOp{upperOp(), toTensorOp()} }, all},
		"three stages": {
			func() []*bytesOp { return []*bytesOp{upperOp(), halfOp(), toTensorOp()} },
			func(o int64) bool { return o%2 == 0 },
		},
	} {
		for _, target := range []int64{1, 100, 1000, 5000, 1 << 20} {
			b := newBench(t, set, testPlan(t, target, c.ops()...))
			for p := range uint64(benchSamples / benchPartition) {
				if _, err := b.run(t.Context(), 0, lineage.SourceID(0, p), nil); err != nil {
					t.Fatalf("%s, target %d: %v", name, target, err)
				}
			}
			if diff := cmp.Diff(wantKeys(t, b, c.match), b.rows(t)); diff != "" {
				t.Errorf("%s, target %d: rows differ: %s", name, target, diff)
			}
			b.close(t)
		}
	}
}

func TestOutputsEndAtTheTarget(t *testing.T) {
	set := datasettest.Synthetic(t, benchSamples, 30)
	b := newBench(t, set, testPlan(t, 7*tensorSize+5, toTensorOp()))
	defer b.close(t)
	if n, err := b.run(t.Context(), 0, lineage.SourceID(0, 0), nil); err != nil || n != 3 {
		t.Fatalf("%d outputs: %v", n, err)
	}
	var rows []int64
	for _, o := range b.outputs {
		rows = append(rows, o.Rows)
	}
	if diff := cmp.Diff([]int64{7, 7, 6}, rows); diff != "" {
		t.Errorf("tensors of %d bytes with a target of 7 rows: %s", tensorSize, diff)
	}

	const target = 4000
	v := newBench(t, set, testPlan(t, target, upperOp()))
	defer v.close(t)
	if _, err := v.run(t.Context(), 0, lineage.SourceID(0, 0), nil); err != nil {
		t.Fatal(err)
	}
	ordinals, err := v.ordinals(lineage.SourceID(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	var want []int64
	bytes := int64(target + 1)
	for _, o := range ordinals {
		size := int64(len(set.Samples[o].Members[0].Data))
		if bytes+size > target {
			want, bytes = append(want, 0), 0
		}
		want[len(want)-1]++
		bytes += size
	}
	rows = nil
	for _, o := range v.outputs {
		rows = append(rows, o.Rows)
	}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Errorf("rows of differing size: %s", diff)
	}
}

func TestSkippingChangesNothingElse(t *testing.T) {
	set := datasettest.Synthetic(t, benchSamples, 30)
	id := lineage.SourceID(0, 1)
	for name, o := range map[string]func() *bytesOp{"tensors": toTensorOp, "bytes": upperOp, "dropped rows": halfOp} {
		all := newBench(t, set, testPlan(t, 500, o()))
		total, err := all.run(t.Context(), 0, id, nil)
		if err != nil {
			t.Fatal(err)
		}
		rapid.Check(t, func(rt *rapid.T) {
			var skip []lineage.ID
			var want []output
			for k := range total {
				child, err := id.Child(uint32(k))
				if err != nil {
					rt.Fatal(err)
				}
				if rapid.Bool().Draw(rt, "skip") {
					skip = append(skip, child)
				} else {
					want = append(want, all.outputs[k])
				}
			}
			some := newBench(t, set, all.plan)
			defer some.close(t)
			n, err := some.run(t.Context(), 0, id, skip)
			if err != nil || n != total {
				rt.Fatalf("%s: %d outputs of %d: %v", name, n, total, err)
			}
			if diff := cmp.Diff(want, some.outputs); diff != "" {
				rt.Fatalf("%s: %s", name, diff)
			}
		})
		all.close(t)
	}
}

func TestErrorsInTheMiddleLeaveNothingBehind(t *testing.T) {
	set := datasettest.Synthetic(t, benchSamples, 30)
	broken := errors.New("broken")
	for name, o := range map[string]*bytesOp{"tensors": toTensorOp(), "bytes": upperOp(), "dropped rows": halfOp()} {
		b := newBench(t, set, testPlan(t, 500, o))
		calls := 0
		_, err := b.Run(t.Context(), run.Task{Input: lineage.SourceID(0, 0)}, func(out run.Output) error {
			if calls++; calls == 2 {
				out.Drop()
				return broken
			}
			out.Keep()
			return nil
		})
		if !errors.Is(err, broken) {
			t.Errorf("%s: %v", name, err)
		}
		b.close(t)
	}
}

func TestAPanicNamesItsSample(t *testing.T) {
	set := datasettest.Synthetic(t, benchSamples, 30)
	o := upperOp()
	inner := o.apply
	o.apply = func(env *op.Env, in *op.Batch, emit func(*op.Batch) error) error {
		for i := range in.NumRows {
			if bytes.Equal(in.Columns[0].Bytes[i], set.Samples[13].Members[0].Data) {
				panic("unlucky")
			}
		}
		return inner(env, in, emit)
	}
	b := newBench(t, set, testPlan(t, 1<<20, o))
	defer b.close(t)
	failed := 0
	for p := range uint64(3) {
		_, err := b.run(t.Context(), 0, lineage.SourceID(0, p), nil)
		if err == nil {
			continue
		}
		failed++
		sample, ok := errors.AsType[*op.SampleError](err)
		if !ok || errkind.Of(err) != errkind.BadData || !strings.HasSuffix(sample.Key, "!000013") || !strings.Contains(err.Error(), "unlucky") {
			t.Errorf("error of kind %v: %v", errkind.Of(err), err)
		}
		if worthRetrying(err) {
			t.Error("a sample that panics is tried again")
		}
	}
	if failed != 1 {
		t.Errorf("%d source partitions failed because of one sample", failed)
	}
}

func TestAFreedInputStaysWhileItIsRead(t *testing.T) {
	set := datasettest.Synthetic(t, benchSamples, 30)
	b := newBench(t, set, testPlan(t, 1<<20, upperOp(), toTensorOp()))
	defer b.close(t)
	var id lineage.ID
	_, err := b.Run(t.Context(), run.Task{Input: lineage.SourceID(0, 0)}, func(o run.Output) error {
		id = o.ID
		o.Keep()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	in, release, err := b.input(id)
	if err != nil {
		t.Fatal(err)
	}
	b.Free(id)
	if len(in.Columns[0].Bytes[0]) == 0 || b.pool.Stats().LiveBuffers == 0 {
		t.Error("the input went while it was read")
	}
	release()
	if _, _, err := b.input(id); errkind.Of(err) != errkind.Internal {
		t.Errorf("a freed input can be read: %v", err)
	}
}
