package optest

import (
	"context"
	"encoding/json"

	"github.com/millrace/millrace/preprocess/op"
)

// Recipe is operators by name and parameters, run on the field image of one sample.
type Recipe struct {
	// Input is the image's file name.
	Input string `json:"input"`
	// Steps are objects with the operator's name under "name" and its parameters, without the field.
	Steps []map[string]any `json:"steps"`
	// Seed and Sample key the draws.
	Seed   uint64 `json:"seed"`
	Sample uint64 `json:"sample"`
}

// Draw is what a random operator drew.
type Draw struct {
	Operator string          `json:"operator"`
	Values   json.RawMessage `json:"values"`
}

// Result is what a recipe makes.
type Result struct {
	Recipe
	Draws []Draw `json:"draws"`
	// Shape is the rows and then each row's own dimensions.
	Shape []int64 `json:"shape"`
	DType string  `json:"dtype"`
	// Hash is that of the bytes.
	Hash   string `json:"hash"`
	Pixels []byte `json:"-"`
}

// Build makes the operators of r.
func (r Recipe) Build() ([]op.Operator, error) {
	ops := make([]op.Operator, len(r.Steps))
	for i, step := range r.Steps {
		params := map[string]any{"field": "image"}
		name := ""
		for k, v := range step {
			if k == "name" {
				name, _ = v.(string)
			} else {
				params[k] = v
			}
		}
		var err error
		if ops[i], err = op.Build(name, i, params); err != nil {
			return nil, err
		}
	}
	return ops, nil
}

// Run runs ops, which Build made, on an image.
func (r Recipe) Run(ctx context.Context, ops []op.Operator, scalar bool, image []byte) (Result, error) {
	out := Result{Recipe: r}
	env := &op.Env{Seed: r.Seed, Scalar: scalar, Drawn: func(_ int, operator, values string) {
		out.Draws = append(out.Draws, Draw{operator, json.RawMessage(values)})
	}}
	b := &op.Batch{NumRows: 1, Samples: []uint64{r.Sample}, Columns: []op.Column{{Field: op.Field{Name: "image", Kind: op.KindBytes}, Bytes: [][]byte{image}}}}
	for _, o := range ops {
		err := o.Apply(ctx, env, b, func(next *op.Batch) error {
			b = next
			return b.Check()
		})
		if err != nil {
			return Result{}, err
		}
	}
	c := b.Column("image")
	if c.Kind == op.KindImage {
		m := c.Images[0]
		out.Shape, out.DType, out.Pixels = []int64{1, int64(m.H), int64(m.W), int64(m.C)}, "uint8", m.Pix
		if c.DType == op.DTypeUint16 {
			out.DType = "uint16"
		}
	} else {
		out.Shape, out.DType, out.Pixels = append([]int64{int64(b.NumRows)}, c.Shape...), c.DType.String(), c.Tensor
	}
	out.Hash = Hash(out.Pixels)
	return out, nil
}
