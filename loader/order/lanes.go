package order

import (
	"math/bits"
	"sort"
)

// interleave is the order in which the partitions of full windows are taken, lanes windows at a time.
//
// Stream time is cut into segments 0..last. In segment m exactly the windows m..m+lanes-1 are open; so window i is
// open in a run of segments, and gives an equal share of its partitions, in their order, in each. Within a segment the
// shares are merged in proportion to their lengths. Windows therefore begin and end one after the other, and away
// from the ends of the stream each segment holds exactly one window's worth of partitions: places are found by
// arithmetic there, and from a few sums at the ends.
type interleave struct {
	lanes, windows int64
	perWindow      int64 // partitions of a window
	last           int64 // the last segment
	// head[m] is the number of partitions before segment m, for 0 <= m <= len(head)-1; segments from there on up to
	// tailFrom hold perWindow each; tail[x] is the number before segment tailFrom+x, the last entry being the total.
	head, tail []int64
	tailFrom   int64
}

// run is a share of a window: partitions first..first+length-1 of it.
type run struct{ window, first, length int64 }

func newInterleave(lanes, windows, perWindow int64) interleave {
	v := interleave{lanes: lanes, windows: windows, perWindow: perWindow, last: windows - lanes}
	headEnd := min(lanes-1, v.last+1)
	v.tailFrom = max(headEnd, v.last-lanes+2)
	before := int64(0)
	v.head = append(v.head, before)
	for m := range headEnd {
		before += v.segmentLength(m)
		v.head = append(v.head, before)
	}
	before += (v.tailFrom - headEnd) * perWindow
	v.tail = append(v.tail, before)
	for m := v.tailFrom; m <= v.last; m++ {
		before += v.segmentLength(m)
		v.tail = append(v.tail, before)
	}
	return v
}

// share is what window i gives in segment m, in which it is open.
func (v *interleave) share(i, m int64) run {
	from, to := max(0, i-v.lanes+1), min(v.last, i)
	count, j := to-from+1, m-from
	first := j * v.perWindow / count
	return run{window: i, first: first, length: (j+1)*v.perWindow/count - first}
}

func (v *interleave) segmentLength(m int64) int64 {
	s := v.segment(m)
	return s.total
}

// before is the number of partitions before segment m.
func (v *interleave) before(m int64) int64 {
	headEnd := int64(len(v.head)) - 1
	switch {
	case m <= headEnd:
		return v.head[m]
	case m >= v.tailFrom:
		return v.tail[m-v.tailFrom]
	}
	return v.head[headEnd] + (m-headEnd)*v.perWindow
}

// segmentOf is the segment that holds partition p of the stream.
func (v *interleave) segmentOf(p int64) int64 {
	headEnd := int64(len(v.head)) - 1
	switch {
	case p < v.head[headEnd]:
		return int64(sort.Search(len(v.head), func(m int) bool { return v.head[m] > p })) - 1
	case p < v.tail[0]:
		return headEnd + (p-v.head[headEnd])/v.perWindow
	}
	return v.tailFrom + int64(sort.Search(len(v.tail), func(x int) bool { return v.tail[x] > p })) - 1
}

// locate is the window and the place in it of partition p of the stream.
func (v *interleave) locate(p int64) (window, k int64) {
	m := v.segmentOf(p)
	rank := p - v.before(m)
	s := v.segment(m)
	for g := range v.lanes {
		// Ranks of one run ascend, so its element of the wanted rank, if it has one, is found by halving.
		from, to := s.around(g, rank)
		x := from + int64(sort.Search(int(to-from), func(x int) bool { return s.rank(g, from+int64(x)) >= rank }))
		if x < to && s.rank(g, x) == rank {
			r := v.share(m+g, m)
			return r.window, r.first + x
		}
	}
	return -1, -1 // not reached: the runs of a segment hold all of its ranks
}

// position is the place in the stream of partition k of a window: the inverse of locate.
func (v *interleave) position(window, k int64) int64 {
	from, to := max(0, window-v.lanes+1), min(v.last, window)
	count := to - from + 1
	// The share that holds k: floor(j*P/count) <= k has its greatest j at ((k+1)*count-1)/P.
	j := ((k+1)*count - 1) / v.perWindow
	m := from + j
	s := v.segment(m)
	return v.before(m) + s.rank(window-m, k-v.share(window, m).first)
}

// segment is the lengths of the runs that are merged in one segment.
type segment struct {
	lanes, total int64
	lengths      [maxLanes]int64
}

func (v *interleave) segment(m int64) segment {
	s := segment{lanes: v.lanes}
	for g := range v.lanes {
		s.lengths[g] = v.share(m+g, m).length
		s.total += s.lengths[g]
	}
	return s
}

// rank is the place in the segment of element x of lane g's run. Element x of a run of length l sorts by (2x+1)/(2l),
// the middle of its part of the segment; ties go to the lower lane.
func (s *segment) rank(g, x int64) int64 {
	length := s.lengths[g]
	rank := x
	for other, l := range s.lengths[:s.lanes] {
		if int64(other) == g {
			continue
		}
		// Elements y of the other run with (2y+1)*length < (2x+1)*its length; or equal, for a lower lane.
		product := (2*x + 1) * l
		if int64(other) > g {
			product--
		}
		rank += (product/length + 1) / 2
	}
	return rank
}

// around is the few elements of lane g's run, from..to-1, among which the one of a rank is, if the run has it. By the
// definition of rank, element x has one that differs from total*(2x+1)/(2*length) by less than lanes.
func (s *segment) around(g, rank int64) (from, to int64) {
	length := s.lengths[g]
	from = mulDiv(max(0, rank-s.lanes), length, s.total) - 1
	to = mulDiv(rank+s.lanes, length, s.total) + 2
	return max(0, from), min(to, length)
}

// mulDiv is a*b/c for non-negative numbers, c > 0, by way of 128 bits; the result must fit.
func mulDiv(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	q, _ := bits.Div64(hi, lo, uint64(c))
	return int64(q)
}
