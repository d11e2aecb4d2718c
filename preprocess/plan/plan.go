// Package plan turns a recipe into the chain of stages that workers run.
//
// A stage is a run of operators with the same resource shape; consecutive operators of equal shape fuse. The
// last stage ends in the declared output. A plan is a pure function of its resolved recipe, so the dispatcher and
// every worker build the same one.
package plan

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/nearest"
	"github.com/millrace/millrace/preprocess/lineage"
	"github.com/millrace/millrace/preprocess/op"
	"github.com/millrace/millrace/preprocess/recipe"
)

// DefaultTargetBytes is the size at which an output partition is handed on, unless the recipe says otherwise.
const DefaultTargetBytes = 16 << 20

// Plan is a recipe made ready to run. It is immutable and safe for concurrent use.
type Plan struct {
	// Recipe is the resolved recipe.
	Recipe *recipe.Recipe
	// Stages in order, at least one.
	Stages []Stage
	// Schema of a finished row.
	Schema op.Schema
	// KeepsRows says that every sample becomes exactly one row.
	KeepsRows bool
	// TargetBytes of an output partition.
	TargetBytes int64
	// operators as the recipe lists them, before fusing; they are what digests and people see.
	operators []op.Info
}

// Stage is a run of operators on one resource shape.
type Stage struct {
	// Name for people and metric labels.
	Name string
	// Ops to apply in order.
	Ops []op.Operator
	// Resources are the slots that one task takes.
	Resources map[string]int
	// In and Out are the schemas before and after.
	In, Out op.Schema
	// RowBytes is the size of a row of Out when every row has the same, else 0.
	RowBytes int64
}

// New builds the plan of a recipe. Errors have kind Invalid and name the operator.
func New(r *recipe.Recipe) (*Plan, error) {
	if len(r.Fields) == 0 {
		r = withFields(r, recipe.DefaultFields())
	}
	outputs, err := declaredOutputs(r)
	if err != nil {
		return nil, err
	}
	p := &Plan{Recipe: r, TargetBytes: r.Partition.TargetBytes, KeepsRows: true}
	if p.TargetBytes == 0 {
		p.TargetBytes = DefaultTargetBytes
	}
	schema, err := sourceSchema(r.Fields)
	if err != nil {
		return nil, err
	}
	stage := Stage{In: schema}
	for i, o := range r.Operators {
		built, err := op.Build(o.Name, i, o.Params)
		if err != nil {
			return nil, errkind.With(errkind.Invalid, fmt.Errorf("operator %d: %w", i+1, err))
		}
		info := built.Info()
		resources := info.Resources
		if len(o.Resources) > 0 {
			resources = o.Resources
			info.Resources = resources
		}
		if len(stage.Ops) > 0 && (o.Barrier || !maps.Equal(resources, stage.Resources)) {
			p.close(&stage, schema)
		}
		next, err := built.Schema(schema)
		if err != nil {
			return nil, errkind.With(errkind.Invalid, fmt.Errorf("operator %d: %w", i+1, err))
		}
		stage.Ops, stage.Resources, schema = append(stage.Ops, built), resources, next
		p.operators = append(p.operators, info)
		p.KeepsRows = p.KeepsRows && info.KeepsRows
	}
	if len(outputs) == 0 {
		outputs = naturalOutputs(r, schema)
	}
	output, err := op.NewOutput(schema, outputs)
	if err != nil {
		return nil, err
	}
	if len(stage.Ops) == 0 {
		stage.Resources = output.Info().Resources
	}
	stage.Ops = append(stage.Ops, output)
	p.operators = append(p.operators, output.Info())
	if p.Schema, err = output.Schema(schema); err != nil {
		return nil, err
	}
	if err := checkColumns(p.Schema); err != nil {
		return nil, err
	}
	p.close(&stage, p.Schema)
	if n := len(p.Stages); n > lineage.MaxDepth {
		return nil, errkind.Errorf(errkind.Invalid,
			"the operators make %d stages; at most %d can follow each other. Put those that need equal resources side by side", n, lineage.MaxDepth)
	}
	return p, nil
}

// close ends the stage at the schema out and begins the next one.
func (p *Plan) close(s *Stage, out op.Schema) {
	s.Out, s.RowBytes = out, rowBytes(out)
	s.Ops = op.Fuse(s.Ops)
	names := make([]string, 0, len(s.Ops))
	for _, o := range s.Ops {
		names = append(names, o.Info().Name)
	}
	s.Name = strings.Join(names, "+")
	p.Stages = append(p.Stages, *s)
	*s = Stage{In: out}
}

// Operators lists what runs, as the recipe has it, with all defaults filled in.
func (p *Plan) Operators() []op.Info { return slices.Clone(p.operators) }

