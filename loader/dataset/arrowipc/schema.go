package arrowipc

import (
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset/format"
)

// kind is how the values of a node are laid out.
type kind uint8

const (
	kindNull kind = iota
	kindBool
	kindFixed     // values of width bytes
	kindVariable  // offsets of width bytes, and values
	kindList      // offsets of width bytes into a child
	kindFixedList // width elements of a child each
	kindStruct
)

// sense is what the bytes of a value mean.
type sense uint8

const (
	opaque sense = iota
	text
	signed
	unsigned
	float
	decimal
)

// node is a field of the schema, or a part of one.
type node struct {
	name     string
	kind     kind
	width    int64
	sense    sense
	scale    int64 // of decimals
	children []*node
	place    int   // among the nodes of its batch
	dict     *dict // nil: the values are not numbers of entries of a dictionary
}

// dict is a dictionary: the values that numbers stand for.
type dict struct {
	id     int64
	number int // among those of the schema
	values *node
	nodes  []*node // of its batches
}

// leaf is a column: a top-level field, or a part of a struct.
type leaf struct {
	column format.Column
	node   *node
	above  []*node // the structs it is in: where one of them is null, so is the leaf
}

// schema is that of a file.
type schema struct {
	nodes  []*node // of a record batch, in the order in which it lists them
	dicts  []*dict
	leaves []leaf
}

// Types of fields, as Arrow's Schema.fbs numbers them.
const (
	typeNull = 1 + iota
	typeInt
	typeFloat
	typeBinary
	typeUtf8
	typeBool
	typeDecimal
	typeDate
	typeTime
	typeTimestamp
	typeInterval
	typeList
	typeStruct
	typeUnion
	typeFixedBinary
	typeFixedList
	typeMap
	typeDuration
	typeLargeBinary
	typeLargeUtf8
	typeLargeList
)

const (
	maxDepth   = 64
	maxColumns = 10_000
	maxWidth   = 1 << 20
	// maxNames bounds all names together, each of which is part of the names of what it holds.
	maxNames = 1 << 18
)

// parseSchema reads the message that a file begins with.
func parseSchema(b []byte) (*schema, error) {
	bad := false
	m, err := parseMessage(b, &bad)
	if err != nil || bad || m.kind != messageSchema {
		return nil, format.Damaged("it does not begin with a schema")
	}
	if m.header.number(0, 2, 0) != 0 {
		return nil, errkind.Errorf(errkind.Invalid, "its numbers are big endian, which is not supported")
	}
	s := &schema{}
	p := &parser{schema: s}
	var top []*node
	for _, f := range m.header.tables(1) {
		n, err := p.field(f, &s.nodes, 0)
		if err != nil {
			return nil, err
		}
		top = append(top, n)
	}
	if bad || p.count > maxColumns {
		return nil, format.Damaged("its schema can't be read, or has more than %d fields", maxColumns)
	}
	s.name(top)
	return s, nil
}

type parser struct {
	schema *schema
	count  int
	names  int // bytes
}

// field is a field and what it consists of. It becomes one of nodes.
func (p *parser) field(f table, nodes *[]*node, depth int) (*node, error) {
	name := f.text(0)
	p.names += len(name)
	if p.count++; depth > maxDepth || p.count > maxColumns || p.names > maxNames || *f.bad {
		return nil, format.Damaged("its schema can't be read, or is too deep")
	}
	n := &node{name: name, place: len(*nodes)}
	*nodes = append(*nodes, n)
	encoded, ok := f.child(4)
	if !ok {
		return n, p.layout(n, f, nodes, depth)
	}
	// The numbers of entries are here, the values in messages of their own.
	d := &dict{id: encoded.number(0, 8, 0), number: len(p.schema.dicts)}
	p.schema.dicts = append(p.schema.dicts, d)
	n.dict, n.kind, n.width, n.sense = d, kindFixed, 4, signed
	if t, ok := encoded.child(1); ok {
		if err := integer(n, t); err != nil {
			return nil, err
		}
	}
	d.values = &node{name: n.name}
	d.nodes = []*node{d.values}
	return n, p.layout(d.values, f, &d.nodes, depth)
}

func integer(n *node, t table) error {
	bits := t.number(0, 4, 0)
	n.kind, n.width, n.sense = kindFixed, bits/8, unsigned
	if t.number(1, 1, 0) != 0 {
		n.sense = signed
	}
	if bits != 8 && bits != 16 && bits != 32 && bits != 64 {
		return format.Damaged("column %q: an integer can't have %d bits", n.name, bits)
	}
	return nil
}

