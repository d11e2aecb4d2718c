package op

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/rng"
	"github.com/millrace/millrace/preprocess/op/imagekernel"
)

// part is one image operator of a recipe. An imageOp runs one part or, fused, several.
type part interface {
	// info describes the part as an operator of its own.
	info() Info
	// output is the type that follows in, or an error of kind Invalid.
	output(field string, in imageType) (imageType, error)
	// apply takes its step on r's image.
	apply(r *imageRun) error
	// index is the part's place in the recipe.
	index() int
}

// imageOp runs parts on one field, each image in one pass through the kernel where its geometry allows.
type imageOp struct {
	field string
	parts []part
	// name is that of Info.
	name string
	// runs holds idle *imageRun with their kernels and scratch memory.
	runs *sync.Pool
	// settled is the first part from which on none moves pixels.
	settled int
}

func newImageOp(field string, parts ...part) *imageOp {
	names := make([]string, len(parts))
	for i, p := range parts {
		names[i] = p.info().Name
	}
	return &imageOp{field: field, parts: parts, name: strings.Join(names, "+"), runs: &sync.Pool{}, settled: settled(parts)}
}

func settled(parts []part) int {
	for i, p := range slices.Backward(parts) {
		switch p.(type) {
		case *colorJitter, *grayscale, *randomErasing, *toTensor:
		default:
			return i + 1
		}
	}
	return 0
}

// Info lists the parts, when there are several, under the parameter "operators".
func (o *imageOp) Info() Info {
	if len(o.parts) == 1 {
		return o.parts[0].info()
	}
	list := make([]any, len(o.parts))
	version := 0
	for i, p := range o.parts {
		info := p.info()
		version = max(version, info.Version)
		list[i] = map[string]any{"name": info.Name, "version": int64(info.Version), "params": info.Params, "index": int64(p.index())}
	}
	return cpuInfo(o.name, version, map[string]any{"field": o.field, "operators": list})
}

// Schema follows the field's type through the parts.
func (o *imageOp) Schema(in Schema) (Schema, error) {
	name := o.parts[0].info().Name
	i, err := in.Lookup(name, o.field)
	if err != nil {
		return nil, err
	}
	t, ok := imageTypeOf(in[i])
	if !ok {
		return nil, errkind.Errorf(errkind.Invalid, "%s: field %q holds no images; it is %s", name, o.field, in[i])
	}
	out, err := o.output(t)
	if err != nil {
		return nil, err
	}
	return in.with(i, out.field(o.field)), nil
}

func (o *imageOp) output(t imageType) (imageType, error) {
	var err error
	for _, p := range o.parts {
		if t, err = p.output(o.field, t); err != nil {
			return imageType{}, err
		}
	}
	return t, nil
}

// Apply runs the parts on every row.
func (o *imageOp) Apply(ctx context.Context, env *Env, in *Batch, emit func(*Batch) error) error {
	at, err := in.column(o.name, o.field)
	if err != nil {
		return err
	}
	column := &in.Columns[at]
	t, ok := imageTypeOf(column.Field)
	if !ok {
		return errkind.Errorf(errkind.Internal, "%s: column %q is %s", o.name, o.field, column.Field)
	}
	target, err := o.output(t)
	if err != nil {
		return err
	}
	out := Column{Field: target.field(o.field)}
	switch out.Kind {
	case KindTensor:
		out.Tensor = env.alloc(in.NumRows * out.RowBytes())
	default:
		out.Images = make([]Image, in.NumRows)
	}
	if !t.encoded && !t.raw() && !t.deep() {
		if err := o.pointwise(env, in, column, t, &out); err != nil {
			return err
		}
		return emit(in.with(at, out))
	}
	if err := o.rows(ctx, env, in, at, &out, target); err != nil {
		return err
	}
	return emit(in.with(at, out))
}

// rows runs every row of in through the kernel into out.
func (o *imageOp) rows(ctx context.Context, env *Env, in *Batch, at int, out *Column, target imageType) error {
	r := o.take()
	defer o.give(r)
	r.kernel.Scalar(env.Scalar)
	r.env, r.target, r.outside = env, target, outsideOf(ctx, env)
	if target.channels <= 3 && target.dtype != DTypeUint16 {
		r.element = toneOf(o.parts).element(target.dtype, int(target.channels), &r.table)
	}
	for row := range in.NumRows {
		if err := ctx.Err(); err != nil {
			return err
		}
		if operator, err := o.row(r, in, at, out, row); err != nil {
			return sampleError(in, row, operator, err)
		}
	}
	return nil
}

func (o *imageOp) take() *imageRun {
	if r, ok := o.runs.Get().(*imageRun); ok {
		return r
	}
	return &imageRun{kernel: imagekernel.New(imagekernel.DefaultLimits())}
}

// give keeps r for the next batch, but not the memory of a huge image nor anything that belongs to this batch.
func (o *imageOp) give(r *imageRun) {
	const kept = 16 << 20
	for i := range r.frames {
		if cap(r.frames[i]) > kept {
			r.frames[i] = nil
		}
	}
	if cap(r.spare) > kept {
		r.spare = nil
	}
	r.env, r.outside, r.encoded, r.part, r.deep, r.job, r.home = nil, nil, nil, nil, nil, imagekernel.Job{}, nil
	o.runs.Put(r)
}

// begin makes p the present part, with draws of its own.
func (r *imageRun) begin(p part, sample uint64) {
	r.part = p
	r.draws = rng.Key{Seed: r.env.Seed, Epoch: r.env.Epoch, Sample: sample, Op: uint32(p.index())}.Source() //nolint:gosec // Build checks that the index is small and not negative.
}

// row does one row. On an error it names the part that failed.
func (o *imageOp) row(r *imageRun, in *Batch, at int, out *Column, row int) (string, error) {
	r.reset(&in.Columns[at], row)
	defer r.discharge()
	r.home = nil
	for i, p := range o.parts {
		if i == o.settled && out.Kind == KindTensor && r.target.planar && r.element == imagekernel.Uint8 {
			r.home = out.TensorRow(row)
		}
		r.begin(p, in.Samples[row])
		if err := p.apply(r); err != nil {
			if r.badSource {
				p = o.parts[0]
			}
			return p.info().Name, err
		}
	}
	if out.Kind == KindTensor {
		if err := r.write(out.TensorRow(row)); err != nil {
			return o.parts[0].info().Name, err
		}
		return "", nil
	}
	image := Image{C: int(r.target.channels)}
	image.W, image.H = r.size()
	image.Pix = r.env.alloc(image.H * image.W * image.C * r.target.dtype.Size())
	out.Images[row] = image
	if err := r.write(image.Pix); err != nil {
		return o.parts[0].info().Name, err
	}
	return "", nil
}
