package order

import (
	"strings"

	"github.com/millrace/millrace/internal/errkind"
)

// Shuffle is how samples are mixed within an epoch.
type Shuffle uint8

const (
	// ShuffleInvalid is the zero Shuffle and never valid.
	ShuffleInvalid Shuffle = iota
	// ShuffleNone keeps manifest order.
	ShuffleNone
	// ShuffleBlock permutes blocks of consecutive samples over the whole dataset, and the samples of each window of
	// such blocks among themselves. Reads are of whole blocks, each once.
	ShuffleBlock
	// ShuffleFull is a uniform permutation of all samples. Each sample is a read of its own.
	ShuffleFull
)

var shuffleNames = [...]string{ShuffleNone: "none", ShuffleBlock: "block", ShuffleFull: "full"}

// String is the name that [ParseShuffle] reads; "invalid" for values that are none.
func (s Shuffle) String() string { return enumName(shuffleNames[:], int(s)) }

// ParseShuffle reads "none", "block" or "full". Other names are errors of kind Invalid that name the nearest.
func ParseShuffle(name string) (Shuffle, error) {
	i, err := parseEnum("shuffle", shuffleNames[:], name)
	return Shuffle(i), err
}

// enumName is names[i], where names[0] is the invalid zero value.
func enumName(names []string, i int) string {
	if i <= 0 || i >= len(names) {
		return "invalid"
	}
	return names[i]
}

// parseEnum is the index of name among names, where names[0] is the invalid zero value.
func parseEnum(what string, names []string, name string) (uint8, error) {
	nearest, distance := "", len(name)+1
	for i, n := range names[1:] {
		if n == name {
			return uint8(i + 1), nil
		}
		if d := editDistance(strings.ToLower(name), n); d < distance {
			nearest, distance = n, d
		}
	}
	hint := ""
	if nearest != "" && distance <= len(nearest)/2 {
		hint = "did you mean " + nearest + "? "
	}
	return 0, errkind.Errorf(errkind.Invalid, "unknown %s %.40q; %schoose one of %s",
		what, name, hint, strings.Join(names[1:], ", "))
}

// maxTypoBytes bounds the names that are compared letter by letter: a longer one is no misspelling.
const maxTypoBytes = 32

// editDistance is the number of letters to insert, delete or replace to make b of a; len(a)+len(b) for a long a.
func editDistance(a, b string) int {
	if len(a) > maxTypoBytes {
		return len(a) + len(b)
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
				cost = min(diagonal, row[j], row[j+1]) + 1
			}
			diagonal = row[j+1]
			row[j+1] = cost
		}
	}
	return row[len(b)]
}
