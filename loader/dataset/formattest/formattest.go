// Package formattest holds the laws that every format of shards must keep, over every kind of store.
package formattest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/dataset/format"
	"github.com/millrace/millrace/loader/store"
	"github.com/millrace/millrace/loader/store/filestore"
	"github.com/millrace/millrace/loader/store/s3store"
	"github.com/millrace/millrace/loader/store/storetest/s3servers"
)

// Row is a sample: its fields by name. Those that are null are not there.
type Row map[string]string

// Set is a dataset in one format.
type Set struct {
	// Files are the objects by name, in the order of the source.
	Files map[string][]byte
	// Source names the shards below the set's directory; empty: the directory itself.
	Source []string
	// Format is what the manifest calls it.
	Format string
	// Rows are the samples, in the order of the manifest.
	Rows []Row
}

// Check holds a set to the laws over files and, where servers names a directory of S3 servers, over S3.
func Check(t *testing.T, servers string, s Set) {
	t.Helper()
	dir := t.TempDir()
	bucket := filepath.Join(dir, "data")
	if err := os.Mkdir(bucket, 0o750); err != nil {
		t.Fatal(err)
	}
	for name, data := range s.Files {
		path := filepath.Join(bucket, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("file", func(t *testing.T) {
		s.check(t, store.NewResolver(map[string]store.OpenFunc{"file": filestore.Open}), bucket)
	})
	if servers == "" {
		return
	}
	t.Run("s3", func(t *testing.T) {
		isolate(t)
		server, err := s3servers.Versity(t.Context(), filepath.Join(servers, "versitygw"), dir, t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(server.Stop)
		stores := s3store.New(s3store.Options{Endpoint: server.Endpoint})
		s.check(t, store.NewResolver(map[string]store.OpenFunc{"s3": stores.Open}), "s3://data")
	})
}

// isolate keeps the credentials of whoever runs the tests out of them.
func isolate(t *testing.T) {
	t.Helper()
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": s3servers.AccessKey, "AWS_SECRET_ACCESS_KEY": s3servers.SecretKey, "AWS_SESSION_TOKEN": "",
		"AWS_CONFIG_FILE": filepath.Join(t.TempDir(), "none"), "AWS_SHARED_CREDENTIALS_FILE": filepath.Join(t.TempDir(), "none"),
		"AWS_EC2_METADATA_DISABLED": "true", "AWS_PROFILE": "", "AWS_REGION": "", "AWS_ENDPOINT_URL": "", "AWS_ENDPOINT_URL_S3": "",
	} {
		t.Setenv(name, value)
	}
}

func (s Set) check(t *testing.T, r *store.Resolver, base string) {
	t.Helper()
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	source := []string{base}
	if len(s.Source) > 0 {
		source = nil
		for _, name := range s.Source {
			source = append(source, base+"/"+name)
		}
	}
	cache, err := dataset.NewCache(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	m, err := dataset.Build(t.Context(), r, source, cache, dataset.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if m.Format != s.Format || m.NumSamples() != int64(len(s.Rows)) {
		t.Fatalf("%d samples of format %s, want %d of %s", m.NumSamples(), m.Format, len(s.Rows), s.Format)
	}
	for _, c := range []struct {
		how   string
		cache *dataset.Cache
		opts  dataset.OpenOptions
	}{
		{"indexes from the cache", cache, dataset.OpenOptions{}},
		{"indexes made again, no room for blocks, one request at a time", nil, dataset.OpenOptions{BlockBytes: 1, IndexBytes: 1, Concurrency: 1, RequestBytes: 5000}},
	} {
		d, err := dataset.Open(m, r, c.cache, c.opts)
		if err != nil {
			t.Fatal(err)
		}
		s.reads(t, d, c.how)
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	again, err := dataset.BuildOrLoad(t.Context(), r, source, cache, dataset.BuildOptions{})
	if err != nil || again.ID() != m.ID() {
		t.Errorf("the manifest of what did not change: %v, or another id", err)
	}
}

// reads reads in order, in random orders with repetitions and choices of fields, by several readers at once.
func (s Set) reads(t *testing.T, d *dataset.Dataset, how string) {
	t.Helper()
	all := make([]int64, len(s.Rows))
	names := map[string]bool{}
	for i := range all {
		all[i] = int64(i)
		for name := range s.Rows[i] {
			names[name] = true
		}
	}
	s.read(t, d, all, names, how)
	var wg sync.WaitGroup
	for reader := range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(reader), uint64(len(all)))) //nolint:gosec // a test's draws, of small numbers
			for range 3 {
				ordinals := make([]int64, 1+rng.IntN(min(40, len(all))))
				for i := range ordinals {
					ordinals[i] = rng.Int64N(int64(len(all)))
				}
				want := map[string]bool{}
				for _, name := range slices.Sorted(maps.Keys(names)) {
					if rng.IntN(2) == 0 {
						want[name] = true
					}
				}
				s.read(t, d, ordinals, want, how)
			}
		})
	}
	wg.Wait()
}

