package view

import (
	"fmt"

	"github.com/millrace/millrace/cmd/millrace/measure"
	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/order"
	"github.com/millrace/millrace/preprocess/plan"
)

// PlanJSON is a plan for machines. measured is nil where nothing was.
func PlanJSON(p *plan.Plan, m *dataset.Manifest, l order.Layout, measured *measure.Result) map[string]any {
	stages := make([]map[string]any, 0, len(p.Stages))
	for _, s := range p.Stages {
		stages = append(stages, map[string]any{"name": s.Name, "resources": s.Resources, "row_bytes": s.RowBytes})
	}
	operators := make([]map[string]any, 0, len(p.Operators()))
	for _, o := range p.Operators() {
		operators = append(operators, map[string]any{"name": o.Name, "version": o.Version, "params": o.Params})
	}
	return map[string]any{
		"manifest": fmt.Sprintf("%x", m.ID()), "shards": len(m.Shards), "samples": m.NumSamples(), "bytes": m.DataBytes(),
		"measured": measuredJSON(measured), "stages": stages, "operators": operators, "target_bytes": p.TargetBytes, "keeps_rows": p.KeepsRows,
		"order": map[string]any{
			"shuffle": l.Shuffle.String(), "partition_samples": l.PartitionSamples, "block_samples": l.BlockSamples,
			"window_blocks": l.WindowBlocks, "lanes": l.Lanes,
		},
	}
}
