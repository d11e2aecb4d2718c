package storage

import (
	"math"
	"slices"
	"time"
)

func round(v float64, digits int) float64 {
	scale := math.Pow10(digits)
	return math.Round(v*scale) / scale
}

// quantile of durations, in milliseconds.
func quantile(times []time.Duration, q float64) float64 {
	sorted := slices.Sorted(slices.Values(times))
	return round(float64(sorted[min(len(sorted)-1, int(q*float64(len(sorted))))].Nanoseconds())/1e6, 2)
}
