package dataset_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/dataset/datasettest"
	"github.com/millrace/millrace/loader/store/faultstore"
	"github.com/millrace/millrace/loader/store/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func read(t *testing.T, d *dataset.Dataset, ordinals []int64, want func(string) bool) []dataset.Sample {
	t.Helper()
	samples, release, err := d.Read(t.Context(), ordinals, want)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return samples
}

func upTo(n int) []int64 {
	out := make([]int64, n)
	for i := range out {
		out[i] = int64(i)
	}
	return out
}

func newCache(t *testing.T) *dataset.Cache {
	t.Helper()
	c, err := dataset.NewCache(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestReadGivesTheWrittenBytesInAnyOrder(t *testing.T) {
	set := datasettest.Synthetic(t, 100, 17)
	d := set.Open(t)
	rapid.Check(t, func(r *rapid.T) {
		ordinals := rapid.SliceOfN(rapid.Int64Range(0, 99), 0, 60).Draw(r, "ordinals")
		samples, release, err := d.Read(t.Context(), ordinals, nil)
		if err != nil {
			r.Fatal(err)
		}
		datasettest.Check(t, samples, ordinals, set.Samples)
		release()
		release()
	})
}

func TestReadTakesOnlyTheFieldsThatAreWanted(t *testing.T) {
	set := datasettest.Synthetic(t, 20, 10)
	d := set.Open(t)
	for _, s := range read(t, d, []int64{13, 2}, func(f string) bool { return f == "cls" || f == "absent" }) {
		if len(s.Fields) != 1 || string(s.Fields[0].Data) != fmt.Sprint(s.Ordinal%10) {
			t.Errorf("sample %d: fields %+v", s.Ordinal, s.Fields)
		}
		if _, ok := s.Field("bin"); ok {
			t.Error("a field that was not wanted is there")
		}
	}
	s := read(t, d, []int64{13}, nil)[0]
	f, ok := s.Field("txt")
	if s.Key != "train-000001.tar!000013" || s.URI != "mem://data/train-000001.tar" || !ok || string(f.Data) != "sample 000013" {
		t.Errorf("sample %q of %q, txt %q", s.Key, s.URI, f.Data)
	}
	if none := read(t, d, []int64{0, 1}, func(string) bool { return false }); len(none) != 2 || len(none[0].Fields) != 0 {
		t.Errorf("no field wanted: %+v", none)
	}
}

func TestLocateAgreesWithTheManifest(t *testing.T) {
	set := datasettest.Synthetic(t, 50, 7)
	set.Store.Put("train-000003.tar", datasettest.Tar(t)) // A shard without samples in the middle.
	d := set.Open(t)
	var ordinal int64
	for shard, s := range d.Manifest().Shards {
		for i := range s.NumSamples {
			if gotShard, gotIndex := d.Locate(ordinal); gotShard != shard || gotIndex != i {
				t.Errorf("Locate(%d) = %d, %d; want %d, %d", ordinal, gotShard, gotIndex, shard, i)
			}
			ordinal++
		}
	}
	if ordinal != d.NumSamples() || ordinal != 43 {
		t.Errorf("%d samples by shards, %d by the dataset, want 43", ordinal, d.NumSamples())
	}
	for _, o := range []int64{-1, 43} {
		if _, _, err := d.Read(t.Context(), []int64{0, o}, nil); errkind.Of(err) != errkind.Invalid {
			t.Errorf("Read of %d: %v, want Invalid", o, err)
		}
	}
}

// Neighbours share requests, and what is read along stays within the bound.
func TestReadAmplificationIsBounded(t *testing.T) {
	var samples []datasettest.Sample
	for i := range 200 {
		samples = append(samples, datasettest.Sample{Key: fmt.Sprintf("%04d", i), Members: []datasettest.Member{
			{Ext: "jpg", Data: bytes.Repeat([]byte{byte(i)}, 20_000+i*97%5000)}, {Ext: "cls", Data: []byte("7")},
		}})
	}
	s := memstore.New()
	s.Put("a.tar", datasettest.Tar(t, samples...))
	r := datasettest.Resolver(t, map[string]*memstore.Store{"data": s})
	m, err := dataset.Build(t.Context(), r, []string{"mem://data/a.tar"}, nil, dataset.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name     string
		ordinals []int64
		requests int64
	}{
		{"all in order", upTo(200), 1},
		{"every second", func() (o []int64) {
			for i := int64(0); i < 200; i += 2 {
				o = append(o, i)
			}
			return o
		}(), 100},
		{"a random quarter", func() (o []int64) {
			for _, i := range rand.New(rand.NewPCG(1, 2)).Perm(200)[:50] {
				o = append(o, int64(i))
			}
			return o
		}(), 50},
	} {
		d := datasettest.Open(t, m, r, nil, dataset.OpenOptions{})
		datasettest.Check(t, read(t, d, c.ordinals, nil), c.ordinals, samples)
		st := d.Stats()
		if amplification := float64(st.BytesRead) / float64(st.BytesWanted); amplification > 1.15 || st.Requests > c.requests {
			t.Errorf("%s: amplification %.3f in %d requests, want at most 1.15 in %d", c.name, amplification, st.Requests, c.requests)
		}
	}
}

func TestReadsRunAtTheSameTime(t *testing.T) {
	set := datasettest.Synthetic(t, 120, 10)
	d := datasettest.Open(t, set.Build(t), set.Resolver, nil, dataset.OpenOptions{IndexBytes: 1, RequestBytes: 1000, Concurrency: 3})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 1))
			for range 10 {
				ordinals := make([]int64, 15)
				for j := range ordinals {
					ordinals[j] = rng.Int64N(120)
				}
				samples, release, err := d.Read(t.Context(), ordinals, nil)
				if err != nil {
					t.Error(err)
					return
				}
				for j, s := range samples {
					if f, _ := s.Field("bin"); !bytes.Equal(f.Data, set.Samples[ordinals[j]].Members[0].Data) {
						t.Errorf("sample %d has other bytes", ordinals[j])
					}
				}
				release()
			}
		})
	}
	wg.Wait()
}

