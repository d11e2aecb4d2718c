package order

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/errkind"
)

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
)

func TestPlanDefaults(t *testing.T) {
	for name, c := range map[string]struct {
		sizing Sizing
		want   Layout
	}{
		"imagenet: 110 kB a sample": {
			Sizing{Shuffle: ShuffleBlock, NumSamples: 1281167, TotalBytes: 1281167 * 110000},
			Layout{ShuffleBlock, 1281167, 9, 128, 4, 18},
		},
		"tokens: 2 kB a sample, partitions of at most 1024": {
			Sizing{Shuffle: ShuffleBlock, NumSamples: 1e9, TotalBytes: 1e9 * 2 * kib},
			Layout{ShuffleBlock, 1e9, 500, 128, 4, 1000},
		},
		"videos: 20 MB a sample": {
			Sizing{Shuffle: ShuffleBlock, NumSamples: 100000, TotalBytes: 100000 * 20 * mib},
			Layout{ShuffleBlock, 100000, 1, 6, 4, 1},
		},
		"films: 1 GiB a sample": {
			Sizing{Shuffle: ShuffleBlock, NumSamples: 1000, TotalBytes: 1000 * gib},
			Layout{ShuffleBlock, 1000, 1, 2, 4, 1},
		},
		"cifar: windows shrink, and the block so that a divisor is near 682 and little is left over": {
			Sizing{Shuffle: ShuffleBlock, NumSamples: 50000, TotalBytes: 50000 * 3 * kib},
			Layout{ShuffleBlock, 50000, 312, 8, 4, 624},
		},
		"try-out of a hundred images: windows, then lanes": {
			Sizing{Shuffle: ShuffleBlock, NumSamples: 100, TotalBytes: 100 * 100 * kib},
			Layout{ShuffleBlock, 100, 10, 2, 1, 1},
		},
		"less than a window": {
			Sizing{Shuffle: ShuffleBlock, NumSamples: 640, TotalBytes: 640 * kib},
			Layout{ShuffleBlock, 640, 640, 2, 1, 10},
		},
		"one sample": {
			Sizing{Shuffle: ShuffleBlock, NumSamples: 1, TotalBytes: 5},
			Layout{ShuffleBlock, 1, 1, 2, 1, 1},
		},
		"full has one lane": {
			Sizing{Shuffle: ShuffleFull, NumSamples: 1281167, TotalBytes: 1281167 * 110000},
			Layout{ShuffleFull, 1281167, 9, 128, 1, 18},
		},
		"a prime window of one-sample blocks gives way": {
			Sizing{Shuffle: ShuffleNone, NumSamples: 1e6, TotalBytes: 1e6 * (mib + 8*kib), TargetPartitionBytes: 32 * mib},
			Layout{ShuffleNone, 1e6, 1, 124, 1, 31},
		},
		"given partition: the block gives way": {
			Sizing{Shuffle: ShuffleBlock, NumSamples: 1e6, TotalBytes: 1e6 * 100 * kib, PartitionSamples: 48},
			Layout{ShuffleBlock, 1e6, 9, 128, 4, 48},
		},
		"given partition: the window of a small set grows": {
			Sizing{Shuffle: ShuffleBlock, NumSamples: 200, TotalBytes: 200 * 100 * kib, PartitionSamples: 32},
			Layout{ShuffleBlock, 200, 8, 4, 1, 32},
		},
		"given partition holds all": {
			Sizing{Shuffle: ShuffleBlock, NumSamples: 10, TotalBytes: 10 * mib, PartitionSamples: 331},
			Layout{ShuffleBlock, 10, 331, 2, 1, 331},
		},
		"all given": {
			Sizing{Shuffle: ShuffleBlock, NumSamples: 1000, TotalBytes: 1000, PartitionSamples: 5, BlockSamples: 10, WindowBlocks: 7, Lanes: 9},
			Layout{ShuffleBlock, 1000, 10, 7, 9, 5},
		},
	} {
		got, err := Plan(c.sizing)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// Whatever the dataset, the default plan is valid, its windows fit, a quarter of the data is open at most, and a
// partition is near its target where the window has room for one.
func TestPlanKeepsItsRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(1, 1<<rapid.IntRange(1, 40).Draw(t, "scale")).Draw(t, "samples")
		mean := rapid.Int64Range(0, 1<<rapid.IntRange(1, 20).Draw(t, "mean scale")).Draw(t, "mean bytes")
		s := Sizing{Shuffle: Shuffle(rapid.IntRange(1, 3).Draw(t, "shuffle")), NumSamples: n, TotalBytes: n * mean}
		if rapid.Bool().Draw(t, "with target") {
			s.TargetPartitionBytes = rapid.Int64Range(1, 256*mib).Draw(t, "target")
		}
		l, err := Plan(s)
		if err != nil {
			t.Fatalf("%+v: %v", s, err)
		}
		if l.Validate() != nil {
			t.Fatalf("%+v: planned %+v: %v", s, l, l.Validate())
		}
		mean = max(mean, 1)
		if blocks := n / l.BlockSamples; l.WindowBlocks > 2 && l.Lanes*l.WindowBlocks*4 > blocks {
			t.Fatalf("%+v: %d lanes of %d blocks are open, of %d in all", s, l.Lanes, l.WindowBlocks, blocks)
		}
		if l.WindowBlocks > 128 || l.WindowBlocks < 2 || l.WindowBlocks > 2 && l.WindowSamples()*mean > 128*mib {
			t.Fatalf("%+v: windows of %d blocks, %d bytes", s, l.WindowBlocks, l.WindowSamples()*mean)
		}
		if l.BlockSamples > 1 && l.BlockSamples*mean > mib {
			t.Fatalf("%+v: blocks of %d bytes", s, l.BlockSamples*mean)
		}
		target := s.TargetPartitionBytes
		if target == 0 {
			target = 2 * mib
		}
		target = min(max(1, target/mean), 1024, max(1, n/64), l.WindowSamples())
		if l.PartitionSamples > target || l.PartitionSamples*2 < target {
			t.Fatalf("%+v: planned %+v: partitions of %d samples, the target is %d", s, l, l.PartitionSamples, target)
		}
	})
}

