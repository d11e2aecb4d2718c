package order

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Law 1 and 2 at their root: an epoch holds every sample exactly once, and each access path tells the same order.
func TestEpochHoldsEverySampleOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := drawEpoch(t)
		all := stream(e)
		n := e.Layout().NumSamples
		if int64(len(all)) != n {
			t.Fatalf("%+v: %d samples in its partitions, want %d", e.layout, len(all), n)
		}
		seen := make([]bool, n)
		for pos, s := range all {
			if s < 0 || s >= n || seen[s] {
				t.Fatalf("%+v: sample %d at position %d is out of range or there twice", e.layout, s, pos)
			}
			seen[s] = true
			if got := e.Sample(int64(pos)); got != s {
				t.Fatalf("%+v: Sample(%d) = %d, Samples says %d", e.layout, pos, got, s)
			}
			if got := e.Position(s); got != int64(pos) {
				t.Fatalf("%+v: Position(%d) = %d, want %d", e.layout, s, got, pos)
			}
		}
	})
}

func TestPartitionsTileTheStream(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := drawEpoch(t)
		l := e.Layout()
		next := int64(0)
		taken := make([]int64, e.NumWindows()) // partitions of each window so far
		for p := range e.NumPartitions() {
			part := e.Partition(p)
			if part.Index != p || part.First != next {
				t.Fatalf("%+v: partition %d is %+v, want its first position to be %d", l, p, part, next)
			}
			if last := p == e.NumPartitions()-1; part.NumSamples != l.PartitionSamples && (!last || part.NumSamples < 1) {
				t.Fatalf("%+v: partition %d of %d has %d samples", l, p, e.NumPartitions(), part.NumSamples)
			}
			if part.InWindow != taken[part.Window] {
				t.Fatalf("%+v: partition %d is number %d of window %d after %d of it", l, p, part.InWindow, part.Window, taken[part.Window])
			}
			if got := e.PartitionAt(part.Window, part.InWindow); got != p {
				t.Fatalf("%+v: PartitionAt(%d, %d) = %d, want %d", l, part.Window, part.InWindow, got, p)
			}
			taken[part.Window]++
			next += part.NumSamples
		}
		if next != l.NumSamples {
			t.Fatalf("%+v: partitions end at %d", l, next)
		}
		for w, n := range taken {
			if got := e.WindowPartitions(int64(w)); got != n {
				t.Fatalf("%+v: WindowPartitions(%d) = %d, want %d", l, w, got, n)
			}
		}
	})
}

// What a worker has to hold for a window is its blocks and no more: they are whole, and no other window reads them.
func TestWindowsKeepToTheirBlocks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := drawEpoch(t)
		l := e.Layout()
		if l.Shuffle != ShuffleBlock {
			return
		}
		owner := map[int64]int64{}
		blocks := make([]map[int64]bool, e.NumWindows())
		for p := range e.NumPartitions() {
			w := e.Partition(p).Window
			if blocks[w] == nil {
				blocks[w] = map[int64]bool{}
			}
			for _, s := range e.Samples(p, nil) {
				b := s / l.BlockSamples
				if first, ok := owner[b]; ok && first != w {
					t.Fatalf("%+v: block %d is in windows %d and %d", l, b, first, w)
				}
				owner[b] = w
				blocks[w][b] = true
			}
		}
		short := l.NumSamples / l.BlockSamples // the index of the short block, if there is one
		for w, in := range blocks {
			if last := int64(w) == e.NumWindows()-1; !last && (int64(len(in)) != l.WindowBlocks || in[short]) {
				t.Fatalf("%+v: window %d of %d has %d blocks (short one: %v)", l, w, e.NumWindows(), len(in), in[short])
			}
		}
	})
}

// Away from the ends exactly Lanes windows are open (begun and not yet ended), and at the ends never more; the short
// window comes last, alone.
func TestExactlyLanesWindowsAreOpen(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := drawEpoch(t)
		l := e.Layout()
		full := l.NumSamples / l.WindowSamples()
		per := e.WindowPartitions(0)
		open, begun := map[int64]bool{}, int64(0)
		for p := range full * per {
			part := e.Partition(p)
			if part.Window >= full {
				t.Fatalf("%+v: the short window comes before partition %d of full windows", l, full*per)
			}
			if part.InWindow == 0 {
				if part.Window != begun {
					t.Fatalf("%+v: window %d begins after window %d", l, part.Window, begun-1)
				}
				begun++
				open[part.Window] = true
			}
			if int64(len(open)) > l.Lanes {
				t.Fatalf("%+v: %d windows are open at partition %d", l, len(open), p)
			}
			// One may have ended just before the next begins; with a partition or none per turn, two.
			if per >= 2*l.Lanes && begun >= l.Lanes && begun < full && int64(len(open)) < l.Lanes-1 {
				t.Fatalf("%+v: only %d windows are open at partition %d", l, len(open), p)
			}
			if part.InWindow == per-1 {
				delete(open, part.Window)
			}
		}
		for p := full * per; p < e.NumPartitions(); p++ {
			if part := e.Partition(p); part.Window != full || part.InWindow != p-full*per {
				t.Fatalf("%+v: partition %d is %+v, want it in the short window %d", l, p, part, full)
			}
		}
	})
}