func TestIndexesAreHeldWithinTheirBudget(t *testing.T) {
	set := datasettest.Synthetic(t, 200, 10)
	cache := newCache(t)
	m, err := dataset.Build(t.Context(), set.Resolver, set.Source, cache, dataset.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const budget = 5000
	d := datasettest.Open(t, m, set.Resolver, cache, dataset.OpenOptions{IndexBytes: budget})
	for i := range 20 {
		read(t, d, []int64{int64(i) * 10}, nil)
		if held := d.Stats().IndexBytes; held > budget {
			t.Fatalf("%d bytes of indexes are held, more than %d", held, budget)
		}
	}
	read(t, d, []int64{195}, nil)
	if st := d.Stats(); st.IndexLoads != 20 || st.IndexRebuilds != 0 {
		t.Errorf("%d loads and %d rebuilds, want 20 and 0: the last shard was held, and all were in the cache", st.IndexLoads, st.IndexRebuilds)
	}
}

func TestAChangedShardIsRefusedByName(t *testing.T) {
	set := datasettest.Synthetic(t, 30, 10)
	cache := newCache(t)
	m, err := dataset.Build(t.Context(), set.Resolver, set.Source, cache, dataset.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	opened := datasettest.Open(t, m, set.Resolver, cache, dataset.OpenOptions{})
	read(t, opened, []int64{11}, nil)
	same := datasettest.Tar(t, set.Samples[10:20]...)
	set.Store.Put("train-000001.tar", same)
	for name, d := range map[string]*dataset.Dataset{"in use": opened, "fresh": datasettest.Open(t, m, set.Resolver, cache, dataset.OpenOptions{})} {
		_, _, err := d.Read(t.Context(), []int64{12}, nil)
		if errkind.Of(err) != errkind.Conflict || !strings.Contains(err.Error(), "train-000001.tar changed since it was indexed: version was") {
			t.Errorf("%s, another version: %v", name, err)
		}
		read(t, d, []int64{5, 25}, nil) // The others are as they were.
	}
	set.Store.Put("train-000001.tar", append(same, 0))
	_, _, err = datasettest.Open(t, m, set.Resolver, cache, dataset.OpenOptions{}).Read(t.Context(), []int64{12}, nil)
	if want := fmt.Sprintf("size was %d, is %d; run millrace index again", len(same), len(same)+1); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("another size: %v, want %q", err, want)
	}
	set.Store.Delete("train-000001.tar")
	if _, _, err = opened.Read(t.Context(), []int64{12}, nil); errkind.Of(err) != errkind.NotFound {
		t.Errorf("deleted: %v, want NotFound", err)
	}
}

func TestAMissingOrForeignIndexIsMadeAgain(t *testing.T) {
	set := datasettest.Synthetic(t, 30, 10)
	dir := t.TempDir()
	cache, err := dataset.NewCache(dir)
	if err != nil {
		t.Fatal(err)
	}
	m, err := dataset.Build(t.Context(), set.Resolver, set.Source, cache, dataset.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	damaged := 0
	if err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		damaged++
		if damaged%2 == 0 {
			return os.Remove(path)
		}
		return os.WriteFile(path, []byte("garbage"), 0o600)
	}); err != nil {
		t.Fatal(err)
	}
	d := datasettest.Open(t, m, set.Resolver, cache, dataset.OpenOptions{})
	datasettest.Check(t, read(t, d, upTo(30), nil), upTo(30), set.Samples)
	if st := d.Stats(); damaged < 4 || st.IndexRebuilds != 3 {
		t.Errorf("%d files were damaged, %d indexes made again, want 3", damaged, st.IndexRebuilds)
	}
	again := datasettest.Open(t, m, set.Resolver, cache, dataset.OpenOptions{})
	read(t, again, upTo(30), nil)
	if st := again.Stats(); st.IndexRebuilds != 0 {
		t.Errorf("%d indexes made again although they were just cached", st.IndexRebuilds)
	}
}