// layout fills in how the values of n are laid out.
func (p *parser) layout(n *node, f table, nodes *[]*node, depth int) error {
	number := f.number(2, 1, 0)
	t, ok := f.child(3)
	if !ok && number != typeNull {
		return format.Damaged("column %q has no type", n.name)
	}
	fixed := func(width int64, s sense) { n.kind, n.width, n.sense = kindFixed, width, s }
	variable := func(width int64, s sense) { n.kind, n.width, n.sense = kindVariable, width, s }
	unit := func(def int64) int64 { return t.number(0, 2, def) }
	switch number {
	case typeNull:
		n.kind = kindNull
	case typeBool:
		n.kind = kindBool
	case typeInt:
		if err := integer(n, t); err != nil {
			return err
		}
	case typeFloat:
		fixed(2<<(unit(0)&3), float)
	case typeDecimal:
		n.scale = t.number(1, 4, 0)
		if fixed(t.number(2, 4, 128)/8, decimal); n.scale < 0 || n.scale > 100 {
			return format.Damaged("column %q: a decimal can't have %d decimals", n.name, n.scale)
		}
	case typeDate:
		fixed(4<<min(1, unit(1)), signed) // days have 32 bits, milliseconds 64
	case typeTime:
		fixed(t.number(1, 4, 32)/8, signed)
	case typeTimestamp, typeDuration:
		fixed(8, signed)
	case typeFixedBinary:
		fixed(t.number(0, 4, 0), opaque)
	case typeBinary:
		variable(4, opaque)
	case typeUtf8:
		variable(4, text)
	case typeLargeBinary:
		variable(8, opaque)
	case typeLargeUtf8:
		variable(8, text)
	case typeList, typeMap:
		n.kind, n.width = kindList, 4
	case typeLargeList:
		n.kind, n.width = kindList, 8
	case typeFixedList:
		n.kind, n.width = kindFixedList, t.number(0, 4, 0)
	case typeStruct:
		n.kind = kindStruct
	default:
		return errkind.Errorf(errkind.Invalid, "column %q has a type (%d of Arrow's) that is not supported; write it as another one", n.name, number)
	}
	if n.width < 0 || n.kind == kindFixed && n.width == 0 && n.sense != opaque || n.sense == float && n.width > 8 || n.width > maxWidth {
		return format.Damaged("column %q: its values can't have %d bytes", n.name, n.width)
	}
	for _, c := range f.tables(5) {
		child, err := p.field(c, nodes, depth+1)
		if err != nil {
			return err
		}
		n.children = append(n.children, child)
	}
	if lists := n.kind == kindList || n.kind == kindFixedList; lists && len(n.children) != 1 || !lists && n.kind != kindStruct && len(n.children) > 0 {
		return format.Damaged("column %q: %d fields are in it", n.name, len(n.children))
	}
	return nil
}

// name finds the columns. They are named by the path to them: "label", "user.name". The bytes of a struct {bytes, path}, as
// Hugging Face has images and audio, go by the name of the struct.
func (s *schema) name(top []*node) {
	var full []string
	used := map[string]int{}
	var walk func(n *node, path string, above []*node)
	walk = func(n *node, path string, above []*node) {
		if n.kind != kindStruct || n.dict != nil {
			s.leaves = append(s.leaves, leaf{column: format.Column{Name: path, Type: n.kindOfColumn()}, node: n, above: above})
			full = append(full, path)
			return
		}
		inside := append(slices.Clip(above), n)
		for _, c := range n.children {
			before := len(s.leaves)
			walk(c, path+"."+c.name, inside)
			if c.name == "bytes" && len(n.children) == 2 && (n.children[0].name == "path" || n.children[1].name == "path") && len(s.leaves) == before+1 {
				s.leaves[before].column.Name = strings.TrimSuffix(path+"."+c.name, ".bytes")
			}
		}
	}
	for _, n := range top {
		walk(n, n.name, nil)
	}
	for i := range s.leaves {
		used[s.leaves[i].column.Name]++
	}
	for i := range s.leaves {
		if used[s.leaves[i].column.Name] > 1 {
			s.leaves[i].column.Name = full[i]
		}
	}
}

// kindOfColumn is the type of a column of such values.
func (n *node) kindOfColumn() format.Type {
	if n.dict != nil {
		return n.dict.values.kindOfColumn()
	}
	switch n.kind {
	case kindNull, kindBool:
		return format.Int64
	case kindList, kindFixedList, kindStruct:
		return format.JSON
	}
	switch n.sense {
	case text:
		return format.Text
	case signed, unsigned:
		return format.Int64
	case float, decimal:
		return format.Float64
	}
	return format.Bytes
}
