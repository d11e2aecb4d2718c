package op

import (
	"context"
	"encoding/binary"
	"math"
	"strings"

	"github.com/millrace/millrace/internal/errkind"
)

// OutputField declares one field of the output.
type OutputField struct {
	Name string
	// Layout is "CHW" or "HWC" for images, empty for all else and for "as it is".
	Layout string
	// DType is the element type; DTypeNone means as it is.
	DType DType
}

// outputOp brings a batch to the declared output.
type outputOp struct {
	info   Info
	fields []OutputField
	// in and out are the schemas it was made for; steps has one conversion per field.
	out   Schema
	steps []outputStep
}

// outputStep turns a column into a field of the output.
type outputStep struct {
	// image is the conversion of an image column, run by the kernel.
	image *imageOp
}

// NewOutput is the operator that brings batches of schema in to the declared fields, in that order: layout and element
// type of images, numbers out of text ("7"), and nothing else besides. Errors are of kind Invalid and name the nearest field.
func NewOutput(in Schema, fields []OutputField) (Operator, error) {
	if len(fields) == 0 {
		return nil, errkind.Errorf(errkind.Invalid, "output: no field is declared; the fields here are %s", strings.Join(in.Names(), ", "))
	}
	o := &outputOp{fields: fields, steps: make([]outputStep, len(fields))}
	list := make([]any, len(fields))
	seen := map[string]bool{}
	for i, f := range fields {
		if seen[f.Name] {
			return nil, errkind.Errorf(errkind.Invalid, "output: field %q is declared twice", f.Name)
		}
		seen[f.Name] = true
		at, err := in.Lookup("output", f.Name)
		if err != nil {
			return nil, err
		}
		if o.steps[i], err = newOutputStep(in[at], f); err != nil {
			return nil, err
		}
		list[i] = map[string]any{"name": f.Name, "layout": f.Layout, "dtype": f.DType.String()}
	}
	o.info = cpuInfo("output", 1, map[string]any{"fields": list})
	var err error
	o.out, err = o.Schema(in)
	return o, err
}

func newOutputStep(in Field, f OutputField) (outputStep, error) {
	if f.Layout != "" && f.Layout != "CHW" && f.Layout != "HWC" {
		return outputStep{}, errkind.Errorf(errkind.Invalid, "output: layout %q of field %q; it is one of CHW, HWC", f.Layout, f.Name)
	}
	t, isImage := imageTypeOf(in)
	if !isImage || t.encoded {
		return outputStep{}, nil
	}
	if f.Layout == "" && f.DType == DTypeNone {
		return outputStep{}, nil
	}
	layout, dtype := f.Layout, f.DType
	if layout == "" {
		layout = "HWC"
		if t.planar {
			layout = "CHW"
		}
	}
	if dtype == DTypeNone {
		dtype = t.dtype
	}
	switch dtype {
	case DTypeUint8, DTypeUint16, DTypeFloat32, DTypeBfloat16, DTypeFloat16:
	default:
		return outputStep{}, errkind.Errorf(errkind.Invalid, "output: field %q is %s; its dtype can be uint8, uint16, float32, bfloat16 or float16, not %s", f.Name, in, dtype)
	}
	p := &toTensor{planar: layout == "CHW", dtype: dtype, place: place{name: "output"}}
	if !t.fixed() && (t.raw() || t.deep()) && !p.planar && dtype == t.dtype {
		return outputStep{}, nil // Images of differing sizes, just as they are.
	}
	return outputStep{image: newImageOp(f.Name, p)}, nil
}

// imagePart is the conversion of field i as a part to fuse, nil when it has none.
func (o *outputOp) imagePart(i int) part {
	if op := o.steps[i].image; op != nil {
		return op.parts[0]
	}
	return nil
}

func (o *outputOp) Info() Info { return o.info }

