package op

import (
	"context"
	"slices"

	"github.com/millrace/millrace/internal/errkind"
)

// selectOp keeps the named columns, in that order.
type selectOp struct {
	info   Info
	fields []string
}

func buildSelect(_ int, a *args) (Operator, error) {
	fields := a.names("fields")
	for i, f := range fields {
		if slices.Contains(fields[:i], f) {
			a.reject("field %q is listed twice", f)
		}
	}
	if err := a.done(); err != nil {
		return nil, err
	}
	return &selectOp{info: cpuInfo(a.operator, 1, a.canon), fields: fields}, nil
}

func (o *selectOp) Info() Info { return o.info }

func (o *selectOp) Schema(in Schema) (Schema, error) {
	out := make(Schema, len(o.fields))
	for i, name := range o.fields {
		at, err := in.Lookup(o.info.Name, name)
		if err != nil {
			return nil, err
		}
		out[i] = in[at]
	}
	return out, nil
}

func (o *selectOp) Apply(_ context.Context, _ *Env, in *Batch, emit func(*Batch) error) error {
	out := *in
	out.Columns = make([]Column, len(o.fields))
	for i, name := range o.fields {
		at, err := in.column(o.info.Name, name)
		if err != nil {
			return err
		}
		out.Columns[i] = in.Columns[at]
	}
	return emit(&out)
}

// renameOp gives a column another name.
type renameOp struct {
	info     Info
	from, to string
}

func buildRename(_ int, a *args) (Operator, error) {
	from, to := a.field("from"), a.field("to")
	if err := a.done(); err != nil {
		return nil, err
	}
	return &renameOp{info: cpuInfo(a.operator, 1, a.canon), from: from, to: to}, nil
}

func (o *renameOp) Info() Info { return o.info }

func (o *renameOp) Schema(in Schema) (Schema, error) {
	i, err := in.Lookup(o.info.Name, o.from)
	if err != nil {
		return nil, err
	}
	if o.to != o.from && in.Index(o.to) >= 0 {
		return nil, errkind.Errorf(errkind.Invalid, "rename: there is a field %q already", o.to)
	}
	f := in[i]
	f.Name = o.to
	return in.with(i, f), nil
}

func (o *renameOp) Apply(_ context.Context, _ *Env, in *Batch, emit func(*Batch) error) error {
	i, err := in.column(o.info.Name, o.from)
	if err != nil {
		return err
	}
	c := in.Columns[i]
	c.Name = o.to
	return emit(in.with(i, c))
}
