// Package archtest holds the tests that keep the shape of the repository: which package may import which, what pure
// packages may not do, that goroutines are leak-checked, that generated code is fresh and that dependencies are
// accounted for. It has no code of its own.
package archtest
