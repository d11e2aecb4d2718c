//go:build race

package feed_test

// shadow is how many times its memory a process may take: the race detector keeps an account of it in as much again, several
// times over.
const shadow = 8
