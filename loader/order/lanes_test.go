package order

import (
	"fmt"
	"math/big"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

type place struct{ window, k int64 }

// slowInterleave is the order by the letter of its definition: for every segment all shares, sorted by exact fractions.
func slowInterleave(lanes, windows, perWindow int64) []place {
	type element struct {
		place
		key  *big.Rat
		lane int64
	}
	last := windows - lanes
	var out []place
	for m := range last + 1 {
		var elements []element
		for g := range lanes {
			i := m + g
			// In which of its open segments is window i, and how many has it?
			j, count := int64(0), int64(0)
			for s := range last + 1 {
				if i >= s && i < s+lanes {
					if s < m {
						j++
					}
					count++
				}
			}
			from, to := j*perWindow/count, (j+1)*perWindow/count
			for k := from; k < to; k++ {
				elements = append(elements, element{place{i, k}, big.NewRat(2*(k-from)+1, 2*(to-from)), g})
			}
		}
		slices.SortFunc(elements, func(a, b element) int {
			if c := a.key.Cmp(b.key); c != 0 {
				return c
			}
			return int(a.lane - b.lane)
		})
		for _, e := range elements {
			out = append(out, e.place)
		}
	}
	return out
}

func checkInterleave(lanes, windows, perWindow int64) error {
	v := newInterleave(lanes, windows, perWindow)
	want := slowInterleave(lanes, windows, perWindow)
	if int64(len(want)) != windows*perWindow {
		return fmt.Errorf("the reference has %d partitions, want %d", len(want), windows*perWindow)
	}
	for p, w := range want {
		window, k := v.locate(int64(p))
		if (place{window, k}) != w {
			return fmt.Errorf("%d lanes, %d windows of %d: partition %d is %d of window %d, want %+v", lanes, windows, perWindow, p, k, window, w)
		}
		if got := v.position(window, k); got != int64(p) {
			return fmt.Errorf("%d lanes, %d windows of %d: partition %d of window %d is at %d, want %d", lanes, windows, perWindow, k, window, got, p)
		}
	}
	return nil
}

func TestInterleaveEqualsItsDefinition(t *testing.T) {
	for lanes := int64(1); lanes <= 5; lanes++ {
		for windows := lanes; windows <= lanes+10; windows++ {
			for _, perWindow := range []int64{1, 2, 3, 4, 5, 7, 12} {
				if err := checkInterleave(lanes, windows, perWindow); err != nil {
					t.Error(err)
				}
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		lanes := rapid.Int64Range(1, 9).Draw(t, "lanes")
		windows := rapid.Int64Range(lanes, lanes+20).Draw(t, "windows")
		if err := checkInterleave(lanes, windows, rapid.Int64Range(1, 20).Draw(t, "per window")); err != nil {
			t.Fatal(err)
		}
	})
}

// In a segment away from the ends every lane gives its part evenly: no window waits long for its turn.
func TestLanesAdvanceTogether(t *testing.T) {
	const lanes, windows, per = 4, 40, 40
	v := newInterleave(lanes, windows, per)
	lastSeen := map[int64]int64{}
	for p := int64(10 * per); p < 30*per; p++ {
		window, _ := v.locate(p)
		if before, ok := lastSeen[window]; ok && p-before > 2*lanes {
			t.Errorf("window %d waits from partition %d to %d for its turn", window, before, p)
		}
		lastSeen[window] = p
	}
}

// The largest layout that is valid stays within 63 bits.
func TestInterleaveAtItsBounds(t *testing.T) {
	const lanes, per = maxLanes, maxWindowPartitions
	windows := int64(maxSamples / per)
	v := newInterleave(lanes, windows, per)
	for _, p := range []int64{0, 1, per - 1, windows*per/2 + 1, windows*per - per, windows*per - 1} {
		window, k := v.locate(p)
		if got := v.position(window, k); got != p {
			t.Errorf("partition %d is %d of window %d, which is at %d", p, k, window, got)
		}
	}
}
