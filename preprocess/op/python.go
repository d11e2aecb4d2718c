package op

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/errkind"
)

// PythonResource is the resource that operators in Python run on: processes of a worker.
const PythonResource = "python"

// Modes of an operator in Python: what its function takes and gives.
const (
	// PythonMap takes a row and gives a row.
	PythonMap = "map"
	// PythonFilter takes a row and says whether it stays.
	PythonFilter = "filter"
	// PythonFlatMap takes a row and gives any number of rows.
	PythonFlatMap = "flat_map"
	// PythonBatches takes many rows as columns and gives columns, or a generator of them.
	PythonBatches = "batches"
)

// Python runs the functions of operators in Python. Implementations are safe for concurrent use.
type Python interface {
	// Call hands the rows of c to its function and the rows made of them to emit, in order. A row that can't be processed is
	// a *PythonError.
	Call(ctx context.Context, c *PythonCall, emit func(PythonRows) error) error
}

// PythonFunction says which function an operator calls, and how. Two of them are the same only if their pointers are.
type PythonFunction struct {
	// Call is the import path, "package.module:name".
	Call string
	// Pickle is the function itself, base64 of a cloudpickle; empty: it is imported.
	Pickle string
	// Mode is one of the Python… constants, Format that of batches: "numpy" or "arrow".
	Mode, Format string
	// KeepsRows says that row i of the output comes from row i of the input.
	KeepsRows bool
	// Args are keyword arguments: of the class's constructor, or of each call.
	Args map[string]any
	// Timeout is how long one call may take, OpenTimeout how long a process may take to load the function.
	Timeout, OpenTimeout time.Duration
	// Index is the operator's place in the recipe, a part of the random key.
	Index int
}

// PythonCall is some rows for a function.
type PythonCall struct {
	Function *PythonFunction
	// Rows From to To of Batch are meant; of its columns those of Inputs.
	Batch    *Batch
	From, To int
	Inputs   []int
	// Out is the schema of what the function can make.
	Out Schema
	// Seed and Epoch are two parts of each sample's random key.
	Seed, Epoch uint64
	// Alloc gives the memory of what comes back.
	Alloc func(n int) []byte
}

// PythonRows is some rows that a function made.
type PythonRows struct {
	// From is the row of the call's batch that each one is made from.
	From []int
	// Columns are those that the function made; all others are taken from the row that it was made from.
	Columns []Column
}

// PythonError is a row, or a run of rows, that a function can't process.
type PythonError struct {
	// First and Last row of the call's batch.
	First, Last int
	// Err is the cause. Its text is one line, and may be followed by the traceback.
	Err error
}

// Error is the cause.
func (e *PythonError) Error() string { return e.Err.Error() }

// Unwrap is the cause.
func (e *PythonError) Unwrap() error { return e.Err }

// pythonOp calls a function of the user in a Python process.
type pythonOp struct {
	info      Info
	function  PythonFunction
	input     []string // nil: all fields
	output    Schema   // declared
	batchRows int      // of one call in mode batches, 0: all
}