// Every segment draws from exactly Lanes windows, and away from the ends holds one window's worth of partitions.
func TestEverySegmentDrawsFromAllLanes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := drawEpoch(t)
		l, per := e.Layout(), e.WindowPartitions(0)
		if l.Lanes == 1 || per < l.Lanes {
			return
		}
		v := e.lanes
		for m := range v.last + 1 {
			windows := map[int64]bool{}
			from, to := v.before(m), v.before(m)+v.segmentLength(m)
			for p := from; p < to; p++ {
				w := e.Partition(p).Window
				if w < m || w >= m+l.Lanes {
					t.Fatalf("%+v: window %d gives partition %d of segment %d", l, w, p, m)
				}
				windows[w] = true
			}
			if int64(len(windows)) != l.Lanes {
				t.Fatalf("%+v: segment %d draws from %d windows", l, m, len(windows))
			}
			if m >= l.Lanes-1 && m <= v.last-l.Lanes+1 && to-from != per {
				t.Fatalf("%+v: segment %d, away from the ends, has %d partitions, want %d", l, m, to-from, per)
			}
		}
	})
}

func TestOrderDependsOnSeedAndEpoch(t *testing.T) {
	for _, shuffle := range []Shuffle{ShuffleBlock, ShuffleFull} {
		l, err := Plan(Sizing{Shuffle: shuffle, NumSamples: 20000, TotalBytes: 20000 << 14})
		if err != nil {
			t.Fatal(err)
		}
		base := stream(l.Epoch(7, 0))
		if !slices.Equal(base, stream(l.Epoch(7, 0))) {
			t.Fatalf("%s: the same seed and epoch give two orders", shuffle)
		}
		for _, e := range []*Epoch{l.Epoch(7, 1), l.Epoch(8, 0), l.Epoch(0, 7)} {
			same := 0
			for i, s := range stream(e) {
				if s == base[i] {
					same++
				}
			}
			// Two unrelated permutations agree in one place on average.
			if same > 30 {
				t.Errorf("%s: seed %d epoch %d agrees with seed 7 epoch 0 in %d places", shuffle, e.seed, e.epoch, same)
			}
		}
	}
}

func TestShuffleNoneIsManifestOrder(t *testing.T) {
	l := Layout{Shuffle: ShuffleNone, NumSamples: 103, BlockSamples: 4, WindowBlocks: 3, Lanes: 1, PartitionSamples: 6}
	for i, s := range stream(l.Epoch(1, 2)) {
		if s != int64(i) {
			t.Fatalf("position %d holds sample %d", i, s)
		}
	}
}

func TestQuestionsOutsideTheEpochHaveNoAnswer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := drawEpoch(t)
		n := e.Layout().NumSamples
		far := rapid.Int64Min(0).Draw(t, "far")
		for _, outside := range []int64{-1, -1 - far, max(n, far)} {
			if got := e.Sample(outside); got != -1 {
				t.Fatalf("Sample(%d) = %d", outside, got)
			}
			if got := e.Position(outside); got != -1 {
				t.Fatalf("Position(%d) = %d", outside, got)
			}
			if got := e.Partition(outside); got.NumSamples != 0 || got.Window != -1 {
				t.Fatalf("Partition(%d) = %+v", outside, got)
			}
			if got := e.Samples(outside, nil); got != nil {
				t.Fatalf("Samples(%d) = %v", outside, got)
			}
			if a, b := e.PartitionAt(outside, 0), e.PartitionAt(0, outside); a != -1 || b != -1 {
				t.Fatalf("PartitionAt(%d, 0) = %d, PartitionAt(0, %d) = %d", outside, a, outside, b)
			}
		}
	})
}

// A trillion samples cost no memory and are still a permutation as far as can be seen.
func TestEpochOfATrillionSamples(t *testing.T) {
	for _, shuffle := range []Shuffle{ShuffleNone, ShuffleBlock, ShuffleFull} {
		l, err := Plan(Sizing{Shuffle: shuffle, NumSamples: 1e12 + 12345, TotalBytes: 1e12 * 100 << 10})
		if err != nil {
			t.Fatal(err)
		}
		e := l.Epoch(1, 1)
		for i := range int64(200) {
			pos := l.NumSamples / 199 * i
			if i == 199 {
				pos = l.NumSamples - 1
			}
			s := e.Sample(pos)
			if got := e.Position(s); got != pos {
				t.Fatalf("%s: position %d holds sample %d, which is at position %d", shuffle, pos, s, got)
			}
			p := e.Partition(pos / l.PartitionSamples)
			if got := e.PartitionAt(p.Window, p.InWindow); got != p.Index {
				t.Fatalf("%s: partition %d is %d of window %d, which is partition %d", shuffle, p.Index, p.InWindow, p.Window, got)
			}
			if got := e.Samples(p.Index, nil); got[pos-p.First] != s {
				t.Fatalf("%s: Samples(%d) has %d at position %d, want %d", shuffle, p.Index, got[pos-p.First], pos, s)
			}
		}
	}
}

func TestEpochOfAnInvalidLayoutPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("the zero layout made an epoch")
		}
	}()
	Layout{}.Epoch(0, 0)
}
