// Package sheet draws samples before and after a recipe's operators, with what was drawn at random, on one picture.
package sheet

import (
	"context"
	"errors"
	"image"
	"slices"

	"github.com/millrace/millrace/cmd/millrace/lookback"
	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/preprocess/op"
	"github.com/millrace/millrace/preprocess/plan"
)

// Sample is one sample of a recipe, before and after its operators.
type Sample struct {
	// Key names it, Number is its place in the manifest.
	Key    string `json:"key"`
	Number int64  `json:"sample"`
	// Drawn is what its random operators drew.
	Drawn []Drawing `json:"drawn"`
	// Values are the fields of its rows that are no images, as text.
	Values []Value `json:"values,omitempty"`
	// Error says why it can't be processed.
	Error string `json:"error,omitempty"`

	before []picture // of fields as they are read
	after  []picture // of output fields, one for each row that became of the sample
}

// Drawing is what one operator drew, as a JSON object.
type Drawing struct {
	Operator string `json:"operator"`
	Values   string `json:"values"`
}

// Value is a field of a row, as text.
type Value struct {
	Field string `json:"field"`
	Text  string `json:"text"`
}

// picture is an image of a field; note is its size and type.
type picture struct {
	field, note string
	image       image.Image
}

// Options say which samples are taken.
type Options struct {
	// Samples is how many.
	Samples int
	// Seed and Epoch of order and random operators.
	Seed, Epoch uint64
	// Scalar runs image kernels without vector instructions.
	Scalar bool
	// Python runs functions of users; nil: the plan has none.
	Python op.Python
	// Outside decodes files in other processes; nil: all are decoded in this one.
	Outside op.Outside
}

// Take runs the operators on the first samples of an epoch. Samples that can't be processed say so themselves.
func Take(ctx context.Context, s *lookback.Source, o Options) (_ []*Sample, err error) {
	set, err := dataset.Open(s.Manifest, s.Resolver, s.Cache, dataset.OpenOptions{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	epoch := s.Layout.Epoch(o.Seed, o.Epoch)
	var taken []*Sample
	for p := int64(0); p < epoch.NumPartitions() && len(taken) < o.Samples; p++ {
		ordinals := epoch.Samples(p, nil)
		show := min(len(ordinals), o.Samples-len(taken))
		if keepsRows(s.Plan) {
			ordinals = ordinals[:show] // else rows may depend on all of their source partition
		}
		part, err := partition(ctx, set, s.Plan, ordinals, o)
		if err != nil {
			return nil, err
		}
		taken = append(taken, part[:show]...)
	}
	return taken, nil
}

func keepsRows(p *plan.Plan) bool {
	return !slices.ContainsFunc(p.Operators(), func(i op.Info) bool { return !i.KeepsRows })
}
