package view

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/cmd/millrace/measure"
	"github.com/millrace/millrace/internal/progress"
)

// needs are slots and bytes for the asked rate.
func (f *figures) needs() string {
	slots := map[string]float64{}
	for i, s := range f.in.Plan.Stages {
		for name, n := range s.Resources {
			slots[name] += f.in.Rate * f.seconds(i+1) * float64(n)
		}
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(slots)) {
		what := name + " slots"
		if name == "cpu" {
			what = "cores of preprocessing"
		}
		parts = append(parts, fmt.Sprintf("%.1f %s", slots[name], what))
	}
	rate := func(bytes int64) string { return progress.Size(int64(f.in.Rate*float64(bytes))) + "/s" }
	parts = append(parts, rate(f.perSample(len(f.stages)-1))+" to the trainer", rate(f.perSample(0))+" from the store")
	return strings.Join(parts, ", ")
}

// measuredJSON is what was measured, for machines: of one sample.
func measuredJSON(m *measure.Result) map[string]any {
	if m == nil || m.Samples == 0 {
		return nil
	}
	one := func(s measure.Stage) map[string]any {
		n := float64(m.Samples)
		return map[string]any{
			"us": float64(s.Time) / float64(time.Microsecond) / n, "bytes": float64(s.Bytes) / n, "rows": float64(s.Rows) / n,
		}
	}
	stages := make([]map[string]any, len(m.Stages))
	for i, s := range m.Stages {
		stages[i] = one(s)
	}
	return map[string]any{"samples": m.Samples, "bad": m.Bad, "read": one(m.Read), "stages": stages}
}