func TestAManifestThatLiesAboutAnIndexIsRefused(t *testing.T) {
	set := datasettest.Synthetic(t, 10, 10)
	m := set.Build(t)
	m.Shards[0].Index[0] ^= 1
	d := datasettest.Open(t, m, set.Resolver, nil, dataset.OpenOptions{})
	if _, _, err := d.Read(t.Context(), []int64{0}, nil); errkind.Of(err) != errkind.Conflict {
		t.Errorf("Read: %v, want Conflict", err)
	}
	bad := &dataset.Manifest{Format: "parquet?"}
	if _, err := dataset.Open(bad, set.Resolver, nil, dataset.OpenOptions{}); errkind.Of(err) != errkind.BadData {
		t.Errorf("Open of an unknown format: %v, want BadData", err)
	}
}

func compress(t *testing.T, kind string, data []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	var w interface {
		Write(p []byte) (int, error)
		Close() error
	} = gzip.NewWriter(&buf)
	if kind == "zst" {
		z, err := zstd.NewWriter(&buf)
		if err != nil {
			t.Fatal(err)
		}
		w = z
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// compressedSet are three shards of ten samples each, compressed in the three ways there are.
func compressedSet(t *testing.T) (set *datasettest.Set, m *dataset.Manifest) {
	t.Helper()
	set = datasettest.Synthetic(t, 30, 10)
	set.Source = []string{"mem://data/a.tar.gz", "mem://data/b.tgz", "mem://data/c.tar.zst"}
	for i, name := range []string{"a.tar.gz", "b.tgz", "c.tar.zst"} {
		kind := name[len(name)-3:]
		set.Store.Put(name, compress(t, kind, datasettest.Tar(t, set.Samples[i*10:i*10+10]...)))
	}
	return set, set.Build(t)
}

func TestCompressedShardsReadLikePlainOnes(t *testing.T) {
	set, m := compressedSet(t)
	dir := t.TempDir()
	size := int64(len(datasettest.Tar(t, set.Samples[:10]...)))
	d := datasettest.Open(t, m, set.Resolver, nil, dataset.OpenOptions{SpillDir: dir, SpillBytes: 2*size + size/2})
	for range 3 {
		ordinals := []int64{29, 0, 15, 1, 28, 14, 2}
		datasettest.Check(t, read(t, d, ordinals, nil), ordinals, set.Samples)
	}
	if st := d.Stats(); st.SpillBytes == 0 || st.SpillBytes > 2*size+size/2 {
		t.Errorf("%d bytes of disk are taken, want some, and at most the limit", st.SpillBytes)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("files with names in the spill directory: %v, %v", left, err)
	}
}

// With room for one decompressed shard, readers of all three wait for each other and all come through.
func TestReadersShareScarceDisk(t *testing.T) {
	set, m := compressedSet(t)
	var largest int64
	for i := 0; i < 30; i += 10 {
		largest = max(largest, int64(len(datasettest.Tar(t, set.Samples[i:i+10]...))))
	}
	d := datasettest.Open(t, m, set.Resolver, nil, dataset.OpenOptions{SpillBytes: largest, SpillDir: t.TempDir()})
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			ordinals := []int64{int64(i), int64(i) + 10, int64(i) + 20}
			samples, release, err := d.Read(t.Context(), ordinals, nil)
			if err != nil {
				t.Error(err)
				return
			}
			for j, s := range samples {
				if f, _ := s.Field("bin"); !bytes.Equal(f.Data, set.Samples[ordinals[j]].Members[0].Data) {
					t.Errorf("sample %d has other bytes", ordinals[j])
				}
			}
			release()
		})
	}
	wg.Wait()
	if held := d.Stats().SpillBytes; held > largest {
		t.Errorf("%d bytes of disk are held, more than %d", held, largest)
	}
}

