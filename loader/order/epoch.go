package order

import "github.com/millrace/millrace/internal/rng"

// Names of the permutations of an epoch, so that each has a key of its own.
const (
	keyBlocks = 1 + iota
	keyWindow
	keyFull
)

// Epoch is the order of one pass over the samples. It is immutable and safe for concurrent use.
type Epoch struct {
	layout      Layout
	seed, epoch uint64

	windowSamples int64
	fullWindows   int64 // windows of windowSamples; what is left over forms one more, shorter window
	perWindow     int64 // partitions of a full window
	fullBlocks    int64
	partitions    int64

	lanes interleave  // where layout.Lanes > 1
	over  permutation // of full blocks (ShuffleBlock) or of samples (ShuffleFull)
}

// Partition is one source partition: consecutive positions of the stream that lie in one window.
type Partition struct {
	// Index is its place among the partitions of the epoch, in stream order.
	Index int64
	// Window is the window its samples come from, and InWindow its place among the partitions of that window.
	Window, InWindow int64
	// First is the stream position of its first sample, NumSamples how many there are.
	First, NumSamples int64
}

// Epoch is the order of pass epoch of seed over l. It panics if l is not valid: layouts that came from outside have
// to be validated first.
func (l Layout) Epoch(seed, epoch uint64) *Epoch {
	if err := l.Validate(); err != nil {
		panic("order: " + err.Error())
	}
	e := &Epoch{layout: l, seed: seed, epoch: epoch, windowSamples: l.WindowSamples()}
	e.fullWindows = l.NumSamples / e.windowSamples
	e.perWindow = e.windowSamples / l.PartitionSamples
	e.fullBlocks = l.NumSamples / l.BlockSamples
	e.partitions = (l.NumSamples + l.PartitionSamples - 1) / l.PartitionSamples
	if l.Lanes > 1 {
		e.lanes = newInterleave(l.Lanes, e.fullWindows, e.perWindow)
	}
	switch l.Shuffle {
	case ShuffleBlock:
		e.over.init(e.fullBlocks, rng.Mix3(seed, epoch, keyBlocks))
	case ShuffleFull:
		e.over.init(l.NumSamples, rng.Mix3(seed, epoch, keyFull))
	}
	return e
}

// Layout is what e was made from.
func (e *Epoch) Layout() Layout { return e.layout }

// NumPartitions is the number of source partitions of the epoch.
func (e *Epoch) NumPartitions() int64 { return e.partitions }

// NumWindows is the number of windows of the epoch, with the short one at its end if there is one.
func (e *Epoch) NumWindows() int64 {
	if e.fullWindows*e.windowSamples < e.layout.NumSamples {
		return e.fullWindows + 1
	}
	return e.fullWindows
}

// WindowPartitions is the number of source partitions of a window; 0 for a window the epoch does not have.
func (e *Epoch) WindowPartitions(window int64) int64 {
	switch {
	case window < 0 || window >= e.NumWindows():
		return 0
	case window < e.fullWindows:
		return e.perWindow
	}
	return e.partitions - e.fullWindows*e.perWindow
}

// Partition is partition p of the stream. Outside 0..NumPartitions()-1 it has Window -1 and no samples.
func (e *Epoch) Partition(p int64) Partition {
	if p < 0 || p >= e.partitions {
		return Partition{Index: p, Window: -1}
	}
	first := p * e.layout.PartitionSamples
	out := Partition{
		Index: p, Window: p / e.perWindow, InWindow: p % e.perWindow,
		First: first, NumSamples: min(e.layout.PartitionSamples, e.layout.NumSamples-first),
	}
	if e.layout.Lanes > 1 && p < e.fullWindows*e.perWindow {
		out.Window, out.InWindow = e.lanes.locate(p)
	}
	return out
}

// PartitionAt is the index of partition k of a window: the inverse of [Epoch.Partition]. It is -1 where there is none.
func (e *Epoch) PartitionAt(window, k int64) int64 {
	if k < 0 || k >= e.WindowPartitions(window) {
		return -1
	}
	if e.layout.Lanes > 1 && window < e.fullWindows {
		return e.lanes.position(window, k)
	}
	return window*e.perWindow + k
}

// Samples appends to dst the manifest ordinals of the samples of partition p, in stream order.
func (e *Epoch) Samples(p int64, dst []int64) []int64 {
	part := e.Partition(p)
	if part.NumSamples == 0 {
		return dst
	}
	switch e.layout.Shuffle {
	case ShuffleNone:
		for i := range part.NumSamples {
			dst = append(dst, part.First+i)
		}
	case ShuffleFull:
		for i := range part.NumSamples {
			dst = append(dst, e.over.at(part.First+i))
		}
	default:
		var within permutation
		e.initWindow(&within, part.Window)
		from := part.InWindow * e.layout.PartitionSamples
		for i := range part.NumSamples {
			dst = append(dst, e.inBlocks(part.Window*e.windowSamples+within.at(from+i)))
		}
	}
	return dst
}

// Sample is the manifest ordinal of the sample at position pos of the stream; -1 outside the epoch. Use
// [Epoch.Samples] for runs of them.
func (e *Epoch) Sample(pos int64) int64 {
	if pos < 0 || pos >= e.layout.NumSamples {
		return -1
	}
	switch e.layout.Shuffle {
	case ShuffleNone:
		return pos
	case ShuffleFull:
		return e.over.at(pos)
	}
	part := e.Partition(pos / e.layout.PartitionSamples)
	var within permutation
	e.initWindow(&within, part.Window)
	inWindow := part.InWindow*e.layout.PartitionSamples + pos - part.First
	return e.inBlocks(part.Window*e.windowSamples + within.at(inWindow))
}

// Position is the stream position of a sample, given by its manifest ordinal: the inverse of [Epoch.Sample]. It is
// -1 where there is none.
func (e *Epoch) Position(sample int64) int64 {
	if sample < 0 || sample >= e.layout.NumSamples {
		return -1
	}
	switch e.layout.Shuffle {
	case ShuffleNone:
		return sample
	case ShuffleFull:
		return e.over.indexOf(sample)
	}
	block, offset := sample/e.layout.BlockSamples, sample%e.layout.BlockSamples
	if block < e.fullBlocks {
		block = e.over.indexOf(block)
	}
	place := block*e.layout.BlockSamples + offset
	window := place / e.windowSamples
	var within permutation
	e.initWindow(&within, window)
	inWindow := within.indexOf(place - window*e.windowSamples)
	p := e.PartitionAt(window, inWindow/e.layout.PartitionSamples)
	return p*e.layout.PartitionSamples + inWindow%e.layout.PartitionSamples
}

// initWindow makes within the permutation of a window's samples among themselves.
func (e *Epoch) initWindow(within *permutation, window int64) {
	n := min(e.windowSamples, e.layout.NumSamples-window*e.windowSamples)
	within.init(n, rng.Mix(e.seed, e.epoch, keyWindow, uint64(window)))
}

// inBlocks is the sample at a place of the sequence of permuted blocks. The short last block keeps its place.
func (e *Epoch) inBlocks(place int64) int64 {
	block, offset := place/e.layout.BlockSamples, place%e.layout.BlockSamples
	if block < e.fullBlocks {
		block = e.over.at(block)
	}
	return block*e.layout.BlockSamples + offset
}
