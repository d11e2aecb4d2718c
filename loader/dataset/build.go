package dataset

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/store"
)

// Progress is how far a build has come.
type Progress struct {
	// ShardsDone and ShardsTotal count shards. The total is 0 while an image folder is being listed.
	ShardsDone, ShardsTotal int
	// Samples is the number of samples found so far, Bytes the stored size of the shards done.
	Samples, Bytes int64
	// Done is set in the last report.
	Done bool
}

// BuildOptions say how a manifest is built. The zero value is strict.
type BuildOptions struct {
	// Concurrency is the number of shards that are indexed at once; default 32.
	Concurrency int
	// Unpinned allows shards whose store gives no version.
	Unpinned bool
	// TolerateMissing goes on without shards that a pattern or list names but that don't exist; they are listed in the manifest.
	TolerateMissing bool
	// TolerateDamaged keeps the samples before the cut of a damaged shard, and leaves out samples that
	// contradict themselves; the shards are listed in the manifest.
	TolerateDamaged bool
	// OnProgress is called after each shard, in an image folder after every 10,000 images too, and at
	// the end, by one goroutine at a time. It must not block.
	OnProgress func(Progress)
}

// Build makes the manifest of source from nothing: every shard is scanned. Manifest and indexes are
// kept in cache, which may be nil.
//
// An entry of source is a shard, a brace pattern of shards (see store.Expand), a directory of shards, a
// folder of media, or a list of files; these two stand alone. All shards have one format, which their names tell. Missing shards are a [*MissingError].
func Build(ctx context.Context, r *store.Resolver, source []string, cache *Cache, o BuildOptions) (*Manifest, error) {
	return build(ctx, r, source, cache, o, false)
}

// BuildOrLoad is Build, but scans only shards whose pin is not the one that is remembered in cache.
// The source is listed again in any case: where nothing has changed, the manifest is the same.
func BuildOrLoad(ctx context.Context, r *store.Resolver, source []string, cache *Cache, o BuildOptions) (*Manifest, error) {
	return build(ctx, r, source, cache, o, true)
}

func build(ctx context.Context, r *store.Resolver, source []string, cache *Cache, o BuildOptions, reuse bool) (*Manifest, error) {
	if o.Concurrency <= 0 {
		o.Concurrency = 32
	}
	uris, err := canonicalSource(source)
	if err != nil {
		return nil, err
	}
	b := &building{r: r, cache: cache, opts: o, reuse: reuse, source: uris, progress: progress{fn: o.OnProgress}}
	m, err := b.run(ctx)
	if err != nil {
		return nil, err
	}
	return m, cache.putManifest(uris, m)
}

// building is one build in progress.
type building struct {
	r      *store.Resolver
	cache  *Cache
	opts   BuildOptions
	reuse  bool
	source []string

	progress progress
	beside   neighbours
}

func (b *building) run(ctx context.Context) (*Manifest, error) {
	shards, missing, m, err := b.locate(ctx)
	if err != nil {
		return nil, err
	}
	if m != nil { // A folder or a list: to look it up was all there is to do.
		b.progress.now.ShardsTotal = len(m.Shards)
	} else {
		b.progress.now.ShardsTotal = len(shards)
		b.progress.report()
		if m, err = b.index(ctx, shards); err != nil {
			return nil, err
		}
		m.Missing = missing
	}
	if err := m.check(); err != nil {
		return nil, err
	}
	b.progress.now.Done = true
	b.progress.report()
	return m, nil
}

// locate finds the shards of the source, or the manifest of a folder or a list.
func (b *building) locate(ctx context.Context) (shards []listed, missing []string, folder *Manifest, err error) {
	var named []string // shards by name, not yet looked up
	flush := func() error {
		found, gone, err := lookup(ctx, b.r, named, b.opts.Concurrency)
		shards, missing, named = append(shards, found...), append(missing, gone...), nil
		return err
	}
	for _, uri := range b.source {
		if compressionOf(uri) != notShard {
			named = append(named, uri)
			continue
		}
		if err := flush(); err != nil {
			return nil, nil, nil, err
		}
		if isList(uri) {
			if len(b.source) > 1 {
				return nil, nil, nil, errkind.Errorf(errkind.Invalid, "%s is a list of files; it can't be joined with other entries in one source, make it a mixture", uri)
			}
			m, err := b.list(ctx, uri)
			return nil, nil, m, err
		}
		d, err := b.scanDirectory(ctx, uri)
		if err != nil {
			return nil, nil, nil, err
		}
		if len(d.shards) == 0 {
			if len(b.source) > 1 {
				return nil, nil, nil, errkind.Errorf(errkind.Invalid, "%s is a folder of files; a folder can't be joined with other entries in one source, make it a mixture", uri)
			}
			return nil, nil, d.folder(), nil
		}
		shards = append(shards, d.shards...)
	}
	if err := flush(); err != nil {
		return nil, nil, nil, err
	}
	return shards, missing, nil, b.checkShards(shards, missing)
}