func (s Set) read(t *testing.T, d *dataset.Dataset, ordinals []int64, want map[string]bool, how string) {
	t.Helper()
	samples, release, err := d.Read(t.Context(), ordinals, func(name string) bool { return want[name] })
	defer release()
	if err != nil {
		t.Errorf("%s: %v", how, err)
		return
	}
	for i, got := range samples {
		expected := Row{}
		for name, value := range s.Rows[ordinals[i]] {
			if want[name] {
				expected[name] = value
			}
		}
		row := Row{}
		for _, f := range got.Fields {
			row[f.Name] = string(f.Data)
		}
		if diff := cmp.Diff(expected, row); diff != "" || got.Err != nil || got.Ordinal != ordinals[i] {
			t.Errorf("%s: sample %d (%s): %v (-want +got):\n%.2000s", how, ordinals[i], got.Key, got.Err, diff)
			return
		}
	}
}

// Bytes is an object in memory, for fuzzing indexers.
type Bytes []byte

// Name implements format.Object.
func (Bytes) Name() string { return "mem://data/" + url.PathEscape("fuzzed") }

// Size implements format.Object.
func (b Bytes) Size() int64 { return int64(len(b)) }

// ReadAt implements format.Object.
func (b Bytes) ReadAt(_ context.Context, off int64, dst []byte) error {
	if off < 0 || off+int64(len(dst)) > int64(len(b)) {
		return store.ShortRead("fuzzed", off, int64(len(dst)), int64(len(b)))
	}
	copy(dst, b[off:])
	return nil
}

// Open implements format.Object.
func (b Bytes) Open(context.Context) (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(b)), nil
}

// Survive indexes a shard of any bytes and reads all of it. Damage is an error of kind BadData (or Exhausted, or
// Invalid where something is not supported), of the shard or of a sample, and never anything else.
func Survive(t *testing.T, f format.Format, data []byte) {
	t.Helper()
	check := func(what string, err error) {
		t.Helper()
		if kind := errkind.Of(err); kind != errkind.BadData && kind != errkind.Exhausted && kind != errkind.Invalid {
			t.Errorf("%s: %v of kind %v", what, err, kind)
		}
	}
	x, err := f.Index(t.Context(), Bytes(data), func(error) error { return nil })
	if err != nil {
		check("index", err)
		return
	}
	s, err := f.Open(x.Raw)
	if err != nil {
		t.Fatalf("opening an index that was just made: %v", err)
	}
	if s.NumSamples() != x.Samples {
		t.Fatalf("%d samples, the index has %d", x.Samples, s.NumSamples())
	}
	if err := readAll(t, s, data); err != nil {
		check("read", err)
	}
}

// readAll decodes every unit of the first rows.
func readAll(t *testing.T, s format.Shard, data []byte) error {
	t.Helper()
	rows := make([]int64, min(s.NumSamples(), 1000))
	for i := range rows {
		rows[i] = int64(i)
	}
	wanted := make([]bool, len(s.Columns()))
	for i := range wanted {
		wanted[i] = true
	}
	units, err := s.Units(rows, wanted)
	if err != nil {
		return err
	}
	for _, u := range units {
		parts := make([][]byte, len(u.Ranges))
		for i, r := range u.Ranges {
			if r.Off < 0 || r.Len < 0 || r.Off+r.Len > int64(len(data)) {
				return fmt.Errorf("unit %d: %w", u.ID, format.Damaged("a range lies outside"))
			}
			parts[i] = slices.Clone(data[r.Off : r.Off+r.Len])
		}
		b, err := s.Decode(t.Context(), u, wanted, parts, 64<<20)
		if err != nil {
			return err
		}
		for row := u.First; row < u.First+min(u.Count, 1000); row++ {
			if err := b.Values(row, func(int, []byte) {}); err != nil {
				return err
			}
		}
	}
	return nil
}
