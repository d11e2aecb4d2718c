// Package lineage names partitions and records what they are made from.
//
// An [ID] is a tuple of integers (epoch, source partition, k1, k2…): a stage that streams out the outputs of a
// partition numbers them, so the ids of all output partitions, compared number by number, are in stream order. A
// [Record] is enough to make a partition again anywhere. The package is pure.
package lineage

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/millrace/millrace/internal/errkind"
)

// MaxDepth is the most stages that can number their outputs: the longest path of an ID.
const MaxDepth = 8

// ID names a partition. IDs can be compared with == and be keys of maps; elements of Path from Depth on are zero in
// every ID that this package makes.
type ID struct {
	// Epoch is the pass over the data, Source the index of the source partition in it.
	Epoch, Source uint64
	// Path holds the number of an output among the outputs of its parent, for each of the Depth generations.
	Path  [MaxDepth]uint32
	Depth uint8
}

// SourceID is the source partition source of an epoch.
func SourceID(epoch, source uint64) ID { return ID{Epoch: epoch, Source: source} }

// Child is output k of partition id. At MaxDepth it is an error of kind Invalid.
func (id ID) Child(k uint32) (ID, error) {
	if id.Depth >= MaxDepth {
		return ID{}, errkind.Errorf(errkind.Invalid, "partition %s cannot have outputs of its own: ids end at %d generations; join stages of the recipe", id, MaxDepth)
	}
	id.Path[id.Depth] = k
	id.Depth++
	return id, nil
}

// Parent is the partition that id is an output of; false for a source partition.
func (id ID) Parent() (ID, bool) {
	if id.Depth == 0 || id.Depth > MaxDepth {
		return ID{}, false
	}
	id.Depth--
	id.Path[id.Depth] = 0
	return id, true
}

// path is the part of id.Path that counts.
func (id *ID) path() []uint32 { return id.Path[:min(id.Depth, MaxDepth)] }

// Compare is negative, zero or positive as id comes before, is, or comes after other in the stream. A partition comes
// before its outputs.
func (id ID) Compare(other ID) int {
	if c := cmp.Or(cmp.Compare(id.Epoch, other.Epoch), cmp.Compare(id.Source, other.Source)); c != 0 {
		return c
	}
	a, b := id.path(), other.path()
	for i := range min(len(a), len(b)) {
		if c := cmp.Compare(a[i], b[i]); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(a), len(b))
}

// IsAncestorOf reports whether other was made from id, over one stage or more. No partition is its own ancestor.
func (id ID) IsAncestorOf(other ID) bool {
	a, b := id.path(), other.path()
	if id.Epoch != other.Epoch || id.Source != other.Source || len(a) >= len(b) {
		return false
	}
	for i, k := range a {
		if b[i] != k {
			return false
		}
	}
	return true
}

// String is the numbers of id with slashes: "3/1041/0" is output 0 of source partition 1041 of epoch 3.
func (id ID) String() string {
	b := make([]byte, 0, 32)
	b = strconv.AppendUint(b, id.Epoch, 10)
	b = append(b, '/')
	b = strconv.AppendUint(b, id.Source, 10)
	for _, k := range id.path() {
		b = append(b, '/')
		b = strconv.AppendUint(b, uint64(k), 10)
	}
	return string(b)
}

// maxIDText is the length of the longest ID: two numbers of 20 digits and MaxDepth of 10.
const maxIDText = 20 + 1 + 20 + MaxDepth*(1+10)

// ParseID reads what [ID.String] writes, and nothing else. Its errors are of kind Invalid.
func ParseID(s string) (ID, error) {
	if len(s) > maxIDText {
		return ID{}, errkind.Errorf(errkind.Invalid, "partition id %.40q… has %d characters; ids have at most %d", s, len(s), maxIDText)
	}
	parts := strings.Split(s, "/")
	if len(parts) < 2 || len(parts) > 2+MaxDepth {
		return ID{}, errkind.Errorf(errkind.Invalid, "partition id %q has %d numbers; give epoch/partition and up to %d outputs, as in 3/1041/0", s, len(parts), MaxDepth)
	}
	var id ID
	for i, part := range parts {
		size := 32
		if i < 2 {
			size = 64
		}
		n, err := strconv.ParseUint(part, 10, size)
		if err != nil || strconv.FormatUint(n, 10) != part {
			return ID{}, errkind.Errorf(errkind.Invalid, "partition id %q: %q is not a plain number of %d bits", s, part, size)
		}
		switch i {
		case 0:
			id.Epoch = n
		case 1:
			id.Source = n
		default:
			id.Path[id.Depth] = uint32(n) //nolint:gosec // parsed as a number of 32 bits
			id.Depth++
		}
	}
	return id, nil
}
