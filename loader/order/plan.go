package order

import "github.com/millrace/millrace/internal/errkind"

// Defaults of [Plan].
const (
	blockBytes           = 1 << 20
	windowBytes          = 128 << 20
	windowBlocks         = 128
	defaultLanes         = 4
	partitionBytes       = 2 << 20
	maxPartitionSamples  = 1024
	littleRest           = 32 // a short window of up to this part of a full one is as good as none
	minPartitionsOfEpoch = 64 // small datasets are cut finer than partitionBytes, so that several workers share them
)

// Sizing is what a [Layout] is planned from. Of the fields that say "0: derive", those that are given are kept as
// they are.
type Sizing struct {
	Shuffle Shuffle
	// NumSamples and TotalBytes are the manifest's sums: samples, and bytes as they are stored.
	NumSamples, TotalBytes int64
	// PartitionSamples is the number of samples of a source partition; 0: derive.
	PartitionSamples int64
	// TargetPartitionBytes is the size of a source partition in stored bytes; 0: 2 MiB. It has no effect when
	// PartitionSamples is given.
	TargetPartitionBytes int64
	// BlockSamples, WindowBlocks and Lanes are as in Layout; 0: derive.
	BlockSamples, WindowBlocks, Lanes int64
}

// Plan fixes the layout of a job's order. It is a pure function of s. Derived values follow the mean stored size of
// a sample: blocks of about 1 MiB; windows of 128 blocks or 128 MiB, if less, of at least 2; 4 lanes; and a partition
// as near below its target size as divides the window. Window and block shrink a little so that hardly anything is left over for
// the short window at the end. For a small dataset windows shrink first, then lanes, so that
// the open windows are at most a quarter of it. All errors are of kind Invalid.
func Plan(s Sizing) (Layout, error) {
	if err := s.validate(); err != nil {
		return Layout{}, err
	}
	p := planner{Sizing: s, mean: max(1, s.TotalBytes/s.NumSamples)}
	l := Layout{Shuffle: s.Shuffle, NumSamples: s.NumSamples}
	p.block(&l)
	p.partition(&l)
	p.lanes(&l)
	if err := l.Validate(); err != nil {
		return Layout{}, err
	}
	return l, nil
}

func (s Sizing) validate() error {
	if s.NumSamples < 1 {
		return errkind.Errorf(errkind.Invalid, "cannot plan an order over %d samples; the dataset must hold at least one", s.NumSamples)
	}
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"total bytes", s.TotalBytes},
		{"samples per partition", s.PartitionSamples},
		{"target partition bytes", s.TargetPartitionBytes},
		{"samples per block", s.BlockSamples},
		{"blocks per window", s.WindowBlocks},
		{"lanes", s.Lanes},
	} {
		if f.value < 0 {
			return errkind.Errorf(errkind.Invalid, "cannot plan an order: %s is %d; give a positive number, or 0 for the default", f.name, f.value)
		}
	}
	return nil
}

// planner derives one field after another. mean is the mean stored size of a sample in bytes, at least 1.
type planner struct {
	Sizing
	mean int64
}

// block sets the first choice of block and window, before they are fitted to partitions.
func (p planner) block(l *Layout) {
	l.BlockSamples, l.WindowBlocks = p.BlockSamples, p.WindowBlocks
	if l.BlockSamples == 0 {
		l.BlockSamples = min(max(1, blockBytes/p.mean), p.NumSamples)
	}
	if l.WindowBlocks == 0 {
		l.WindowBlocks = p.windowFor(l.BlockSamples)
	}
}

// windowFor is the default window for a block: a sixteenth of the dataset, so that four lanes of it are a quarter.
func (p planner) windowFor(blockSamples int64) int64 {
	return min(max(2, p.NumSamples/blockSamples/16), p.mostWindowBlocks(blockSamples))
}

// mostWindowBlocks is the most blocks that the default gives a window.
func (p planner) mostWindowBlocks(blockSamples int64) int64 {
	// A block is capped by NumSamples, so this product is at most about TotalBytes; a given block may be absurd.
	if blockSamples > windowBytes/p.mean {
		return 2
	}
	return min(max(2, windowBytes/(blockSamples*p.mean)), windowBlocks)
}

// lanes sets the lanes, of which a small dataset has fewer.
func (p planner) lanes(l *Layout) {
	l.Lanes = p.Lanes
	if l.Lanes != 0 {
		return
	}
	l.Lanes = 1
	if l.Shuffle == ShuffleBlock {
		blocks := p.NumSamples / l.BlockSamples
		l.Lanes = min(max(1, blocks/4/l.WindowBlocks), defaultLanes)
	}
}