func sourceSchema(fields []recipe.Field) (op.Schema, error) {
	schema := make(op.Schema, 0, len(fields))
	for _, f := range fields {
		if schema.Index(f.Name) >= 0 {
			return nil, errkind.Errorf(errkind.Invalid, "field %q is given twice", f.Name)
		}
		schema = append(schema, op.Field{Name: f.Name, Kind: op.KindBytes})
	}
	return schema, nil
}

// declaredOutputs are the columns that the recipe lists.
func declaredOutputs(r *recipe.Recipe) ([]op.OutputField, error) {
	var fields []op.OutputField
	for _, o := range r.Output {
		out := op.OutputField{Name: o.Name, Layout: o.Layout}
		if o.DType != "" {
			var err error
			if out.DType, err = op.ParseDType(o.DType); err != nil {
				return nil, errkind.With(errkind.Invalid, fmt.Errorf("output %s: %w", o.Name, err))
			}
		}
		fields = append(fields, out)
	}
	return fields, nil
}

// naturalOutputs are all fields in the form that a trainer expects: images as CHW, class numbers as int64.
func naturalOutputs(r *recipe.Recipe, schema op.Schema) []op.OutputField {
	var fields []op.OutputField
	for _, f := range schema {
		out := op.OutputField{Name: f.Name}
		switch {
		case slices.Contains(f.DimNames, "C"):
			out.Layout = "CHW"
		case f.Kind == op.KindBytes && isClassNumber(r, f.Name):
			out.DType = op.DTypeInt64
		}
		fields = append(fields, out)
	}
	return fields
}

// isClassNumber says whether the field is read from .cls members only, which hold a number in decimal text.
func isClassNumber(r *recipe.Recipe, name string) bool {
	for _, f := range r.Fields {
		if f.Name == name {
			return len(f.From) == 1 && f.From[0] == "cls"
		}
	}
	return false
}

// checkColumns refuses what a batch cannot hold.
func checkColumns(schema op.Schema) error {
	for _, f := range schema {
		if f.Kind == op.KindImage {
			return errkind.Errorf(errkind.Invalid,
				"output: images of field %q differ in size; add resize, center_crop or random_resized_crop with a fixed size", f.Name)
		}
	}
	return nil
}

func rowBytes(schema op.Schema) int64 {
	var total int64
	for _, f := range schema {
		switch f.Kind {
		case op.KindTensor:
			total += int64(f.RowBytes())
		case op.KindInt64, op.KindFloat64:
			total += 8
		case op.KindBytes, op.KindText, op.KindImage, op.KindInvalid:
			return 0
		}
	}
	return total
}

// Digest identifies a part of a plan.
type Digest [16]byte

// OrderDigest covers every operator that can change rows, and what cuts partitions. extra holds what the plan
// does not know: manifest, seed, layout and the policy for bad samples.
func (p *Plan) OrderDigest(extra any) (Digest, error) {
	var rows []op.Info
	for _, o := range p.operators {
		if !o.ChangesPixelsOnly {
			rows = append(rows, o)
		}
	}
	return digest(map[string]any{"operators": rows, "target_bytes": p.TargetBytes, "extra": extra})
}

// PixelsDigest covers everything else that decides the bytes of a row.
func (p *Plan) PixelsDigest() (Digest, error) {
	return digest(map[string]any{"fields": p.Recipe.Fields, "operators": p.operators})
}

func digest(v any) (Digest, error) {
	text, err := recipe.CanonicalJSON(v)
	if err != nil {
		return Digest{}, errkind.With(errkind.Invalid, fmt.Errorf("digest of the plan: %w", err))
	}
	sum := sha256.Sum256(text)
	return Digest(sum[:16]), nil
}

func withFields(r *recipe.Recipe, fields []recipe.Field) *recipe.Recipe {
	c := *r
	c.Fields = fields
	return &c
}

// Resolve fixes what the recipe leaves to the data: optional fields are kept only if the source has them. members
// are those of the source's first sample. Errors name the nearest member.
func Resolve(r *recipe.Recipe, members []string) (*recipe.Recipe, error) {
	fields := r.Fields
	if len(fields) == 0 {
		fields = recipe.DefaultFields()
	}
	var kept []recipe.Field
	for _, f := range fields {
		found := slices.ContainsFunc(f.From, func(m string) bool { return slices.Contains(members, m) })
		switch {
		case found:
			kept = append(kept, recipe.Field{Name: f.Name, From: f.From})
		case !f.Optional && len(f.From) == 1:
			return nil, errkind.Errorf(errkind.Invalid, "field %q: samples have no member %q%s", f.Name, f.From[0], nearest.Hint(f.From[0], members))
		case !f.Optional:
			return nil, errkind.Errorf(errkind.Invalid, "field %q: samples have none of the members %s; they have %s",
				f.Name, strings.Join(f.From, ", "), strings.Join(members, ", "))
		}
	}
	if len(kept) == 0 {
		return nil, errkind.Errorf(errkind.Invalid, "no field of the recipe is in the samples, which have the members %s", strings.Join(members, ", "))
	}
	return withFields(r, kept), nil
}
