package order

import "github.com/millrace/millrace/internal/errkind"

// Bounds of a Layout. They keep every product in this package within 63 bits, far above any real dataset.
const (
	maxSamples          = 1 << 53
	maxWindowBlocks     = 1 << 20
	maxWindowPartitions = 1 << 30
	maxLanes            = 64
)

// Layout is all that an order depends on besides seed and epoch. It is fixed when a job is created and part of the
// order digest. [Plan] makes one; the zero Layout is invalid.
type Layout struct {
	Shuffle Shuffle
	// NumSamples is the number of samples of an epoch.
	NumSamples int64
	// BlockSamples is the number of consecutive samples in a block.
	BlockSamples int64
	// WindowBlocks is the number of blocks in a window.
	WindowBlocks int64
	// Lanes is the number of windows that are open at any time away from the ends of the epoch. It is 1 unless
	// Shuffle is ShuffleBlock.
	Lanes int64
	// PartitionSamples is the number of samples of a source partition. It divides WindowBlocks*BlockSamples.
	PartitionSamples int64
}

// WindowSamples is the number of samples of a full window.
func (l Layout) WindowSamples() int64 { return l.WindowBlocks * l.BlockSamples }

// Validate says what is wrong with l, as an error of kind Invalid.
func (l Layout) Validate() error {
	if l.Shuffle == ShuffleInvalid || l.Shuffle > ShuffleFull {
		return errkind.Errorf(errkind.Invalid, "layout has no valid shuffle (%d); choose none, block or full", l.Shuffle)
	}
	for _, f := range []struct {
		name       string
		value, max int64
	}{
		{"number of samples", l.NumSamples, maxSamples},
		{"samples per block", l.BlockSamples, maxSamples},
		{"blocks per window", l.WindowBlocks, maxWindowBlocks},
		{"lanes", l.Lanes, maxLanes},
		{"samples per partition", l.PartitionSamples, maxSamples},
	} {
		if f.value < 1 || f.value > f.max {
			return errkind.Errorf(errkind.Invalid, "layout: %s is %d, which is not within 1 to %d", f.name, f.value, f.max)
		}
	}
	return l.validateWindow()
}

// validateWindow checks how block, window, lanes and partition fit together, each being within its own bounds.
func (l Layout) validateWindow() error {
	if l.BlockSamples > maxSamples/l.WindowBlocks {
		return errkind.Errorf(errkind.Invalid, "layout: a window of %d blocks of %d samples is larger than %d samples; make one of them smaller",
			l.WindowBlocks, l.BlockSamples, int64(maxSamples))
	}
	window := l.WindowSamples()
	if window%l.PartitionSamples != 0 {
		return errkind.Errorf(errkind.Invalid, "layout: a window of %d samples (%d blocks of %d) cannot be cut into partitions of %d; give a divisor of %d",
			window, l.WindowBlocks, l.BlockSamples, l.PartitionSamples, window)
	}
	if window/l.PartitionSamples > maxWindowPartitions {
		return errkind.Errorf(errkind.Invalid, "layout: a window of %d samples holds more than %d partitions of %d; make partitions larger",
			window, maxWindowPartitions, l.PartitionSamples)
	}
	if l.Lanes == 1 {
		return nil
	}
	if l.Shuffle != ShuffleBlock {
		return errkind.Errorf(errkind.Invalid, "layout: %d lanes with shuffle %s; only shuffle block has more than one", l.Lanes, l.Shuffle)
	}
	if full := l.NumSamples / window; full < l.Lanes {
		return errkind.Errorf(errkind.Invalid, "layout: %d lanes need as many full windows, but %d samples hold %d windows of %d; use fewer lanes or a smaller window",
			l.Lanes, l.NumSamples, full, window)
	}
	return nil
}