// Fields that are given come back unchanged, or the plan fails.
func TestPlanKeepsWhatIsGiven(t *testing.T) {
	given := func(t *rapid.T, name string, most int64) int64 {
		if rapid.Bool().Draw(t, "give "+name) {
			return rapid.Int64Range(1, most).Draw(t, name)
		}
		return 0
	}
	rapid.Check(t, func(t *rapid.T) {
		s := Sizing{
			Shuffle: ShuffleBlock, NumSamples: rapid.Int64Range(1, 1e6).Draw(t, "samples"),
			TotalBytes: rapid.Int64Range(0, 1e12).Draw(t, "bytes"), PartitionSamples: given(t, "partition", 300),
			BlockSamples: given(t, "block", 100), WindowBlocks: given(t, "window", 200), Lanes: given(t, "lanes", 8),
		}
		l, err := Plan(s)
		if err != nil {
			if errkind.Of(err) != errkind.Invalid {
				t.Fatalf("%+v: %v is of kind %v", s, err, errkind.Of(err))
			}
			return
		}
		for name, v := range map[string][2]int64{
			"partition": {s.PartitionSamples, l.PartitionSamples}, "block": {s.BlockSamples, l.BlockSamples},
			"window": {s.WindowBlocks, l.WindowBlocks}, "lanes": {s.Lanes, l.Lanes},
		} {
			if v[0] != 0 && v[0] != v[1] {
				t.Fatalf("%+v: %s of %d was planned as %d", s, name, v[0], v[1])
			}
		}
		if l.Validate() != nil {
			t.Fatalf("%+v: planned %+v: %v", s, l, l.Validate())
		}
	})
}

// A partition that is given alone is refused only where it is larger than any default window.
func TestPlanFitsAGivenPartition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, mean := rapid.Int64Range(1, 1e7).Draw(t, "samples"), rapid.Int64Range(1, 100*kib).Draw(t, "mean")
		s := Sizing{Shuffle: ShuffleBlock, NumSamples: n, TotalBytes: n * mean, PartitionSamples: rapid.Int64Range(1, 500).Draw(t, "k")}
		if _, err := Plan(s); err != nil {
			t.Fatalf("%+v: %v", s, err)
		}
	})
}

