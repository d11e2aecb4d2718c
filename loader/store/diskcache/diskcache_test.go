package diskcache_test

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/store"
	"github.com/millrace/millrace/loader/store/diskcache"
	"github.com/millrace/millrace/loader/store/memstore"
	"github.com/millrace/millrace/loader/store/storetest"
)

// remote is a store in memory as if it were far away. It counts the ranges that it is asked for.
type remote struct {
	*memstore.Store
	asked atomic.Int64
}

func (r *remote) ReadPinned(ctx context.Context, key, pin string, off int64, dst []byte) error {
	r.asked.Add(1)
	return r.Store.ReadPinned(ctx, key, pin, off, dst)
}

func (r *remote) ReadRanges(ctx context.Context, ranges []store.Range) error {
	for _, q := range ranges {
		if err := r.ReadPinned(ctx, q.Key, q.Pin, q.Off, q.Dst); err != nil {
			return err
		}
	}
	return nil
}

func open(t *testing.T, dir string, limit int64) *diskcache.Cache {
	t.Helper()
	c, err := diskcache.Open(dir, limit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func cached(t *testing.T, c *diskcache.Cache, r *remote) store.Bucket {
	t.Helper()
	b, err := c.Opener("mem", func(context.Context, string) (store.Bucket, error) { return r, nil })(t.Context(), "data")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// content is bytes of an object that tell their place.
func content(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*131 + i>>8*7)
	}
	return b
}

// ranges are all of the object x, in pieces.
func ranges(pin string, size, piece int) (out []store.Range) {
	for off := 0; off < size; off += piece {
		out = append(out, store.Range{Key: "x", Pin: pin, Off: int64(off), Dst: make([]byte, min(piece, size-off))})
	}
	return out
}

func read(ctx context.Context, b store.Bucket, data []byte, qs []store.Range) error {
	many, ok := b.(store.RangesReader)
	if !ok {
		return fmt.Errorf("%T reads no ranges", b)
	}
	if err := many.ReadRanges(ctx, qs); err != nil {
		return err
	}
	for _, q := range qs {
		if !bytes.Equal(q.Dst, data[q.Off:][:len(q.Dst)]) {
			return fmt.Errorf("wrong bytes at %d", q.Off)
		}
	}
	return nil
}

func files(t *testing.T, dir string) (paths []string, total int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || e.Name() == "lock" {
			return err
		}
		info, err := e.Info()
		if err == nil {
			paths, total = append(paths, path), total+info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths, total
}

func TestACachedBucketKeepsTheLawsOfBuckets(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Subject {
		t.Helper()
		r := &remote{Store: memstore.New()}
		return storetest.Subject{
			Bucket: cached(t, open(t, t.TempDir(), 1<<30), r),
			Put:    func(_ *testing.T, key string, data []byte) { r.Put(key, data) },
			Delete: func(_ *testing.T, key string) { r.Delete(key) },
		}
	})
}

// What one process has read, another one does not ask the store for.
func TestRangesAreAskedForOnce(t *testing.T) {
	dir, r, data := t.TempDir(), &remote{Store: memstore.New()}, content(1<<20)
	r.Put("x", data)
	a, err := r.Attributes(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := read(t.Context(), cached(t, open(t, dir, 1<<30), r), data, ranges(a.Pin, len(data), 100_000)); err != nil {
			t.Fatal(err)
		}
	}
	if n := r.asked.Load(); n != 11 {
		t.Errorf("the store was asked for %d ranges, want 11", n)
	}
	// Another version is another range, small ones and those of any version are not kept.
	c := open(t, dir, 1<<30)
	b := cached(t, c, r)
	r.Put("x", data[:len(data)-1])
	if a, err = r.Attributes(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for _, q := range []store.Range{{Key: "x", Pin: a.Pin, Dst: make([]byte, 1000)}, {Key: "x", Dst: make([]byte, 100_000)}} {
			if err := read(t.Context(), b, data, []store.Range{q}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := read(t.Context(), b, data, ranges(a.Pin, 100_000, 100_000)); err != nil {
		t.Fatal(err)
	}
	if s := c.Stats(); s.Hits != 0 || s.Misses != 1 {
		t.Errorf("%+v, want one miss", s)
	}
}

// Each bit of a file counts: one that was turned over, or a file that is cut, is noticed, and the range is read anew.
func TestDamageIsNoticed(t *testing.T) {
	dir, r, data := t.TempDir(), &remote{Store: memstore.New()}, content(100_000)
	r.Put("x", data)
	a, err := r.Attributes(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	c := open(t, dir, 1<<30)
	b := cached(t, c, r)
	for i, damage := range []func(b []byte) []byte{
		func(b []byte) []byte { b[16+50_000] ^= 1; return b },
		func(b []byte) []byte { b[5] ^= 1; return b },
		func(b []byte) []byte { b[0] ^= 1; return b },
		func(b []byte) []byte { return b[:len(b)-1] },
		func([]byte) []byte { return nil },
	} {
		if err := read(t.Context(), b, data, ranges(a.Pin, len(data), len(data))); err != nil {
			t.Fatal(err)
		}
		paths, _ := files(t, dir)
		if len(paths) != 1 {
			t.Fatalf("%d files", len(paths))
		}
		whole, err := os.ReadFile(paths[0])
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(paths[0], damage(whole), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := read(t.Context(), b, data, ranges(a.Pin, len(data), len(data))); err != nil {
			t.Fatal(err)
		}
		if s := c.Stats(); s.Damaged != int64(i)+1 {
			t.Errorf("damage %d: %d files were found damaged", i, s.Damaged)
		}
	}
}

// However many share a directory, all files together keep to the limit, and everyone reads what was written.
func TestTheLimitHoldsForAll(t *testing.T) {
	const limit = 2 << 20
	dir, r, data := t.TempDir(), &remote{Store: memstore.New()}, content(6<<20)
	r.Put("x", data)
	a, err := r.Attributes(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	var caches []*diskcache.Cache
	for range 4 {
		caches = append(caches, open(t, dir, limit))
	}
	for round := range uint64(8) {
		var g errgroup.Group
		for i, c := range caches {
			b := cached(t, c, r)
			random := rand.New(rand.NewPCG(round, uint64(i)))
			g.Go(func() error {
				for range 20 {
					off := random.IntN(80) * 64 << 10
					if random.IntN(2) == 0 {
						off %= 512 << 10 // some are wanted more often
					}
					q := store.Range{Key: "x", Pin: a.Pin, Off: int64(off), Dst: make([]byte, 64<<10)}
					if err := read(t.Context(), b, data, []store.Range{q}); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		if _, total := files(t, dir); total > limit {
			t.Fatalf("%d bytes lie in the cache, the limit is %d", total, limit)
		}
	}
	var hits int64
	for _, c := range caches {
		hits += c.Stats().Hits
	}
	if hits == 0 {
		t.Error("nothing was found in the cache")
	}
	// A smaller limit holds from the start.
	open(t, dir, limit/4)
	if _, total := files(t, dir); total > limit/4 {
		t.Errorf("%d bytes are left", total)
	}
}

// What is opened within a directory is closed with its bucket.
func TestWithinOpensACacheForEachBucket(t *testing.T) {
	dir, r, data := t.TempDir(), &remote{Store: memstore.New()}, content(100_000)
	r.Put("x", data)
	a, err := r.Attributes(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	open := diskcache.Within(dir, 1<<30, "mem", func(context.Context, string) (store.Bucket, error) { return r, nil })
	for range 2 {
		b, err := open(t.Context(), "data")
		if err != nil {
			t.Fatal(err)
		}
		if err := read(t.Context(), b, data, ranges(a.Pin, len(data), len(data))); err != nil {
			t.Fatal(err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
	if n := r.asked.Load(); n != 1 {
		t.Errorf("the store was asked for %d ranges, want 1", n)
	}
	if _, err := diskcache.Within(dir, 10, "mem", nil)(t.Context(), "data"); errkind.Of(err) != errkind.Invalid {
		t.Errorf("a limit of 10 bytes: %v", err)
	}
}

// A directory that can't be written to costs nothing but the cache.
func TestAFullDiskIsNoError(t *testing.T) {
	dir, r, data := t.TempDir(), &remote{Store: memstore.New()}, content(100_000)
	r.Put("x", data)
	a, err := r.Attributes(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	c := open(t, dir, 1<<30)
	b := cached(t, c, r)
	for i := range 256 { // No folder can be made where a file lies.
		if err := os.WriteFile(filepath.Join(dir, "ranges-v1", fmt.Sprintf("%02x", i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := read(t.Context(), b, data, ranges(a.Pin, len(data), len(data))); err != nil {
		t.Fatal(err)
	}
	if s := c.Stats(); s.Failed != 1 {
		t.Errorf("%+v, want that one write failed", s)
	}
	if _, err := diskcache.Open(dir, 10); errkind.Of(err) != errkind.Invalid {
		t.Errorf("a limit of 10 bytes: %v", err)
	}
}
