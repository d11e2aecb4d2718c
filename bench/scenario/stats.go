package scenario

import (
	"math"
	"slices"
)

// median of values, of which there is one at least; the mean of the middle two where their number is even.
func median(values []float64) float64 {
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	return (v[(n-1)/2] + v[n/2]) / 2
}

// Range is the smallest and the largest of some values.
type Range [2]float64

func rangeOf(values []float64, digits int) Range {
	return Range{rounded(slices.Min(values), digits), rounded(slices.Max(values), digits)}
}

// rounded to a number of digits behind the point.
func rounded(v float64, digits int) float64 {
	scale := math.Pow10(digits)
	return math.Round(v*scale) / scale
}
