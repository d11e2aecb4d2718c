package op

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/sleep"
)

// Virtual operators stand in for work in benchmarks and tests of the executor: they take a stated time and make a
// stated number of bytes. Their names begin with virtual_, so that nobody takes them for more.

// maxVirtualSeconds bounds the time of a virtual operator for one row.
const maxVirtualSeconds = 3600

// virtualTime is how long a virtual operator takes for a row: seconds; for each every-th row everySeconds; for rows
// from after on afterSeconds. Rows are counted by sample number, or by a field of integers.
type virtualTime struct {
	seconds, everySeconds, afterSeconds float64
	every, at, after                    int64
	count                               string
}

func readVirtualTime(a *args) virtualTime {
	var t virtualTime
	t.seconds = a.number("seconds", 0, 0, maxVirtualSeconds)
	t.every, _ = a.integer("every", 1, 1<<40)
	t.at, _ = a.integer("at", 0, 1<<40)
	t.everySeconds = a.number("every_seconds", 0, 0, maxVirtualSeconds)
	if after, ok := a.integer("after", 0, 1<<40); ok {
		t.after = after
	} else {
		t.after = -1
	}
	t.afterSeconds = a.number("after_seconds", 0, 0, maxVirtualSeconds)
	t.count = a.text("count", "")
	return t
}

// of is the time for row i of in.
func (t virtualTime) of(in *Batch, i int) time.Duration {
	n := int64(in.Samples[i]) //nolint:gosec // Ordinals are below 2^53.
	if c := in.Column(t.count); c != nil {
		n = c.Ints[i]
	}
	seconds := t.seconds
	if t.after >= 0 && n >= t.after {
		seconds = t.afterSeconds
	}
	if t.every > 0 && n%t.every == t.at {
		seconds = t.everySeconds
	}
	return time.Duration(seconds * float64(time.Second))
}

func (t virtualTime) check(operator string, in Schema) error {
	if t.count == "" {
		return nil
	}
	i, err := in.Lookup(operator, t.count)
	if err != nil {
		return err
	}
	if in[i].Kind != KindInt64 {
		return errkind.Errorf(errkind.Invalid, "%s: field %q is %s; rows are counted by int64", operator, t.count, in[i])
	}
	return nil
}

// virtualWork passes its rows on after the time they take, idle or busy.
type virtualWork struct {
	info Info
	time virtualTime
	busy bool
}

func buildVirtualSleep(_ int, a *args) (Operator, error) { return buildVirtualWork(a, false) }

func buildVirtualSpin(_ int, a *args) (Operator, error) { return buildVirtualWork(a, true) }

func buildVirtualWork(a *args, busy bool) (Operator, error) {
	o := &virtualWork{time: readVirtualTime(a), busy: busy}
	if err := a.done(); err != nil {
		return nil, err
	}
	o.info = cpuInfo(a.operator, 1, a.canon)
	return o, nil
}

func (o *virtualWork) Info() Info { return o.info }

func (o *virtualWork) Schema(in Schema) (Schema, error) { return in, o.time.check(o.info.Name, in) }

func (o *virtualWork) Apply(ctx context.Context, _ *Env, in *Batch, emit func(*Batch) error) error {
	for i := range in.NumRows {
		d := o.time.of(in, i)
		if !o.busy {
			if err := sleep.For(ctx, d); err != nil {
				return err
			}
			continue
		}
		for end := time.Now().Add(d); time.Now().Before(end); {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
	}
	return emit(in)
}

// virtualEmit replaces each row by some rows of a stated size, handed on one by one, as a generator does. All fields
// give way to two: the bytes, and the number of the row among those made of one.
type virtualEmit struct {
	info         Info
	field, count string
	rows, bytes  int64
}

func buildVirtualEmit(_ int, a *args) (Operator, error) {
	const maxRows, maxBytes = 1 << 20, 1 << 32
	o := &virtualEmit{field: a.text("field", "data"), count: a.text("count", "row"), rows: 1, bytes: 1}
	if n, ok := a.integer("rows", 0, maxRows); ok {
		o.rows = n
	}
	if n, ok := a.integer("bytes", 1, maxBytes); ok {
		o.bytes = n
	}
	a.canon["rows"], a.canon["bytes"] = o.rows, o.bytes
	if o.field == o.count {
		a.reject("field and count are both %q", o.field)
	}
	if err := a.done(); err != nil {
		return nil, err
	}
	o.info = cpuInfo(a.operator, 1, a.canon)
	o.info.KeepsRows = o.rows == 1
	o.info.ChangesPixelsOnly = o.info.KeepsRows
	if o.rows != 1 {
		o.info.Fanout = o.rows
	}
	return o, nil
}

func (o *virtualEmit) Info() Info { return o.info }

func (o *virtualEmit) Schema(Schema) (Schema, error) {
	return Schema{
		{Name: o.field, Kind: KindTensor, DType: DTypeUint8, Shape: []int64{o.bytes}},
		{Name: o.count, Kind: KindInt64, DType: DTypeInt64},
	}, nil
}

func (o *virtualEmit) Apply(ctx context.Context, env *Env, in *Batch, emit func(*Batch) error) error {
	schema, err := o.Schema(nil)
	if err != nil {
		return err
	}
	kept := in.Column(o.count)
	for i := range in.NumRows {
		for k := range o.rows {
			if err := ctx.Err(); err != nil {
				return err
			}
			n := k
			if o.rows == 1 && kept != nil && kept.Kind == KindInt64 {
				n = kept.Ints[i]
			}
			data := env.alloc(int(o.bytes))
			fillVirtual(data, in.Samples[i], n)
			out := &Batch{
				NumRows: 1, Samples: in.Samples[i : i+1], Keys: in.Keys[i : i+1],
				Columns: []Column{{Field: schema[0], Tensor: data}, {Field: schema[1], Ints: []int64{n}}},
			}
			if in.Origin != nil {
				out.Origin = func(int) Origin { return in.Origin(i) }
			}
			if err := emit(out); err != nil {
				return err
			}
		}
	}
	return nil
}

// fillVirtual writes bytes that follow from the sample and the row alone. They are copied from their beginning, which
// stays in the processor's cache.
func fillVirtual(data []byte, sample uint64, row int64) {
	var word [16]byte
	binary.LittleEndian.PutUint64(word[:8], sample)
	binary.LittleEndian.PutUint64(word[8:], uint64(row)) //nolint:gosec // Only told apart.
	for done := copy(data, word[:]); done < len(data); {
		done += copy(data[done:], data[:min(done, 16<<10)])
	}
}
