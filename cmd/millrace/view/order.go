package view

import (
	"fmt"

	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/loader/order"
)

// Order says in words how a layout shuffles.
func Order(l order.Layout, batch int64) string {
	parts := fmt.Sprintf("%d samples a partition", l.PartitionSamples)
	switch l.Shuffle {
	case order.ShuffleBlock:
		return fmt.Sprintf("block: %d samples a block, %d blocks a window, %d %s at a time, %s; a batch of %d mixes ≈%d of %s blocks",
			l.BlockSamples, l.WindowBlocks, l.Lanes, plural(l.Lanes, "window"), parts, batch, mixedBlocks(l, batch), progress.Count(max(1, l.NumSamples/l.BlockSamples)))
	case order.ShuffleFull:
		return "full: every sample equally likely everywhere, one ranged read a sample, " + parts
	case order.ShuffleNone, order.ShuffleInvalid:
	}
	return "none: in the order of the manifest, " + parts
}

// mixedBlocks is the expected number of different blocks in a batch drawn evenly from the open windows.
func mixedBlocks(l order.Layout, batch int64) int64 {
	open := float64(min(l.WindowBlocks*l.Lanes, max(1, l.NumSamples/l.BlockSamples)))
	miss := 1.0
	for range batch {
		miss *= 1 - 1/open
	}
	return int64(open*(1-miss) + 0.5)
}
