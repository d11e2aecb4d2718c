package lineage

import (
	"encoding/binary"
	"math"

	"github.com/millrace/millrace/internal/errkind"
)

// parser takes the fields of a record from the front of rest. err is its first error; after it all fields are zero.
type parser struct {
	rest []byte
	err  error
}

func (p *parser) fail(format string, args ...any) {
	if p.err == nil {
		p.err = errkind.Errorf(errkind.Invalid, "lineage record: "+format, args...)
	}
	p.rest = nil
}

func (p *parser) take(field string, n int) []byte {
	if p.err != nil || len(p.rest) < n {
		p.fail("it is cut off in its %s", field)
		return nil
	}
	out := p.rest[:n]
	p.rest = p.rest[n:]
	return out
}

func (p *parser) byte(field string) byte {
	if b := p.take(field, 1); b != nil {
		return b[0]
	}
	return 0
}

// uvarint is a number of at most limit, written in as few bytes as can be: each record has one form only.
func (p *parser) uvarint(field string, limit uint64) uint64 {
	v, n := binary.Uvarint(p.rest)
	switch {
	case p.err != nil || n == 0:
		p.fail("it is cut off in its %s", field)
		return 0
	case n < 0 || v > limit:
		p.fail("its %s is out of range", field)
		return 0
	case n > 1 && p.rest[n-1] == 0:
		p.fail("its %s is not in its shortest form", field)
		return 0
	}
	p.rest = p.rest[n:]
	return v
}

func (p *parser) id(id *ID) {
	id.Epoch = p.uvarint("epoch", math.MaxUint64)
	id.Source = p.uvarint("source partition", math.MaxUint64)
	depth := p.byte("depth")
	if depth > MaxDepth {
		p.fail("its id has %d generations; ids end at %d", depth, MaxDepth)
		return
	}
	id.Depth = depth
	for i := range id.path() {
		id.Path[i] = uint32(p.uvarint("id", math.MaxUint32)) //nolint:gosec // read with a limit that its type holds
	}
}
