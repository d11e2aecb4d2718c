package deal

import (
	"cmp"
	"slices"

	"github.com/millrace/millrace/loader/order"
)

// interval is stream rows from..to-1.
type interval struct{ from, to int64 }

func (v interval) overlaps(from, to int64) bool { return v.from < to && from < v.to }

// union is the rows of segments, each once, in order.
func union(segments []order.Segment) []interval {
	all := make([]interval, 0, len(segments))
	for _, s := range segments {
		all = append(all, interval{s.First, s.First + s.NumRows})
	}
	slices.SortFunc(all, func(a, b interval) int { return cmp.Compare(a.from, b.from) })
	out := all[:0]
	for _, v := range all {
		if n := len(out); n > 0 && v.from <= out[n-1].to {
			out[n-1].to = max(out[n-1].to, v.to)
			continue
		}
		out = append(out, v)
	}
	return out
}

// cut takes rows from..to-1 out of need and gives what was in both.
func cut(need []interval, from, to int64) (rest, taken []interval) {
	if !slices.ContainsFunc(need, func(v interval) bool { return v.overlaps(from, to) }) {
		return need, nil
	}
	for _, v := range need {
		if !v.overlaps(from, to) {
			rest = append(rest, v)
			continue
		}
		in := interval{max(v.from, from), min(v.to, to)}
		taken = append(taken, in)
		if v.from < in.from {
			rest = append(rest, interval{v.from, in.from})
		}
		if in.to < v.to {
			rest = append(rest, interval{in.to, v.to})
		}
	}
	return rest, taken
}