func (b *building) checkShards(shards []listed, missing []string) error {
	if len(missing) > 0 && (!b.opts.TolerateMissing || len(shards) == 0) {
		return errkind.With(errkind.NotFound, &MissingError{URIs: missing, Total: len(missing) + len(shards)})
	}
	seen := make(map[string]bool, len(shards))
	for _, s := range shards {
		if seen[s.uri] {
			return errkind.Errorf(errkind.Invalid, "the source names %s twice", s.uri)
		}
		seen[s.uri] = true
		if s.pin == "" && !b.opts.Unpinned {
			return unpinnedError(s.uri)
		}
	}
	return nil
}

// index makes the manifest of shards, scanning those that are not remembered.
func (b *building) index(ctx context.Context, shards []listed) (*Manifest, error) {
	name, err := commonFormat(shards)
	if err != nil {
		return nil, err
	}
	m := &Manifest{Format: name, Shards: make([]Shard, len(shards))}
	prior := b.prior()
	damage := make([][]error, len(shards))
	skipped := make([]int64, len(shards))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(b.opts.Concurrency)
	for i, s := range shards {
		if old, ok := prior[s.uri]; ok && old.Pin == s.pin && old.Size == s.size {
			m.Shards[i] = old
			b.progress.add(1, old.NumSamples, old.Size)
			continue
		}
		if gctx.Err() != nil {
			break
		}
		g.Go(func() error {
			out, err := b.scan(gctx, s)
			if err != nil {
				return err
			}
			m.Shards[i] = shardOf(s, out.raw, out.samples, out.data)
			damage[i], skipped[i] = out.damage, out.skipped
			b.progress.add(1, out.samples, s.size)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("indexing %d shards: %w", len(shards), err)
	}
	for i, errs := range damage {
		for _, err := range errs {
			m.Damaged = append(m.Damaged, Damage{URI: shards[i].uri, Reason: err.Error()})
		}
	}
	return m, noSamples(m, skipped)
}

// commonFormat is the format of all shards. A source has one: its samples must have the same fields.
func commonFormat(shards []listed) (string, error) {
	first := typeOf(shards[0].uri)
	for _, s := range shards {
		if t := typeOf(s.uri); t.name() != first.name() {
			return "", errkind.Errorf(errkind.Invalid, "the source names shards of two formats, %s (%s) and %s (%s); make it a mixture of two sources",
				shards[0].uri, first.name(), s.uri, t.name())
		}
	}
	return first.name(), nil
}

// scan is the index of one shard, remembered or made.
func (b *building) scan(ctx context.Context, s listed) (*scanned, error) {
	if b.reuse {
		if x := b.cache.whole(s.uri, s.pin); x != nil {
			return &scanned{raw: x.raw, samples: x.NumSamples(), data: x.data}, nil
		}
	}
	out, err := scanShard(ctx, b.r, s, &b.beside, b.opts.TolerateDamaged)
	if err != nil {
		return nil, err
	}
	return out, b.cache.putIndex(s.uri, s.pin, out.raw, len(out.damage) == 0)
}

// prior are the shards of the remembered manifest that can be taken over. Damaged ones can't: whether
// they are tolerated is asked each time.
func (b *building) prior() map[string]Shard {
	out := map[string]Shard{}
	if !b.reuse {
		return out
	}
	m := b.cache.manifest(b.source)
	if m == nil || isFolder(m.Format) {
		return out
	}
	for _, s := range m.Shards {
		if s.Pin != "" {
			out[s.URI] = s
		}
	}
	for _, d := range m.Damaged {
		delete(out, d.URI)
	}
	return out
}

func noSamples(m *Manifest, skipped []int64) error {
	if m.NumSamples() > 0 {
		return nil
	}
	var members int64
	for _, n := range skipped {
		members += n
	}
	if m.Format != FormatWebDataset {
		return errkind.Errorf(errkind.Invalid, "%s: no samples: the %d shards have no rows", m.Shards[0].URI, len(m.Shards))
	}
	if members > 0 {
		return errkind.Errorf(errkind.Invalid, "%s: no samples in %d shards: of %d files none is named key.extension", m.Shards[0].URI, len(m.Shards), members)
	}
	return errkind.Errorf(errkind.Invalid, "%s: no samples: the %d shards are empty", m.Shards[0].URI, len(m.Shards))
}
