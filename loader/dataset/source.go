package dataset

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/store"
)

// listed is a shard that was found, before it is indexed.
type listed struct {
	uri  string
	size int64
	pin  string
}

// MissingError says which shards of a source do not exist. It has the kind NotFound.
type MissingError struct {
	// URIs are all that are missing, in the order of the source.
	URIs []string
	// Total is the number of shards that the source names.
	Total int
}

// Error implements error: one line that names the first few.
func (e *MissingError) Error() string {
	const shown = 10
	names, more := e.URIs, ""
	if len(names) > shown {
		names, more = names[:shown], fmt.Sprintf(" and %d more", len(names)-shown)
	}
	if e.Total == 1 {
		return names[0] + ": no such file or object"
	}
	return fmt.Sprintf("%d of %d shards are missing: %s%s; bring them back, or tolerate missing shards to go on without them",
		len(e.URIs), e.Total, strings.Join(names, ", "), more)
}

// canonicalSource checks the entries of a source and expands their patterns.
func canonicalSource(source []string) ([]string, error) {
	if len(source) == 0 {
		return nil, errkind.Errorf(errkind.Invalid, "the source is empty: name a tar shard, a pattern such as train-{000000..000099}.tar, or a folder")
	}
	var uris []string
	seen := map[string]bool{}
	for _, s := range source {
		expanded, err := store.Expand(s)
		if err != nil {
			return nil, err
		}
		if len(uris)+len(expanded) > store.MaxExpansion {
			return nil, errkind.Errorf(errkind.Invalid, "the source names more than %d shards", store.MaxExpansion)
		}
		for _, u := range expanded {
			c, err := store.Canonical(u)
			if err != nil {
				return nil, err
			}
			if seen[c] {
				return nil, errkind.Errorf(errkind.Invalid, "the source names %s twice", c)
			}
			seen[c] = true
			uris = append(uris, c)
		}
	}
	return uris, nil
}

// lookup finds size and pin of uris, keeping their order, and says which are missing.
func lookup(ctx context.Context, r *store.Resolver, uris []string, concurrency int) (found []listed, missing []string, err error) {
	all := make([]listed, len(uris))
	known := make([]bool, len(uris))
	left, err := lookupByListing(ctx, r, uris, all, known)
	if err != nil {
		return nil, nil, err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(concurrency)
	for _, i := range left {
		g.Go(func() error {
			b, key, err := r.Resolve(gctx, uris[i])
			if err != nil {
				return err
			}
			a, err := b.Attributes(gctx, key)
			if errkind.Of(err) == errkind.NotFound {
				return nil
			}
			if err != nil {
				return fmt.Errorf("looking up %s: %w", uris[i], err)
			}
			all[i], known[i] = listed{uri: uris[i], size: a.Size, pin: a.Pin}, true
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, nil, err
	}
	for i, ok := range known {
		if ok {
			found = append(found, all[i])
		} else {
			missing = append(missing, uris[i])
		}
	}
	return found, missing, nil
}

// listingPays is the number of shards of one bucket from which one listing is asked for rather than
// each shard by itself.
const listingPays = 16

var errListingTooLong = errors.New("the listing holds too much else")

// lookupByListing fills in what listings of the common prefixes show, and returns the positions that
// are still open. Whatever fails here is asked for one by one: listing may be forbidden where reading is not.
func lookupByListing(ctx context.Context, r *store.Resolver, uris []string, all []listed, known []bool) (left []int, err error) {
	type group struct {
		bucket store.Bucket
		keys   map[string]int
		prefix string
	}
	var groups []*group
	byBucket := map[store.Bucket]*group{}
	for i, uri := range uris {
		b, key, err := r.Resolve(ctx, uri)
		if err != nil {
			return nil, err
		}
		g := byBucket[b]
		if g == nil {
			g = &group{bucket: b, keys: map[string]int{}, prefix: key}
			byBucket[b] = g
			groups = append(groups, g)
		}
		g.keys[key] = i
		g.prefix = commonPrefix(g.prefix, key)
	}
	for _, g := range groups {
		err, others := errListingTooLong, 0
		if len(g.keys) >= listingPays && g.prefix != "" {
			err = g.bucket.List(ctx, g.prefix, func(a store.Attributes) error {
				if i, ok := g.keys[a.Key]; ok {
					all[i], known[i] = listed{uri: uris[i], size: a.Size, pin: a.Pin}, true
					return nil
				}
				if others++; others > 1000+4*len(g.keys) {
					return errListingTooLong
				}
				return nil
			})
		}
		if err == nil {
			continue
		}
		for _, i := range g.keys {
			if !known[i] {
				left = append(left, i)
			}
		}
	}
	slices.Sort(left)
	return left, nil
}

func commonPrefix(a, b string) string {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return a[:n]
}

// progress reports to a caller, one call at a time.
type progress struct {
	mu  sync.Mutex
	fn  func(Progress)
	now Progress
}

func (p *progress) add(shards int, samples, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now.ShardsDone += shards
	p.now.Samples += samples
	p.now.Bytes += bytes
	p.report()
}

func (p *progress) report() {
	if p.fn != nil {
		p.fn(p.now)
	}
}
