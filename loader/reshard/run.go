package reshard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/store"
)

// Options say what Run does.
type Options struct {
	// Shards are the URIs of tar archives; those of .tar.gz, .tgz and .tar.zst are written without compression.
	Shards []string
	// Dir is the local directory for the new ones, which have the names of the old.
	Dir    string
	Change Change
	// Concurrency is the number of shards done at a time.
	Concurrency int
	// OnProgress, if set, is told how many shards are done.
	OnProgress func(done int)
}

// Run writes all shards anew. A shard appears in Dir when it is whole; one that is there already is an error.
func Run(ctx context.Context, r *store.Resolver, o Options) error {
	names, err := newNames(o.Shards)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil { //nolint:gosec // Data sets are for others to read.
		return errkind.Errorf(errkind.Invalid, "making %s: %w", o.Dir, err)
	}
	for _, name := range names {
		if _, err := os.Lstat(filepath.Join(o.Dir, name)); err == nil {
			return errkind.Errorf(errkind.Conflict, "%s is already there; remove it, or name another directory", filepath.Join(o.Dir, name))
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(max(1, o.Concurrency))
	var done atomic.Int64
	for i, uri := range o.Shards {
		g.Go(func() error {
			if err := one(ctx, r, uri, filepath.Join(o.Dir, names[i]), o.Change); err != nil {
				return fmt.Errorf("resharding %s: %w", uri, err)
			}
			if n := done.Add(1); o.OnProgress != nil {
				o.OnProgress(int(n))
			}
			return nil
		})
	}
	return g.Wait()
}

// newNames are the names of the new shards.
func newNames(uris []string) ([]string, error) {
	names := make([]string, len(uris))
	seen := map[string]string{}
	for i, uri := range uris {
		name := path.Base(uri)
		for _, suffix := range []string{".gz", ".zst"} {
			name = strings.TrimSuffix(name, suffix)
		}
		if base, ok := strings.CutSuffix(name, ".tgz"); ok {
			name = base + ".tar"
		}
		if other, ok := seen[name]; ok {
			return nil, errkind.Errorf(errkind.Invalid, "%s and %s would both become %s; reshard them into two directories", other, uri, name)
		}
		seen[name] = uri
		names[i] = name
	}
	return names, nil
}

// one writes a shard under another name first, so that a run that is cut off leaves none that looks whole.
func one(ctx context.Context, r *store.Resolver, uri, to string, change Change) (err error) {
	in, err := open(ctx, r, uri)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	part := to + ".part"
	out, err := os.Create(part)
	if err != nil {
		return fmt.Errorf("writing: %w", err)
	}
	err = Copy(ctx, in, out, change)
	if err == nil {
		err = out.Sync()
	}
	if err = errors.Join(err, out.Close()); err == nil {
		err = os.Rename(part, to)
	}
	if err != nil {
		_ = os.Remove(part)
	}
	return err
}

// stream is an archive, decompressed.
type stream struct {
	io.Reader
	close func() error
}

func (s stream) Close() error { return s.close() }

// maxWindow bounds the memory of a zstd decoder.
const maxWindow = 128 << 20

func open(ctx context.Context, r *store.Resolver, uri string) (io.ReadCloser, error) {
	bucket, key, err := r.Resolve(ctx, uri)
	if err != nil {
		return nil, err
	}
	a, err := bucket.Attributes(ctx, key)
	if err != nil {
		return nil, err
	}
	body, err := store.OpenStream(ctx, bucket, key, 0, a.Size)
	if err != nil {
		return nil, err
	}
	switch lower := strings.ToLower(uri); {
	case strings.HasSuffix(lower, ".gz"), strings.HasSuffix(lower, ".tgz"):
		z, err := gzip.NewReader(body)
		if err != nil {
			return nil, errors.Join(errkind.Errorf(errkind.BadData, "it is no gzip: %w", err), body.Close())
		}
		return stream{z, body.Close}, nil
	case strings.HasSuffix(lower, ".zst"):
		z, err := zstd.NewReader(body, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, errors.Join(errkind.Errorf(errkind.BadData, "it is no zstd: %w", err), body.Close())
		}
		return stream{z, func() error { z.Close(); return body.Close() }}, nil
	}
	return body, nil
}
