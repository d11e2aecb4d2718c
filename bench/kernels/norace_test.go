//go:build !race

package kernels_test

const forgetful = false
