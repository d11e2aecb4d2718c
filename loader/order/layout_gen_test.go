package order

import "pgregory.net/rapid"

// drawLayout is a valid layout of at most about 3,000 samples.
func drawLayout(t *rapid.T) Layout {
	l := Layout{
		Shuffle:      Shuffle(rapid.IntRange(1, 3).Draw(t, "shuffle")),
		BlockSamples: rapid.Int64Range(1, 12).Draw(t, "block"),
		WindowBlocks: rapid.Int64Range(1, 9).Draw(t, "window"),
		Lanes:        1,
	}
	window := l.WindowSamples()
	var divisors []int64
	for k := int64(1); k <= window; k++ {
		if window%k == 0 {
			divisors = append(divisors, k)
		}
	}
	l.PartitionSamples = rapid.SampledFrom(divisors).Draw(t, "partition")
	if l.Shuffle == ShuffleBlock {
		l.Lanes = rapid.Int64Range(1, 6).Draw(t, "lanes")
	}
	least := int64(1)
	if l.Lanes > 1 {
		least = l.Lanes * window
	}
	l.NumSamples = rapid.Int64Range(least, least+window*20).Draw(t, "samples")
	return l
}

func drawEpoch(t *rapid.T) *Epoch {
	l := drawLayout(t)
	if err := l.Validate(); err != nil {
		t.Fatalf("drew an invalid layout: %v", err)
	}
	return l.Epoch(rapid.Uint64().Draw(t, "seed"), rapid.Uint64().Draw(t, "epoch"))
}

// stream is the whole order of e.
func stream(e *Epoch) []int64 {
	var all []int64
	for p := range e.NumPartitions() {
		all = e.Samples(p, all)
	}
	return all
}
