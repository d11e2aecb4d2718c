//go:build race

package kernels_test

// forgetful: the race detector makes sync.Pool drop at random what it is given, so that more is allocated.
const forgetful = true
