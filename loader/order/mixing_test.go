package order

import "testing"

// The promise of the block shuffle, on its hardest input: samples sorted by label, 1,000 classes, batches of 256.
// A uniform order has 226 classes in a batch.
func TestBatchesOfALabelSortedSetMixClasses(t *testing.T) {
	const classes, batch, batches = 1000, 256, 200
	imagenet, err := Plan(Sizing{Shuffle: ShuffleBlock, NumSamples: 1281167, TotalBytes: 1281167 * 110000})
	if err != nil {
		t.Fatal(err)
	}
	for name, l := range map[string]Layout{
		"2,560 blocks of 10": {
			Shuffle: ShuffleBlock, NumSamples: 25600, BlockSamples: 10,
			WindowBlocks: 128, Lanes: 4, PartitionSamples: 32,
		},
		"ImageNet": imagenet,
	} {
		sum, least := 0, batch
		perEpoch := l.NumSamples / batch
		for i := range int64(batches) {
			e, step := l.Epoch(1, uint64(i%4)), i*7919%perEpoch // batches from all over the epoch
			seen := map[int64]bool{}
			for pos := step * batch; pos < (step+1)*batch; pos++ {
				seen[e.Sample(pos)*classes/l.NumSamples] = true
			}
			sum += len(seen)
			least = min(least, len(seen))
		}
		mean := float64(sum) / batches
		t.Logf("%s: %.1f classes in a batch on average, %d at least", name, mean, least)
		if mean < 180 || least < 160 {
			t.Errorf("%s: batches hold %.1f classes on average and %d at least, want 180 and 160", name, mean, least)
		}
	}
}
