package lookback

import (
	"context"

	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/order"
	"github.com/millrace/millrace/loader/store"
	"github.com/millrace/millrace/preprocess/plan"
)

// Source is what a job reads, and how.
type Source struct {
	Plan     *plan.Plan
	Manifest *dataset.Manifest
	Layout   order.Layout
	Resolver *store.Resolver
	// Cache has the indexes.
	Cache *dataset.Cache
}

// Close closes the stores.
func (s *Source) Close() { _ = s.Resolver.Close() }

// keys are the keys of samples, from the index alone.
func (s *Source) keys(ctx context.Context, ordinals []int64) ([]string, error) {
	set, err := dataset.Open(s.Manifest, s.Resolver, s.Cache, dataset.OpenOptions{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = set.Close() }()
	samples, release, err := set.Read(ctx, ordinals, func(string) bool { return false })
	if err != nil {
		return nil, err
	}
	defer release()
	keys := make([]string, len(samples))
	for i := range samples {
		keys[i] = samples[i].Key
	}
	return keys, nil
}
