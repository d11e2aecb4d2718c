package diskcache

import (
	"context"
	"errors"
	"io"

	"github.com/millrace/millrace/loader/store"
)

// Opener opens buckets as open does, and looks for what they are asked in the cache first. name tells their store from
// others, such as "s3" or "s3 http://host:9000".
func (c *Cache) Opener(name string, open store.OpenFunc) store.OpenFunc {
	return func(ctx context.Context, authority string) (store.Bucket, error) {
		b, err := open(ctx, authority)
		if err != nil {
			return nil, err
		}
		pins, ok := b.(store.PinReader)
		ranges, ok2 := b.(store.RangesReader)
		if !ok || !ok2 {
			return b, nil // Without versions nothing can be kept, and it is not far away.
		}
		return &bucket{Bucket: b, pins: pins, ranges: ranges, cache: c, name: name + "://" + authority + "/"}, nil
	}
}

// Within opens buckets as open does, each with a Cache in dir of its own, which ends with it: those share directory and
// limit as processes do. name is as of [Cache.Opener].
func Within(dir string, limit int64, name string, open store.OpenFunc) store.OpenFunc {
	return func(ctx context.Context, authority string) (store.Bucket, error) {
		c, err := Open(dir, limit)
		if err != nil {
			return nil, err
		}
		b, err := c.Opener(name, open)(ctx, authority)
		if over, ok := b.(*bucket); ok && err == nil {
			over.close = c.Close
			return b, nil
		}
		return b, errors.Join(err, c.Close())
	}
}

// bucket is a bucket with a cache in front. Reads of no certain version pass it by.
type bucket struct {
	store.Bucket

	pins   store.PinReader
	ranges store.RangesReader
	cache  *Cache
	name   string
	close  func() error // nil: the cache is another's
}

// Close implements store.Bucket.
func (b *bucket) Close() error {
	err := b.Bucket.Close()
	if b.close != nil {
		err = errors.Join(err, b.close())
	}
	return err
}

var (
	_ store.Opener       = (*bucket)(nil)
	_ store.PinReader    = (*bucket)(nil)
	_ store.RangesReader = (*bucket)(nil)
)

// Open implements store.Opener. Streams are of no certain version, and are mostly read once.
func (b *bucket) Open(ctx context.Context, key string, off int64) (io.ReadCloser, error) {
	if o, ok := b.Bucket.(store.Opener); ok {
		return o.Open(ctx, key, off)
	}
	a, err := b.Attributes(ctx, key)
	if err != nil {
		return nil, err
	}
	return store.OpenStream(ctx, b.Bucket, key, off, a.Size)
}

// ReadPinned implements store.PinReader.
func (b *bucket) ReadPinned(ctx context.Context, key, pin string, off int64, dst []byte) error {
	if !b.cache.keeps(pin, len(dst)) {
		return b.pins.ReadPinned(ctx, key, pin, off, dst)
	}
	path := b.cache.path(b.name+key, pin, off, len(dst))
	if b.cache.get(path, dst) {
		return nil
	}
	err := b.pins.ReadPinned(ctx, key, pin, off, dst)
	if err == nil {
		b.cache.put(path, dst)
	}
	return err
}

// ReadRanges implements store.RangesReader.
func (b *bucket) ReadRanges(ctx context.Context, ranges []store.Range) error {
	missing := make([]store.Range, 0, len(ranges))
	paths := make([]string, 0, len(ranges))
	for _, q := range ranges {
		path := ""
		if b.cache.keeps(q.Pin, len(q.Dst)) {
			if path = b.cache.path(b.name+q.Key, q.Pin, q.Off, len(q.Dst)); b.cache.get(path, q.Dst) {
				continue
			}
		}
		missing, paths = append(missing, q), append(paths, path)
	}
	if len(missing) == 0 {
		return nil
	}
	if err := b.ranges.ReadRanges(ctx, missing); err != nil {
		return err
	}
	for i, q := range missing {
		if paths[i] != "" {
			b.cache.put(paths[i], q.Dst)
		}
	}
	return nil
}
