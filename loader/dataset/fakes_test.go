package dataset_test

import (
	"context"
	"testing"

	"github.com/millrace/millrace/loader/store"
)

// resolverOf serves b as mem://data.
func resolverOf(t *testing.T, b store.Bucket) *store.Resolver {
	t.Helper()
	r := store.NewResolver(map[string]store.OpenFunc{"mem": func(context.Context, string) (store.Bucket, error) { return b, nil }})
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// plain is a bucket without the optional interfaces.
type plain struct {
	store.Bucket
}

// unpinned is a bucket of a store that knows no versions. It has none of the optional interfaces.
type unpinned struct {
	store.Bucket
}

func (u unpinned) Attributes(ctx context.Context, key string) (store.Attributes, error) {
	a, err := u.Bucket.Attributes(ctx, key)
	a.Pin = ""
	return a, err
}

func (u unpinned) List(ctx context.Context, prefix string, fn func(store.Attributes) error) error {
	return u.Bucket.List(ctx, prefix, func(a store.Attributes) error {
		a.Pin = ""
		return fn(a)
	})
}
