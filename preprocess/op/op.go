// Package op holds the operators of the preprocess stage: what turns encoded samples into the tensors of a batch.
//
// An operator is a pure function of its input batch, its parameters and its random key (seed, epoch, sample,
// place in the recipe). It keeps no state between batches, so any partition can be made again anywhere, byte for
// byte. Names, parameters and semantics are torchvision's (the PIL path), in snake case.
package op

import "context"

// Env is what an operator gets from the task that runs it.
type Env struct {
	// Seed and Epoch are two parts of each sample's random key.
	Seed, Epoch uint64
	// Scalar runs image kernels without vector instructions. The bytes are the same.
	Scalar bool
	// Alloc returns n zeroed or dirty bytes aligned to 64. The bytes belong to the batch that the operator emits.
	// Nil means the Go heap.
	Alloc func(n int) []byte
	// Charge, if set, is told of memory beside that of Alloc before it is taken, in bytes, and when it is given back: what decoding a
	// large image takes.
	Charge func(delta int64)
	// Drawn, if set, is told what a random operator drew for a row, as a JSON object in torchvision's terms.
	Drawn func(row int, operator, values string)
	// Python calls functions of operators in Python. Nil where they are not allowed.
	Python Python
	// Outside decodes files in other processes. Nil: all are decoded in this one.
	Outside Outside
}

// Info describes an operator with all defaults filled in. It is what a plan digest is made of.
type Info struct {
	// Name is the name in a recipe; fused operators join theirs with "+".
	Name string
	// Version changes whenever the operator's output bytes change for equal input.
	Version int
	// Params holds nil, int64, float64, string, bool, []any and map[string]any only.
	Params map[string]any
	// Resources names what one run of the operator occupies, for example {"cpu": 1}.
	Resources map[string]int
	// KeepsRows says that row i of the output comes from row i of the input, always.
	KeepsRows bool
	// Fanout is how many rows every row becomes where that is always the same number and not one; else 0. It is known from
	// the parameters, so it is not part of a digest.
	Fanout int64 `json:"-"`
	// Deterministic says that equal input, parameters and key give equal bytes on every supported machine.
	Deterministic bool
	// ChangesPixelsOnly says that the operator can't change which rows there are, nor their order.
	ChangesPixelsOnly bool
}

// Operator is one step of a recipe. Implementations are safe for concurrent use.
type Operator interface {
	// Info describes the operator.
	Info() Info
	// Schema is the schema of the output for an input schema, or an error of kind Invalid that names the field.
	Schema(in Schema) (Schema, error)
	// Apply reads in, which it must not change, and hands each output batch to emit. A sample that can't be
	// processed is a *SampleError.
	Apply(ctx context.Context, env *Env, in *Batch, emit func(*Batch) error) error
}

// cpuInfo is the Info of the plain operators of this package: one CPU slot, rows kept, bytes repeatable.
func cpuInfo(name string, version int, params map[string]any) Info {
	return Info{
		Name: name, Version: version, Params: params, Resources: map[string]int{"cpu": 1},
		KeepsRows: true, Deterministic: true, ChangesPixelsOnly: true,
	}
}
