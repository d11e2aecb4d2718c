package parquet

import (
	"encoding/binary"

	"github.com/millrace/millrace/loader/dataset/format"
)

// compact reads Thrift's compact protocol, as far as page headers and offset indexes need it. short says that the
// bytes ended too early, bad that they are wrong.
type compact struct {
	b          []byte
	at         int
	short, bad bool
}

// Types of the compact protocol.
const (
	typeTrue   = 1
	typeFalse  = 2
	typeByte   = 3
	typeI16    = 4
	typeI32    = 5
	typeI64    = 6
	typeDouble = 7
	typeBinary = 8
	typeList   = 9
	typeSet    = 10
	typeMap    = 11
	typeStruct = 12
)

// maxNesting bounds the structs within structs that are skipped.
const maxNesting = 16

func (c *compact) ok() bool { return !c.short && !c.bad }

func (c *compact) byte() byte {
	if c.at >= len(c.b) {
		c.short = true
		return 0
	}
	c.at++
	return c.b[c.at-1]
}

func (c *compact) uvarint() uint64 {
	v, n := binary.Uvarint(c.b[min(c.at, len(c.b)):])
	switch {
	case n == 0:
		c.short = true
	case n < 0:
		c.bad = true
	default:
		c.at += n
		return v
	}
	return 0
}

func (c *compact) int() int64 {
	v := c.uvarint()
	return int64(v>>1) ^ -int64(v&1)
}

func (c *compact) discard(n uint64) {
	if n > uint64(len(c.b)-c.at) { //nolint:gosec // not negative
		c.short, c.at = true, len(c.b)
		return
	}
	c.at += int(n) //nolint:gosec // at most what is left
}

// fields calls fn with the number and type of each field of a struct, at its value; fn says whether it read that.
func (c *compact) fields(depth int, fn func(id int64, kind byte) bool) {
	if depth > maxNesting {
		c.bad = true
	}
	id := int64(0)
	for c.ok() {
		head := c.byte()
		if head == 0 || !c.ok() {
			return
		}
		if delta := int64(head >> 4); delta != 0 {
			id += delta
		} else {
			id = c.int()
		}
		if kind := head & 15; fn == nil || !fn(id, kind) {
			c.skip(kind, depth)
		}
	}
}

func (c *compact) skip(kind byte, depth int) {
	switch kind {
	case typeTrue, typeFalse: // the value is the type
	case typeByte:
		c.discard(1)
	case typeI16, typeI32, typeI64:
		c.uvarint()
	case typeDouble:
		c.discard(8)
	case typeBinary:
		c.discard(c.uvarint())
	case typeList, typeSet:
		n, element := c.list()
		for range n {
			if !c.ok() {
				return
			}
			c.element(element, depth)
		}
	case typeMap:
		n := c.uvarint()
		if n == 0 {
			return
		}
		kinds := c.byte()
		for ; n > 0 && c.ok(); n-- {
			c.element(kinds>>4, depth)
			c.element(kinds&15, depth)
		}
	case typeStruct:
		c.fields(depth+1, nil)
	default:
		c.bad = true
	}
}

// element skips a value in a list or map, where truth values take a byte.
func (c *compact) element(kind byte, depth int) {
	if kind == typeTrue || kind == typeFalse {
		c.discard(1)
		return
	}
	c.skip(kind, depth+1)
	if depth > maxNesting {
		c.bad = true
	}
}

func (c *compact) list() (n uint64, element byte) {
	head := c.byte()
	if n = uint64(head >> 4); n == 15 {
		n = c.uvarint()
	}
	return n, head & 15
}

// pageHeader is what stands before each page.
type pageHeader struct {
	bytes      int64 // of the header itself
	size       int64 // of the page as stored, without the header
	values     int64
	rows       int64 // -1 where the header does not say
	dictionary bool
	data       bool
}

// Types of pages.
const (
	pageData       = 0
	pageDictionary = 2
	pageDataV2     = 3
)

// readPageHeader reads the header at the beginning of b. It is short if b is.
func readPageHeader(b []byte) (h pageHeader, short bool, err error) {
	c := &compact{b: b}
	kind := int64(-1)
	h.rows = -1
	c.fields(0, func(id int64, t byte) bool {
		switch {
		case id == 1 && t == typeI32:
			kind = c.int()
		case id == 3 && t == typeI32:
			h.size = c.int()
		case (id == 5 || id == 8) && t == typeStruct:
			c.fields(1, func(inner int64, t byte) bool {
				switch {
				case inner == 1 && t == typeI32:
					h.values = c.int()
				case inner == 3 && t == typeI32 && id == 8:
					h.rows = c.int()
				default:
					return false
				}
				return true
			})
		default:
			return false
		}
		return true
	})
	if c.short {
		return h, true, nil
	}
	h.bytes = int64(c.at)
	h.dictionary, h.data = kind == pageDictionary, kind == pageData || kind == pageDataV2
	if c.bad || kind < 0 || h.size < 0 || h.values < 0 || h.rows < -1 {
		return h, false, format.Damaged("a page header can't be read")
	}
	return h, false, nil
}

// page is a data page, or a run of them where nothing says where their rows begin.
type page struct {
	off, size int64 // with the header
	first     int64 // row of the row group
}

// readOffsetIndex reads a file's own list of the pages of a column.
func readOffsetIndex(b []byte) ([]page, error) {
	c := &compact{b: b}
	var pages []page
	c.fields(0, func(id int64, t byte) bool {
		if id != 1 || t != typeList {
			return false
		}
		n, element := c.list()
		if element != typeStruct && n > 0 {
			c.bad = true
		}
		for ; n > 0 && c.ok(); n-- {
			var p page
			c.fields(1, func(id int64, t byte) bool {
				switch {
				case id == 1 && t == typeI64:
					p.off = c.int()
				case id == 2 && t == typeI32:
					p.size = c.int()
				case id == 3 && t == typeI64:
					p.first = c.int()
				default:
					return false
				}
				return true
			})
			pages = append(pages, p)
		}
		return true
	})
	if !c.ok() {
		return nil, format.Damaged("an offset index can't be read")
	}
	return pages, nil
}