func buildPython(index int, a *args) (Operator, error) {
	const maxSeconds, maxBatchRows = 7 * 24 * 3600, 1 << 20
	o := &pythonOp{function: PythonFunction{Index: index, Call: a.field("call")}}
	f := &o.function
	f.Mode = a.text("mode", PythonMap, PythonMap, PythonFilter, PythonFlatMap, PythonBatches)
	a.version()
	f.Args = a.mapping("args")
	o.output = a.pythonTypes("output")
	if _, given := a.given["input"]; given {
		o.input = a.names("input")
	} else {
		a.known = append(a.known, "input")
	}
	f.KeepsRows = f.Mode == PythonMap
	switch f.Mode {
	case PythonBatches:
		f.KeepsRows = a.boolean("keeps_rows", true)
		f.Format = a.text("format", "numpy", "numpy", "arrow")
		if n, ok := a.integer("batch_size", 1, maxBatchRows); ok {
			o.batchRows = int(n)
		}
	case PythonFilter:
		if len(o.output) > 0 {
			a.reject("a filter makes no fields; leave output out, or use mode flat_map")
		}
	}
	canon := maps.Clone(a.canon)
	// How long a call may take, and the pickle that brings the function, decide no byte: they stay out of digests.
	f.Timeout = seconds(a.number("timeout", 60, 0.001, maxSeconds))
	f.OpenTimeout = seconds(a.number("open_timeout", 300, 0.001, maxSeconds))
	f.Pickle = a.text("pickle", "")
	if module, name, ok := strings.Cut(f.Call, ":"); f.Call != "" && (!ok || module == "" || name == "" || strings.ContainsAny(f.Call, " /\\")) {
		a.reject(`call %s is no import path; write it as "package.module:function"`, show(f.Call))
	}
	if err := a.done(); err != nil {
		return nil, err
	}
	o.info = Info{
		Name: a.operator, Version: 1, Params: canon, Resources: map[string]int{PythonResource: 1},
		KeepsRows: f.KeepsRows, Deterministic: true, ChangesPixelsOnly: f.KeepsRows,
	}
	return o, nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// version reads the author's version of a function: a whole number or text.
func (a *args) version() {
	v, ok := a.get("version")
	if !ok {
		a.canon["version"] = int64(1)
		return
	}
	if n, isInt := toInt(v); isInt {
		a.canon["version"] = n
		return
	}
	if _, isText := v.(string); !isText {
		a.fail("version", "a whole number or text", v)
	}
	a.canon["version"] = v
}

// mapping reads a mapping of plain values.
func (a *args) mapping(name string) map[string]any {
	v, ok := a.get(name)
	m, isMap := v.(map[string]any)
	if ok && !isMap {
		a.fail(name, "a mapping", v)
	}
	if m == nil {
		m = map[string]any{}
	}
	a.canon[name] = m
	return m
}

// pythonTypes reads a mapping of fields to their types, sorted by name.
func (a *args) pythonTypes(name string) Schema {
	types := a.mapping(name)
	var out Schema
	for _, field := range slices.Sorted(maps.Keys(types)) {
		f, err := pythonType(field, types[field])
		if err != nil && a.err == nil {
			a.err = errkind.With(errkind.Invalid, fmt.Errorf("%s of %s: %w", name, a.operator, err))
		}
		out = append(out, f)
	}
	return out
}

// pythonType reads text, bytes, int64, float64, image, or {dtype: float32, shape: [512]}.
func pythonType(name string, v any) (Field, error) {
	if strings.HasPrefix(name, "__") {
		return Field{}, errkind.Errorf(errkind.Invalid, "field %q: names that begin with __ are kept for a batch's meta data; choose another", name)
	}
	word, _ := v.(string)
	switch word {
	case "bytes":
		return Field{Name: name, Kind: KindBytes}, nil
	case "text":
		return Field{Name: name, Kind: KindText}, nil
	case "int64":
		return scalarField(name, KindInt64), nil
	case "float64":
		return scalarField(name, KindFloat64), nil
	case "image":
		return imageType{h: -1, w: -1, channels: 3, dtype: DTypeUint8}.field(name), nil
	}
	m, isMap := v.(map[string]any)
	if !isMap {
		return Field{}, errkind.Errorf(errkind.Invalid, "field %q is %s; it is text, bytes, int64, float64, image, or a tensor as {dtype: float32, shape: [512]}", name, show(v))
	}
	return tensorType(name, m)
}

func tensorType(name string, m map[string]any) (Field, error) {
	a := newArgs("field "+name, m)
	f := Field{Name: name, Kind: KindTensor, Shape: []int64{}}
	dtype := a.text("dtype", "float32")
	const maxSide, maxElements = 1 << 31, 1 << 40
	if v, ok := a.get("shape"); ok {
		list, isList := toList(v)
		elements := int64(1)
		for _, item := range list {
			n, isInt := toInt(item)
			isList = isList && isInt && n >= 1 && n <= maxSide && elements <= maxElements/n
			if isList {
				elements *= n
			}
			f.Shape = append(f.Shape, n)
		}
		if !isList {
			a.fail("shape", "a list of sizes of at least 1", v)
		}
	}
	if layout := a.text("layout", "", "CHW", "HWC"); layout != "" {
		f.DimNames = strings.Split(layout, "")
		if len(f.Shape) != len(f.DimNames) {
			a.reject("layout %s goes with a shape of three sizes", layout)
		}
	}
	if err := a.done(); err != nil {
		return Field{}, err
	}
	var err error
	f.DType, err = ParseDType(dtype)
	if err == nil && f.DType == DTypeBfloat16 {
		err = errkind.Errorf(errkind.Invalid, "field %q: NumPy has no bfloat16; make it float32 and let output convert it", name)
	}
	return f, err
}

func (o *pythonOp) Info() Info { return o.info }

// PythonFunctionOf is the function that an operator calls, nil if it calls none.
func PythonFunctionOf(o Operator) *PythonFunction {
	if p, ok := o.(*pythonOp); ok {
		return &p.function
	}
	return nil
}

// Schema is that of the input with the declared fields, new ones at the end.
func (o *pythonOp) Schema(in Schema) (Schema, error) {
	if _, err := o.inputs(in); err != nil {
		return nil, err
	}
	out := in
	for _, f := range o.output {
		out = out.with(out.Index(f.Name), f)
	}
	return out, nil
}

// inputs are the places of the fields that the function gets.
func (o *pythonOp) inputs(in Schema) ([]int, error) {
	names := o.input
	if names == nil {
		names = in.Names()
	}
	list := make([]int, len(names))
	for i, name := range names {
		at, err := in.Lookup(o.info.Name, name)
		if err != nil {
			return nil, err
		}
		list[i] = at
		if o.function.Format == "arrow" && in[at].Kind == KindImage {
			return nil, errkind.Errorf(errkind.Invalid, "python: field %q has images of differing sizes, which Arrow has no type for; use format: numpy, or resize first", name)
		}
	}
	return list, nil
}

// Apply calls the function on all rows, in mode batches some at a time.
func (o *pythonOp) Apply(ctx context.Context, env *Env, in *Batch, emit func(*Batch) error) error {
	if env.Python == nil {
		return errkind.Errorf(errkind.Invalid, "python: %s can't be called here: Python operators are not allowed; see --allow-python", o.function.Call)
	}
	schema := in.Schema()
	inputs, err := o.inputs(schema)
	if err != nil {
		return err
	}
	out, err := o.Schema(schema)
	if err != nil {
		return err
	}
	size := o.batchRows
	if size == 0 {
		size = math.MaxInt
	}
	for from := 0; from < in.NumRows; {
		to := from + min(size, in.NumRows-from)
		call := &PythonCall{
			Function: &o.function, Batch: in, From: from, To: to, Inputs: inputs, Out: out, Seed: env.Seed, Epoch: env.Epoch, Alloc: env.alloc,
		}
		err := env.Python.Call(ctx, call, func(r PythonRows) error {
			if len(r.From) == 0 {
				return nil
			}
			return emit(joinRows(in, &r, out, env))
		})
		if err != nil {
			return o.blame(in, err)
		}
		from = to
	}
	return nil
}

// blame makes what a function could not process an error of its sample.
func (o *pythonOp) blame(in *Batch, err error) error {
	failed, ok := err.(*PythonError) //nolint:errorlint // What a later operator says in emit is another's.
	if !ok {
		return err
	}
	cause := failed.Err
	if failed.Last > failed.First {
		kind := errkind.Of(cause)
		if kind == errkind.Unknown {
			kind = errkind.BadData
		}
		cause = errkind.With(kind, fmt.Errorf("in a batch of %d rows, the last of which is %s: %w", failed.Last-failed.First+1, in.label(failed.Last), cause))
	}
	return sampleError(in, failed.First, o.info.Name+" "+o.function.Call, cause)
}

// joinRows puts what a function made beside the fields of the rows that it was made from.
func joinRows(in *Batch, r *PythonRows, schema Schema, env *Env) *Batch {
	out := &Batch{NumRows: len(r.From), Columns: make([]Column, len(schema))}
	same := len(r.From) == in.NumRows
	for i, from := range r.From {
		same = same && i == from
		out.Samples = append(out.Samples, in.Samples[from])
		out.Keys = append(out.Keys, in.Keys[from])
	}
	if in.Origin != nil {
		out.Origin = func(i int) Origin { return in.Origin(r.From[i]) }
	}
	for i, f := range schema {
		at := slices.IndexFunc(r.Columns, func(c Column) bool { return c.Name == f.Name })
		switch {
		case at >= 0:
			out.Columns[i] = r.Columns[at]
			out.Columns[i].Field = f
		case same:
			out.Columns[i] = *in.Column(f.Name)
		default:
			out.Columns[i] = in.Column(f.Name).gather(r.From, env)
		}
	}
	return out
}

// gather is a column of some rows of c. Tensors are copied, all else is shared.
func (c *Column) gather(rows []int, env *Env) Column {
	out := Column{Field: c.Field}
	if c.Kind == KindTensor {
		n := c.RowBytes()
		out.Tensor = env.alloc(n * len(rows))
		for i, row := range rows {
			copy(out.Tensor[i*n:], c.TensorRow(row))
		}
		return out
	}
	for _, row := range rows {
		switch c.Kind {
		case KindBytes, KindText:
			out.Bytes = append(out.Bytes, c.Bytes[row])
		case KindInt64:
			out.Ints = append(out.Ints, c.Ints[row])
		case KindFloat64:
			out.Floats = append(out.Floats, c.Floats[row])
		case KindImage:
			out.Images = append(out.Images, c.Images[row])
		case KindTensor, KindInvalid:
		}
	}
	return out
}

// Drop is r without its first n rows.
func (r PythonRows) Drop(n int) PythonRows {
	if n == 0 {
		return r
	}
	out := PythonRows{From: r.From[n:], Columns: slices.Clone(r.Columns)}
	for i := range out.Columns {
		c := &out.Columns[i]
		switch c.Kind {
		case KindBytes, KindText:
			c.Bytes = c.Bytes[n:]
		case KindInt64:
			c.Ints = c.Ints[n:]
		case KindFloat64:
			c.Floats = c.Floats[n:]
		case KindTensor:
			c.Tensor = c.Tensor[n*c.RowBytes():]
		case KindImage:
			c.Images = c.Images[n:]
		case KindInvalid:
		}
	}
	return out
}

// Policies for functions of users: which a worker runs.
const (
	// AllowNone runs none.
	AllowNone = "none"
	// AllowImports runs functions that are installed where workers run.
	AllowImports = "imports"
	// AllowShipped runs those and functions that come with a recipe.
	AllowShipped = "shipped"
)

// PythonAllowed says whether a worker of that policy runs all of the functions; empty is AllowNone. The error, of kind
// Invalid, names the first that it does not.
func PythonAllowed(policy string, functions []*PythonFunction) error {
	for _, f := range functions {
		switch {
		case f.Pickle != "" && policy == AllowImports:
			return errkind.Errorf(errkind.Invalid,
				"function %s is shipped with the recipe, and only installed ones are run here; install it, or start workers with --allow-python shipped", f.Call)
		case f.Pickle != "" && policy != AllowShipped:
			return errkind.Errorf(errkind.Invalid,
				"function %s is shipped with the recipe, and functions in Python are not run here; start workers with --allow-python shipped", f.Call)
		case f.Pickle == "" && policy != AllowImports && policy != AllowShipped:
			return errkind.Errorf(errkind.Invalid, "function %s is in Python, and such are not run here; start workers with --allow-python imports", f.Call)
		}
	}
	return nil
}
