package dataset_test

import (
	"bytes"
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/klauspost/compress/gzip"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/dataset/datasettest"
	"github.com/millrace/millrace/loader/store"
	"github.com/millrace/millrace/loader/store/memstore"
)

// flipping turns over a bit of one byte of an object, in so many of the reads that hold it.
type flipping struct {
	store.Bucket
	key   string
	at    int64
	times atomic.Int64
}

func (f *flipping) ReadRange(ctx context.Context, key string, off int64, dst []byte) error {
	err := f.Bucket.ReadRange(ctx, key, off, dst)
	if i := f.at - off; err == nil && key == f.key && i >= 0 && i < int64(len(dst)) && f.times.Add(-1) >= 0 {
		dst[i] ^= 4
	}
	return err
}

// summed is a set with checksums, read through a bucket that flips a bit of the first member of sample 3.
func summed(t *testing.T) (*datasettest.Set, *flipping, *dataset.Dataset, *dataset.Cache) {
	t.Helper()
	set, cache := datasettest.Synthetic(t, 20, 7), newCache(t)
	f := &flipping{Bucket: set.Store, key: "train-000000.tar"}
	r := resolverOf(t, f)
	m, err := dataset.BuildOrLoad(t.Context(), r, set.Source, cache, dataset.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	v, err := dataset.Verify(t.Context(), r, m, cache, dataset.VerifyOptions{Fill: true})
	if err != nil || v.Filled != 3 || len(v.Wrong) != 0 {
		t.Fatalf("%+v, %v", v, err)
	}
	d := datasettest.Open(t, m, r, cache, dataset.OpenOptions{})
	f.at = read(t, d, []int64{3}, nil)[0].Fields[0].Offset + 5
	return set, f, d, cache
}

func TestAFlippedBitIsReadAgain(t *testing.T) {
	set, f, d, _ := summed(t)
	f.times.Store(1)
	datasettest.Check(t, read(t, d, upTo(20), nil), upTo(20), set.Samples)
	if s := d.Stats(); s.SumMisses != 1 || f.times.Load() >= 0 {
		t.Errorf("%d checksums did not fit, want 1", s.SumMisses)
	}
}

func TestDamageThatStaysIsOfItsSampleAlone(t *testing.T) {
	_, f, d, _ := summed(t)
	f.times.Store(1000)
	for i, s := range read(t, d, upTo(20), nil) {
		if i != 3 && s.Err != nil {
			t.Errorf("sample %d: %v", i, s.Err)
		}
		if i == 3 && (errkind.Of(s.Err) != errkind.BadData || !strings.Contains(s.Err.Error(), "train-000000.tar!000003") || !strings.Contains(s.Err.Error(), "checksum")) {
			t.Errorf("the damaged sample: %v", s.Err)
		}
	}
	// Who does not want the damaged member does not care.
	if s := read(t, d, []int64{3}, func(name string) bool { return name != "bin" })[0]; s.Err != nil {
		t.Error(s.Err)
	}
}

func TestCheckSaysWhatIsWrong(t *testing.T) {
	set, f, d, cache := summed(t)
	r := resolverOf(t, f)
	check := func(want ...string) {
		t.Helper()
		v, err := dataset.Verify(t.Context(), r, d.Manifest(), cache, dataset.VerifyOptions{Check: true})
		if err != nil || v.Checked != 3 || len(v.Wrong) != len(want) {
			t.Fatalf("%+v, %v", v, err)
		}
		for i, w := range want {
			if !strings.Contains(v.Wrong[i], w) {
				t.Errorf("%q does not say %q", v.Wrong[i], w)
			}
		}
	}
	check()
	f.times.Store(1 << 30)
	check("train-000000.tar!000003")
	f.times.Store(0)
	set.Store.Put("train-000001.tar", datasettest.Tar(t, set.Samples[:3]...))
	check("train-000001.tar changed")
	set.Store.Delete("train-000001.tar")
	check("train-000001.tar")
}

func TestCompressedShardsHaveChecksumsToo(t *testing.T) {
	samples := datasettest.Samples(9)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(datasettest.Tar(t, samples...)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	s, cache := memstore.New(), newCache(t)
	s.Put("a.tar.gz", packed.Bytes())
	r := datasettest.Resolver(t, map[string]*memstore.Store{"data": s})
	m, err := dataset.BuildOrLoad(t.Context(), r, []string{"mem://data/a.tar.gz"}, cache, dataset.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []dataset.VerifyOptions{{Fill: true}, {Check: true}} {
		if v, err := dataset.Verify(t.Context(), r, m, cache, o); err != nil || len(v.Wrong) != 0 || v.Filled+v.Summed != 1 {
			t.Errorf("%+v: %+v, %v", o, v, err)
		}
	}
	datasettest.Check(t, read(t, datasettest.Open(t, m, r, cache, dataset.OpenOptions{}), upTo(9), nil), upTo(9), samples)
}
