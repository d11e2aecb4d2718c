// Package nearest finds the known name that a misspelt one was probably meant to be, for error messages.
package nearest

import (
	"fmt"
	"slices"
	"strings"
)

// Name is the candidate with the smallest edit distance to name, or "" when none is close enough to be
// what was meant (at most a third of the letters, at least two, may differ). Ties go to the first in
// alphabetical order.
func Name(name string, candidates []string) string {
	best, bestDistance := "", max(2, len(name)/3)+1
	for _, c := range slices.Sorted(slices.Values(candidates)) {
		if d := distance(strings.ToLower(name), strings.ToLower(c)); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

// Hint is `; did you mean "x"?` for the nearest candidate, or the list of all when none is near.
func Hint(name string, candidates []string) string {
	if n := Name(name, candidates); n != "" {
		return fmt.Sprintf("; did you mean %q?", n)
	}
	if len(candidates) == 0 {
		return ""
	}
	return "; known: " + strings.Join(slices.Sorted(slices.Values(candidates)), ", ")
}

// distance counts insertions, deletions, substitutions and swaps of neighbours (optimal string alignment).
func distance(a, b string) int {
	x, y := []rune(a), []rune(b)
	before, last, row := make([]int, len(y)+1), make([]int, len(y)+1), make([]int, len(y)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(x); i++ {
		row[0] = i
		for j := 1; j <= len(y); j++ {
			cost := 1
			if x[i-1] == y[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(y)]
}