// partition sets the partition, and shrinks a derived block or window a little where no fitting partition divides it.
func (p planner) partition(l *Layout) {
	if p.PartitionSamples > 0 {
		l.PartitionSamples = p.PartitionSamples
		p.fitWindow(l)
		return
	}
	bytes := p.TargetPartitionBytes
	if bytes == 0 {
		bytes = partitionBytes
	}
	target := min(max(1, bytes/p.mean), maxPartitionSamples, max(1, p.NumSamples/minPartitionsOfEpoch))
	p.fitPartition(l, target)
}

// fitPartition takes the largest partition up to target that divides the window. If that is far below target, or more
// than a little of the dataset is left over for a short window at the end, whose samples are mixed with no others, then a
// smaller block or window that fits better is looked for, the nearest first.
func (p planner) fitPartition(l *Layout, target int64) {
	block, window := l.BlockSamples, l.WindowBlocks
	least := int64(-1) // what is left over by the best choice whose partition fits
	for w := window; w >= lowest(window, p.WindowBlocks, 2); w-- {
		for b := block; b >= lowest(block, p.BlockSamples, 1); b-- {
			k := largestDivisor(w, b, target)
			if fits := k*8 >= target*7; !fits {
				if least < 0 && k > l.PartitionSamples {
					l.WindowBlocks, l.BlockSamples, l.PartitionSamples = w, b, k
				}
				continue
			}
			rest := p.rest(w, b)
			if least < 0 || rest < least {
				least = rest
				l.WindowBlocks, l.BlockSamples, l.PartitionSamples = w, b, k
			}
			if rest <= w*b/littleRest {
				return
			}
		}
	}
}

// rest is what a window of w blocks of b samples leaves over, where that matters.
func (p planner) rest(w, b int64) int64 {
	if p.Shuffle != ShuffleBlock || b > p.NumSamples/w { // Given sizes may be absurd.
		return 0
	}
	return p.NumSamples % (w * b)
}

// lowest is how far a derived value may shrink: by an eighth, by 32 at most, and not under least. A given one stays.
func lowest(value, given, least int64) int64 {
	if given != 0 {
		return value
	}
	return max(least, value-min(value/8, 32))
}

// largestDivisor is the largest divisor of w*b up to target.
func largestDivisor(w, b, target int64) int64 {
	for k := target; k > 1; k-- {
		// w*b may be too large for 64 bits when both were given; Validate refuses that, after this.
		if (w%k)*(b%k)%k == 0 {
			return k
		}
	}
	return 1
}

// fitWindow makes the window a multiple of a given partition: a smaller derived block first, then fewer blocks, then
// more, then blocks of one partition. What cannot be fitted is left to Validate's error.
func (p planner) fitWindow(l *Layout) {
	if p.WindowBlocks > 0 {
		if b := p.fitBlock(l.WindowBlocks, l.BlockSamples); b > 0 {
			l.BlockSamples = b
		}
		return
	}
	block, window := l.BlockSamples, l.WindowBlocks
	best := int64(0)
	try := func(w int64) {
		if b := p.fitBlock(w, block); b > 0 && b*w > best {
			best, l.WindowBlocks, l.BlockSamples = b*w, w, b
		}
	}
	for w := window; w >= 2 && best*8 < block*window*7; w-- {
		try(w)
	}
	for w := window + 1; w <= p.mostWindowBlocks(block) && best == 0; w++ {
		try(w)
	}
	if best == 0 && p.BlockSamples == 0 && p.oneBlockFits() {
		l.BlockSamples = p.PartitionSamples
		l.WindowBlocks = p.windowFor(l.BlockSamples)
	}
}

// oneBlockFits reports whether the given partition may be a block: the window stays within its bytes, or all samples
// are in one partition anyway.
func (p planner) oneBlockFits() bool {
	return p.PartitionSamples <= windowBytes/p.mean/2 || p.PartitionSamples >= p.NumSamples
}

// fitBlock is the largest block up to block with which a window of w is a multiple of the given partition; 0 if none.
func (p planner) fitBlock(w, block int64) int64 {
	step := p.PartitionSamples / gcd(p.PartitionSamples, w)
	if p.BlockSamples > 0 {
		if block%step != 0 {
			return 0
		}
		return block
	}
	return block / step * step
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
