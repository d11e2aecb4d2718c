package order

// Run is a run of consecutive samples of the manifest.
type Run struct {
	// First is the ordinal of the first sample, NumSamples how many there are.
	First, NumSamples int64
}

// WindowBlocks are the blocks whose samples a window mixes, in the order in which the window takes them. It is nil where
// samples are not read in blocks: with another shuffle than ShuffleBlock, and for a window that the epoch does not have.
func (e *Epoch) WindowBlocks(window int64) []Run {
	if e.layout.Shuffle != ShuffleBlock || window < 0 || window >= e.NumWindows() {
		return nil
	}
	first := window * e.layout.WindowBlocks
	n := min(e.layout.WindowBlocks, (e.layout.NumSamples+e.layout.BlockSamples-1)/e.layout.BlockSamples-first)
	runs := make([]Run, n)
	for i := range n {
		from := e.inBlocks((first + i) * e.layout.BlockSamples)
		runs[i] = Run{First: from, NumSamples: min(e.layout.BlockSamples, e.layout.NumSamples-from)}
	}
	return runs
}