func TestPlanAndValidateSayWhatIsWrong(t *testing.T) {
	for want, s := range map[string]Sizing{
		"over 0 samples":                {Shuffle: ShuffleBlock},
		"no valid shuffle":              {NumSamples: 10},
		"total bytes is -1":             {Shuffle: ShuffleBlock, NumSamples: 10, TotalBytes: -1},
		"cannot be cut into partitions": {Shuffle: ShuffleBlock, NumSamples: 1e6, BlockSamples: 10, WindowBlocks: 10, PartitionSamples: 32},
		"need as many full windows":     {Shuffle: ShuffleBlock, NumSamples: 100, BlockSamples: 10, WindowBlocks: 5, Lanes: 3},
		"only shuffle block":            {Shuffle: ShuffleFull, NumSamples: 1e6, TotalBytes: 1e9, Lanes: 4},
		"larger than":                   {Shuffle: ShuffleBlock, NumSamples: 10, BlockSamples: 1 << 50, WindowBlocks: 1 << 20},
		"is not within 1 to 64":         {Shuffle: ShuffleBlock, NumSamples: 1e9, TotalBytes: 1e12, Lanes: 65},
	} {
		_, err := Plan(s)
		if err == nil || !strings.Contains(err.Error(), want) || errkind.Of(err) != errkind.Invalid {
			t.Errorf("%+v: error is %v of kind %v, want %q, Invalid", s, err, errkind.Of(err), want)
		}
	}
}

func TestNamesOfEnums(t *testing.T) {
	for _, s := range []Shuffle{ShuffleNone, ShuffleBlock, ShuffleFull} {
		if got, err := ParseShuffle(s.String()); got != s || err != nil {
			t.Errorf("ParseShuffle(%q) = %v, %v", s, got, err)
		}
	}
	for _, tail := range []Tail{TailPad, TailDrop, TailShort} {
		if got, err := ParseTail(tail.String()); got != tail || err != nil {
			t.Errorf("ParseTail(%q) = %v, %v", tail, got, err)
		}
	}
	if ShuffleInvalid.String() != "invalid" || Shuffle(9).String() != "invalid" || Tail(9).String() != "invalid" {
		t.Errorf("values that are none are named %v, %v, %v", ShuffleInvalid, Shuffle(9), Tail(9))
	}
	for in, want := range map[string]string{
		"blok": "did you mean block?", "FULL": "did you mean full?", "drp": "did you mean drop?",
		"reservoir": "choose one of none, block, full", "": "choose one of", strings.Repeat("block", 1e6): "choose one of",
	} {
		_, err := ParseShuffle(in)
		if in == "drp" {
			_, err = ParseTail(in)
		}
		if err == nil || !strings.Contains(err.Error(), want) || errkind.Of(err) != errkind.Invalid || len(err.Error()) > 150 {
			t.Errorf("%.20q: error is %v, want %q", in, err, want)
		}
	}
}

// On a set that is sorted by class, each batch of an epoch is mixed, those at its end too: a short window that is left over has
// no others beside it, so there is little of it.
func TestTheEndOfAnEpochIsMixedToo(t *testing.T) {
	const classes, batch = 1000, 256
	for _, c := range []struct{ samples, bytes int64 }{{25_600, 102_400}, {25_600, 110_000}, {26_000, 102_400}, {26_000, 110_000}, {50_000, 110_000}, {101_234, 110_000}} {
		l, err := Plan(Sizing{Shuffle: ShuffleBlock, NumSamples: c.samples, TotalBytes: c.samples * c.bytes})
		if err != nil {
			t.Fatal(err)
		}
		e := l.Epoch(1, 0)
		least, n, seen := batch, 0, map[int64]bool{}
		for p := range e.NumPartitions() {
			for _, ordinal := range e.Samples(p, nil) {
				seen[ordinal*classes/c.samples] = true
				if n++; n%batch == 0 {
					least = min(least, len(seen))
					clear(seen)
				}
			}
		}
		if least < 150 {
			t.Errorf("%d samples of %d bytes, %+v: a batch of %d holds %d classes", c.samples, c.bytes, l, batch, least)
		}
	}
}
