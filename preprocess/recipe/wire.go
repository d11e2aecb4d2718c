package recipe

import (
	"fmt"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/millrace/millrace/internal/errkind"
	recipev1 "github.com/millrace/millrace/proto/millrace/recipe/v1"
)

// ToProto is the wire form of r.
func (r *Recipe) ToProto() (*recipev1.Recipe, error) {
	p := &recipev1.Recipe{Source: r.Source}
	for _, f := range r.Fields {
		p.Fields = append(p.Fields, &recipev1.Field{Name: f.Name, From: f.From, Optional: f.Optional})
	}
	for i, o := range r.Operators {
		params, err := structpb.NewStruct(o.Params)
		if err != nil {
			return nil, errkind.Errorf(errkind.Invalid, "recipe: operator %d (%s): %w", i+1, o.Name, err)
		}
		op := &recipev1.Operator{Name: o.Name, Params: params, Barrier: o.Barrier, Resources: map[string]uint32{}}
		for name, slots := range o.Resources {
			if slots < 0 || slots > 1<<16 {
				return nil, errkind.Errorf(errkind.Invalid, "recipe: operator %d (%s): %d slots of %s", i+1, o.Name, slots, name)
			}
			op.Resources[name] = uint32(slots)
		}
		p.Operators = append(p.Operators, op)
	}
	for _, o := range r.Output {
		p.Output = append(p.Output, &recipev1.Output{Name: o.Name, Layout: o.Layout, Dtype: o.DType})
	}
	p.Partition = &recipev1.Partitioning{
		Samples: r.Partition.Samples, TargetBytes: r.Partition.TargetBytes, BlockSamples: r.Partition.BlockSamples,
		WindowBlocks: r.Partition.WindowBlocks, Lanes: r.Partition.Lanes,
	}
	return p, nil
}

// FromProto is the recipe of a wire form.
func FromProto(p *recipev1.Recipe) (*Recipe, error) {
	if len(p.GetSource()) == 0 {
		return nil, errkind.Errorf(errkind.Invalid, "recipe: source is missing")
	}
	r := &Recipe{Source: p.GetSource()}
	for _, f := range p.GetFields() {
		r.Fields = append(r.Fields, Field{Name: f.GetName(), From: f.GetFrom(), Optional: f.GetOptional()})
	}
	for i, o := range p.GetOperators() {
		if o.GetName() == "" {
			return nil, errkind.With(errkind.Invalid, fmt.Errorf("recipe: operator %d has no name", i+1))
		}
		op := Operator{Name: o.GetName(), Barrier: o.GetBarrier()}
		if len(o.GetParams().GetFields()) > 0 {
			op.Params = o.GetParams().AsMap()
		}
		for name, slots := range o.GetResources() {
			if op.Resources == nil {
				op.Resources = map[string]int{}
			}
			op.Resources[name] = int(slots)
		}
		r.Operators = append(r.Operators, op)
	}
	for _, o := range p.GetOutput() {
		r.Output = append(r.Output, Output{Name: o.GetName(), Layout: o.GetLayout(), DType: o.GetDtype()})
	}
	part := p.GetPartition()
	r.Partition = Partitioning{
		Samples: part.GetSamples(), TargetBytes: part.GetTargetBytes(), BlockSamples: part.GetBlockSamples(),
		WindowBlocks: part.GetWindowBlocks(), Lanes: part.GetLanes(),
	}
	return r, nil
}
