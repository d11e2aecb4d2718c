package plan

import (
	"context"

	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/order"
	"github.com/millrace/millrace/loader/store"
	"github.com/millrace/millrace/preprocess/recipe"
)

// For is the plan of a recipe over a source: optional fields are settled by the members of its first sample.
func For(ctx context.Context, r *recipe.Recipe, m *dataset.Manifest, resolver *store.Resolver, cache *dataset.Cache) (*Plan, error) {
	members, err := members(ctx, m, resolver, cache)
	if err != nil {
		return nil, err
	}
	resolved, err := Resolve(r, members)
	if err != nil {
		return nil, err
	}
	return New(resolved)
}

// members are the names of what the samples of a source consist of.
func members(ctx context.Context, m *dataset.Manifest, resolver *store.Resolver, cache *dataset.Cache) ([]string, error) {
	data, err := dataset.Open(m, resolver, cache, dataset.OpenOptions{})
	if err != nil {
		return nil, err
	}
	shard, _ := data.Locate(0)
	names, err := data.FieldNames(ctx, shard)
	if closeErr := data.Close(); err == nil {
		err = closeErr
	}
	return names, err
}

// Layout fixes the order of a job over m, from sizes in the manifest and the recipe, never from the machine or from an
// estimate made at run time.
func (p *Plan) Layout(m *dataset.Manifest, shuffle order.Shuffle) (order.Layout, error) {
	part := p.Recipe.Partition
	return order.Plan(order.Sizing{
		Shuffle: shuffle, NumSamples: m.NumSamples(), TotalBytes: m.DataBytes(),
		PartitionSamples: part.Samples, BlockSamples: part.BlockSamples, WindowBlocks: part.WindowBlocks, Lanes: part.Lanes,
	})
}
