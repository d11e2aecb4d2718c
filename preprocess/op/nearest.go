package op

import "fmt"

// didYouMean is `; did you mean "x"?` for the candidate nearest to name, empty when none is near.
func didYouMean(name string, candidates []string) string {
	best, bestDistance := "", len(name)/2+2
	for _, c := range candidates {
		if d := editDistance(name, c); d < bestDistance && d < len(c) {
			best, bestDistance = c, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// editDistance is the Levenshtein distance of a and b in bytes.
func editDistance(a, b string) int {
	const limit = 128 // Names are short; a hostile one must not cost its square.
	if len(a) > limit || len(b) > limit {
		return limit
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
