package dataset_test

import (
	"crypto/md5" //nolint:gosec // what etags look like
	"encoding/hex"
	"fmt"
	"runtime"
	"testing"

	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/dataset/datasettest"
	"github.com/millrace/millrace/loader/order"
)

// billion is a manifest of 10^9 samples in 10^5 shards, as it is kept.
func billion() []byte {
	m := &dataset.Manifest{Format: dataset.FormatWebDataset}
	for i := range 100_000 {
		pin := md5.Sum(fmt.Append(nil, i)) //nolint:gosec // no secret
		m.Shards = append(m.Shards, dataset.Shard{
			URI: fmt.Sprintf("s3://a-bucket/datasets/pictures/train/part-%06d-of-100000.tar", i), Size: 1_200_000_000,
			Pin: hex.EncodeToString(pin[:]) + "-144", NumSamples: 10_000, DataBytes: 1_190_000_000, Index: pin,
		})
	}
	return m.Encode()
}

// heldAfter is how many bytes of the heap live on after do, beside what did before.
func heldAfter(do func()) int64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	do()
	runtime.GC()
	runtime.ReadMemStats(&after)
	return int64(after.HeapAlloc) - int64(before.HeapAlloc)
}

// What a dispatcher knows of a dataset, a worker's way to its samples, and the order of an epoch take memory by the shard, not by
// the sample: 10^9 of them fit 64 MB.
func TestABillionSamplesFitInLittleMemory(t *testing.T) {
	raw := billion()
	r := datasettest.Resolver(t, nil)
	var d *dataset.Dataset
	var e *order.Epoch
	held := heldAfter(func() {
		m, err := dataset.DecodeManifest(raw)
		if err != nil {
			t.Fatal(err)
		}
		l, err := order.Plan(order.Sizing{Shuffle: order.ShuffleBlock, NumSamples: m.NumSamples(), TotalBytes: m.DataBytes()})
		if err != nil {
			t.Fatal(err)
		}
		d, e = datasettest.Open(t, m, r, nil, dataset.OpenOptions{}), l.Epoch(1, 0)
		for p := int64(0); p < e.NumPartitions(); p += e.NumPartitions() / 1000 {
			for _, ordinal := range e.Samples(p, nil) {
				if shard, at := d.Locate(ordinal); int64(shard)*10_000+at != ordinal {
					t.Fatalf("sample %d is said to be number %d of shard %d", ordinal, at, shard)
				}
			}
		}
	})
	if d.NumSamples() != 1e9 || held > 64_000_000 {
		t.Errorf("%d samples hold %d bytes", d.NumSamples(), held)
	}
	runtime.KeepAlive(raw) // It was there before, and shall not be missing after.
	t.Logf("%d bytes for %d samples, %d partitions", held, d.NumSamples(), e.NumPartitions())
}
