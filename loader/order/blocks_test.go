package order

import "testing"

// Whatever a partition takes lies in the blocks of its window, and all windows together have each sample once.
func TestWindowBlocksHoldTheSamplesOfTheirWindow(t *testing.T) {
	l := Layout{Shuffle: ShuffleBlock, NumSamples: 1003, BlockSamples: 5, WindowBlocks: 8, Lanes: 4, PartitionSamples: 10}
	e := l.Epoch(3, 1)
	inWindow := make([]int64, l.NumSamples)
	for i := range inWindow {
		inWindow[i] = -1
	}
	for w := range e.NumWindows() {
		for _, r := range e.WindowBlocks(w) {
			for s := r.First; s < r.First+r.NumSamples; s++ {
				if inWindow[s] != -1 {
					t.Fatalf("sample %d is in windows %d and %d", s, inWindow[s], w)
				}
				inWindow[s] = w
			}
		}
	}
	for p := range e.NumPartitions() {
		for _, s := range e.Samples(p, nil) {
			if want := e.Partition(p).Window; inWindow[s] != want {
				t.Fatalf("sample %d of window %d is in the blocks of window %d", s, want, inWindow[s])
			}
		}
	}
	if e.WindowBlocks(-1) != nil || e.WindowBlocks(e.NumWindows()) != nil {
		t.Error("windows that do not exist have blocks")
	}
	l.Shuffle, l.Lanes = ShuffleFull, 1
	if l.Epoch(3, 1).WindowBlocks(0) != nil {
		t.Error("a full shuffle has blocks")
	}
}