func TestACompressedShardThatChangedIsRefused(t *testing.T) {
	set, m := compressedSet(t)
	set.Store.Put("b.tgz", compress(t, "gz", datasettest.Tar(t, set.Samples[10:20]...)))
	cache := newCache(t)
	d := datasettest.Open(t, m, set.Resolver, cache, dataset.OpenOptions{SpillDir: t.TempDir()})
	if _, _, err := d.Read(t.Context(), []int64{12}, nil); errkind.Of(err) != errkind.Conflict || !strings.Contains(err.Error(), "b.tgz changed since it was indexed") {
		t.Errorf("Read: %v, want Conflict with the shard's name", err)
	}
	datasettest.Check(t, read(t, d, []int64{2}, nil), []int64{2}, set.Samples)
}

func TestACompressedShardBeyondTheDiskLimitIsRefused(t *testing.T) {
	set, m := compressedSet(t)
	d := datasettest.Open(t, m, set.Resolver, nil, dataset.OpenOptions{SpillBytes: 1000})
	_, _, err := d.Read(t.Context(), []int64{0}, nil)
	if errkind.Of(err) != errkind.Exhausted || !strings.Contains(err.Error(), "a.tar.gz!000000") {
		t.Errorf("Read: %v, want Exhausted with the sample's name", err)
	}
}

func TestOneReadIsBounded(t *testing.T) {
	set := datasettest.Synthetic(t, 30, 10)
	d := datasettest.Open(t, set.Build(t), set.Resolver, nil, dataset.OpenOptions{ReadBytes: 5000})
	if _, _, err := d.Read(t.Context(), upTo(30), nil); errkind.Of(err) != errkind.Exhausted {
		t.Errorf("Read of everything: %v, want Exhausted", err)
	}
	read(t, d, []int64{3}, nil)
}

// A store that can't check versions while it reads is asked for them when a shard is opened.
func TestPlainStoresAreCheckedWhenAShardIsOpened(t *testing.T) {
	set := datasettest.Synthetic(t, 20, 10)
	m := set.Build(t)
	r := resolverOf(t, plain{set.Store})
	datasettest.Check(t, read(t, datasettest.Open(t, m, r, nil, dataset.OpenOptions{}), upTo(20), nil), upTo(20), set.Samples)
	set.Store.Put("train-000001.tar", datasettest.Tar(t, set.Samples[10:20]...))
	d := datasettest.Open(t, m, r, nil, dataset.OpenOptions{})
	if _, _, err := d.Read(t.Context(), []int64{15}, nil); errkind.Of(err) != errkind.Conflict {
		t.Errorf("Read: %v, want Conflict", err)
	}
}

// Whatever the store does, a read gives the written bytes or the store's error.
func TestReadUnderFaultsIsExactOrFails(t *testing.T) {
	set := datasettest.Synthetic(t, 60, 10)
	m, exact, failed := set.Build(t), 0, 0
	for seed := range uint64(40) {
		b := faultstore.New(set.Store, seed, nil,
			faultstore.Rule{Probability: 0.05, Effect: faultstore.Effect{Err: errkind.Unavailable}},
			faultstore.Rule{Op: faultstore.ReadRange, Probability: 0.02, Effect: faultstore.Effect{Short: true}},
			faultstore.Rule{Op: faultstore.Attributes, Probability: 0.02, Effect: faultstore.Effect{Gone: true}})
		d := datasettest.Open(t, m, resolverOf(t, b), nil, dataset.OpenOptions{})
		for range 5 {
			samples, release, err := d.Read(t.Context(), upTo(60), nil)
			if err == nil {
				exact++
				datasettest.Check(t, samples, upTo(60), set.Samples)
			} else if failed++; !strings.Contains(err.Error(), "train-") || errkind.Of(err) == errkind.Unknown {
				t.Errorf("%v (%v) does not say of which kind and object it is", err, errkind.Of(err))
			}
			release()
		}
	}
	if exact == 0 || failed == 0 {
		t.Errorf("%d reads were exact, %d failed: the faults prove nothing", exact, failed)
	}
}

func TestReadEndsWithItsContext(t *testing.T) {
	set := datasettest.Synthetic(t, 30, 10)
	d := set.Open(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := d.Read(ctx, upTo(30), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Read: %v, want context.Canceled", err)
	}
	datasettest.Check(t, read(t, d, upTo(30), nil), upTo(30), set.Samples)
}

func TestFieldNamesComeFromTheIndex(t *testing.T) {
	d := datasettest.Synthetic(t, 5, 5).Open(t)
	names, err := d.FieldNames(t.Context(), 0)
	if diff := cmp.Diff([]string{"bin", "cls", "txt"}, names); diff != "" || err != nil {
		t.Errorf("FieldNames: %v (-want +got):\n%s", err, diff)
	}
	if _, err := d.FieldNames(t.Context(), 1); errkind.Of(err) != errkind.Invalid {
		t.Errorf("FieldNames of no shard: %v, want Invalid", err)
	}
}
