//go:build !race

package feed_test

const shadow = 1
