package view

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/millrace/millrace/cmd/millrace/measure"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/order"
	"github.com/millrace/millrace/preprocess/op"
	"github.com/millrace/millrace/preprocess/plan"
)

// PlanInput is what a plan is shown with.
type PlanInput struct {
	// Name of the recipe, for people.
	Name     string
	Plan     *plan.Plan
	Manifest *dataset.Manifest
	Layout   order.Layout
	// Batch is the global batch for which mixing is told.
	Batch int64
	// Measured is what stages take and make; nil where it was not measured, Unmeasured says why not.
	Measured   *measure.Result
	Unmeasured string
	// Rate is samples a second for which needs are told; 0: none.
	Rate float64
}

// Plan writes the chain of stages, what fuses, sizes, and how well the order mixes.
func Plan(out io.Writer, in PlanInput) error {
	id := in.Manifest.ID()
	n := in.Manifest.NumSamples()
	mean := in.Manifest.DataBytes() / max(1, n)
	_, _ = fmt.Fprintf(out, "%s · %s shards · %s samples · %s · manifest %x…\n", in.Name, progress.Count(int64(len(in.Manifest.Shards))),
		progress.Count(n), progress.Size(in.Manifest.DataBytes()), id[:3])
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintln(w, "  stage\toperators\tµs/sample\tbytes in → out\truns on")
	figures := newFigures(in, mean)
	_, _ = fmt.Fprintf(w, "  read\t%s\t%s\t%s → %s\tany worker\n", in.Manifest.Format, figures.micros(0), progress.Size(mean), figures.bytes(0))
	for i, s := range in.Plan.Stages {
		name := "preprocess"
		if len(in.Plan.Stages) > 1 {
			name = fmt.Sprintf("preprocess %d", i)
		}
		_, _ = fmt.Fprintf(w, "  %s\t%s\t%s\t%s → %s\t%s (%s)\n", name, stageOperators(s), figures.micros(i+1), figures.bytes(i), figures.bytes(i+1),
			where(s.Resources), resources(s.Resources))
	}
	last := figures.bytes(len(in.Plan.Stages))
	_, _ = fmt.Fprintf(w, "  feed\tbatch %d: %s\t\t%s → %s\tsidecar\n", in.Batch, columns(in.Plan.Schema), last, last)
	if err := w.Flush(); err != nil {
		return err
	}
	figures.write(out)
	_, _ = fmt.Fprintf(out, "order     %s\n", Order(in.Layout, in.Batch))
	_, _ = fmt.Fprintf(out, "settings  %s\n", settings(in.Plan))
	return nil
}

// outputStep is the operator that every plan ends with, which no recipe names.
const outputStep = "output"

// stageOperators lists the operators of a stage; those that fused into one are joined by +.
func stageOperators(s plan.Stage) string {
	names := make([]string, 0, len(s.Ops))
	for _, o := range s.Ops {
		if f := op.PythonFunctionOf(o); f != nil {
			names = append(names, o.Info().Name+" "+f.Call)
			continue
		}
		parts := strings.Split(o.Info().Name, "+")
		if own := slices.DeleteFunc(parts, func(part string) bool { return part == outputStep }); len(own) > 1 {
			names = append(names, strings.Join(own, "+")+" (fused)")
		} else {
			names = append(names, own...)
		}
	}
	if len(names) == 0 {
		return outputStep
	}
	return strings.Join(names, ", ")
}

func columns(schema op.Schema) string {
	parts := make([]string, len(schema))
	for i, f := range schema {
		parts[i] = f.Name + " " + f.String()
	}
	return strings.Join(parts, ", ")
}

// settings lists every operator with all its parameters, defaults filled in.
func settings(p *plan.Plan) string {
	var parts []string
	for _, o := range p.Operators() {
		if o.Name == outputStep {
			continue
		}
		var params []string
		for _, key := range slices.Sorted(maps.Keys(o.Params)) {
			params = append(params, fmt.Sprintf("%s=%v", key, o.Params[key]))
		}
		parts = append(parts, o.Name+"("+strings.Join(params, ", ")+")")
	}
	if len(parts) == 0 {
		return "no operators"
	}
	return strings.Join(parts, "\n          ")
}

func resources[N int | uint32](r map[string]N) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(r)) {
		if r[name] == 1 {
			parts = append(parts, name)
		} else {
			parts = append(parts, fmt.Sprintf("%d %s", r[name], name))
		}
	}
	return strings.Join(parts, ", ")
}

// slots writes slots by resource: "2 cpu, 1 gpu".
func slots(s map[string]uint32) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(s)) {
		parts = append(parts, fmt.Sprintf("%d %s", s[name], name))
	}
	return strings.Join(parts, ", ")
}

func plural(n int64, word string) string {
	if n == 1 {
		return word
	}
	return word + "s"
}