// Schema is the declared output, as far as in allows it.
func (o *outputOp) Schema(in Schema) (Schema, error) {
	out := make(Schema, len(o.fields))
	for i, f := range o.fields {
		at, err := in.Lookup("output", f.Name)
		if err != nil {
			return nil, err
		}
		if out[i], err = o.steps[i].field(in[at], f); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (s outputStep) field(in Field, f OutputField) (Field, error) {
	if s.image != nil {
		out, err := s.image.Schema(Schema{in})
		if err != nil {
			return Field{}, err
		}
		return out[0], nil
	}
	if f.Layout != "" && in.Kind != KindImage {
		return Field{}, errkind.Errorf(errkind.Invalid, "output: field %q is %s and has no layout %s", f.Name, in, f.Layout)
	}
	if f.DType == DTypeNone || f.DType == in.DType && in.Kind != KindBytes && in.Kind != KindText {
		return in, nil
	}
	switch in.Kind {
	case KindBytes, KindText, KindInt64, KindFloat64:
	default:
		return Field{}, errkind.Errorf(errkind.Invalid, "output: field %q is %s and can't become %s", f.Name, in, f.DType)
	}
	switch f.DType {
	case DTypeInt64:
		return scalarField(f.Name, KindInt64), nil
	case DTypeFloat64:
		return scalarField(f.Name, KindFloat64), nil
	case DTypeBool, DTypeUint8, DTypeInt32, DTypeFloat32:
		return Field{Name: f.Name, Kind: KindTensor, DType: f.DType, Shape: []int64{}}, nil
	default:
		return Field{}, errkind.Errorf(errkind.Invalid, "output: field %q is %s and can't become %s; use int64, int32, uint8, bool, float32 or float64", f.Name, in, f.DType)
	}
}

// Apply converts and orders the columns. A column that has the declared type already is handed on.
func (o *outputOp) Apply(ctx context.Context, env *Env, in *Batch, emit func(*Batch) error) error {
	out := *in
	out.Columns = make([]Column, len(o.fields))
	for i := range o.fields {
		at, err := in.column("output", o.fields[i].Name)
		if err != nil {
			return err
		}
		if out.Columns[i], err = o.convert(ctx, env, in, at, i); err != nil {
			return err
		}
	}
	return emit(&out)
}

func (o *outputOp) convert(ctx context.Context, env *Env, in *Batch, at, i int) (Column, error) {
	column, want := in.Columns[at], o.out[i]
	if column.Field.Equal(want) {
		return column, nil
	}
	if image := o.steps[i].image; image != nil {
		var out Column
		err := image.Apply(ctx, env, in, func(b *Batch) error {
			out = b.Columns[at]
			return nil
		})
		return out, err
	}
	out := Column{Field: want}
	if want.Kind == KindTensor {
		out.Tensor = env.alloc(in.NumRows * want.DType.Size())
	}
	for row := range in.NumRows {
		if err := out.appendScalar(&column, row); err != nil {
			return Column{}, sampleError(in, row, "output", fieldError(want.Name, err))
		}
	}
	return out, nil
}

func fieldError(name string, err error) error {
	return errkind.Errorf(errkind.BadData, "field %q: %w", name, err)
}

// appendScalar appends the value of row of src, converted to c's type.
func (c *Column) appendScalar(src *Column, row int) error {
	if c.Kind != KindTensor {
		switch src.Kind {
		case KindInt64:
			c.Floats = append(c.Floats, float64(src.Ints[row]))
			return nil
		case KindFloat64:
			n, err := wholeNumber(src.Floats[row])
			c.Ints = append(c.Ints, n)
			return err
		default:
			return c.appendText(src.Bytes[row])
		}
	}
	if c.DType == DTypeFloat32 {
		f, err := src.float(row)
		binary.LittleEndian.PutUint32(c.Tensor[4*row:], math.Float32bits(float32(f)))
		return err
	}
	n, err := src.integer(row)
	if err != nil {
		return err
	}
	return c.putInt(row, n)
}

// putInt stores n as row of a tensor of integers.
func (c *Column) putInt(row int, n int64) error {
	least, most := int64(0), int64(1)
	switch c.DType {
	case DTypeUint8:
		most = math.MaxUint8
	case DTypeInt32:
		least, most = math.MinInt32, math.MaxInt32
	default:
	}
	if n < least || n > most {
		return errkind.Errorf(errkind.BadData, "%d does not fit in %s", n, c.DType)
	}
	if c.DType == DTypeInt32 {
		binary.LittleEndian.PutUint32(c.Tensor[4*row:], uint32(n)) //nolint:gosec // The bits of an int32.
		return nil
	}
	c.Tensor[row] = byte(n) //nolint:gosec // Checked above.
	return nil
}

// integer is row's value as an integer.
func (c *Column) integer(row int) (int64, error) {
	switch c.Kind {
	case KindInt64:
		return c.Ints[row], nil
	case KindFloat64:
		return wholeNumber(c.Floats[row])
	default:
		return parseInt(c.Bytes[row])
	}
}

// float is row's value as a number.
func (c *Column) float(row int) (float64, error) {
	switch c.Kind {
	case KindInt64:
		return float64(c.Ints[row]), nil
	case KindFloat64:
		return c.Floats[row], nil
	default:
		one := Column{Field: Field{Kind: KindFloat64}}
		if err := one.appendText(c.Bytes[row]); err != nil {
			return 0, err
		}
		return one.Floats[0], nil
	}
}

func wholeNumber(f float64) (int64, error) {
	if f != math.Trunc(f) || math.Abs(f) >= 1<<53 {
		return 0, errkind.Errorf(errkind.BadData, "%v is not an integer", f)
	}
	return int64(f), nil
}
