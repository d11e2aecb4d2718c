// Package arrowipc reads files and streams of Arrow IPC (.arrow, .feather of version 2), such as Hugging Face's datasets on disk.
//
// A row is a sample, a field of the schema is a column. Where the values of each row lie follows from the offsets and the
// validity of its columns: these are read when a file is indexed, and kept in the index, so that any row is one range of bytes
// for each of its columns, whatever the size of record batches. Batches whose buffers are compressed are read as a whole, by
// the column. The layout is that of https://arrow.apache.org/docs/format/Columnar.html.
package arrowipc

import (
	"context"
	"slices"
	"sort"

	"github.com/millrace/millrace/loader/dataset/format"
)

// version of the index.
const version = 1

// Format is Arrow IPC.
type Format struct{}

// Name implements format.Format.
func (Format) Name() string { return "arrow" }

// Suffixes implements format.Format.
func (Format) Suffixes() []string { return []string{".arrow", ".feather"} }

// Compressible implements format.Format.
func (Format) Compressible() bool { return false }

// Index implements format.Format. It reads no values.
func (Format) Index(ctx context.Context, o format.Object, tolerate func(error) error) (format.Indexed, error) {
	x := &indexer{ctx: ctx, o: o}
	head, err := x.run(tolerate)
	if err != nil {
		return format.Indexed{}, err
	}
	return format.Indexed{Raw: format.Seal(version, head, x.out), Samples: x.rows, DataBytes: x.data, Content: o.Size()}, nil
}

// part is what a batch has of one node.
type part struct {
	length   int64
	validity []byte // nil: no value is null
	offsets  []byte
	values   format.Range // of the whole batch
}

// valid says whether value i is not null.
func (p *part) valid(i int64) bool { return p.validity == nil || p.validity[i/8]>>(i%8)&1 != 0 }

// batch is a record batch, or one of a dictionary.
type batch struct {
	rows  int64
	first int64 // row of the file
	codec int64
	spare int64 // the offset of a byte of the file that is there in any case
	parts []part
	dicts []*batch // those that hold at this batch, by number; nil: none came yet
}

// shard is an opened index.
type shard struct {
	*schema
	columns []format.Column
	batches []*batch // of rows
	rows    int64
	memory  int64
	// steps[leaf][batch] is how many rows a unit has, bases[leaf][batch] the number of its first unit.
	steps, bases [][]int64
}

const (
	// unitBytes is what a unit should have: less than a request costs.
	unitBytes = 64 << 10
	maxStep   = 4096
	// maxEntries is maxStep of a column with a dictionary, which each unit brings along.
	maxEntries = 64 << 10
)

// Open implements format.Format.
func (Format) Open(raw []byte) (format.Shard, error) {
	head, body, err := format.Unseal(raw, version)
	if err != nil {
		return nil, err
	}
	spec, err := parseSchema(head)
	if err != nil {
		return nil, err
	}
	s := &shard{schema: spec, memory: int64(len(head)) * 4}
	r := &format.Reader{Rest: body}
	t := &taker{shard: s, r: r, dicts: make([]*batch, len(spec.dicts)), top: spec.top()}
	for len(r.Rest) > 0 {
		if err := t.take(); err != nil {
			return nil, err
		}
	}
	for _, l := range s.leaves {
		s.columns = append(s.columns, l.column)
	}
	s.divide()
	return s, nil
}

// taker takes batches off an index.
type taker struct {
	*shard
	r      *format.Reader
	top    []*node
	dicts  []*batch // those that hold now
	shared bool     // a batch of rows refers to dicts
}

func (t *taker) take() error {
	b, kind, err := t.parse(t.r, t.top, t.rows)
	if err != nil {
		return err
	}
	t.memory += int64(len(b.parts)*80 + 128)
	if kind > 0 {
		return t.dictionary(b, t.shard.dicts[kind-1].nodes, kind-1)
	}
	b.dicts, t.shared = t.dicts, true
	b.first = t.rows
	t.rows += b.rows
	t.batches = append(t.batches, b)
	return nil
}

// parse takes a batch off r and checks it: of rows, of which there were some before, where kind is 0, else of dictionary kind-1.
func (s *schema) parse(r *format.Reader, top []*node, before int64) (b *batch, kind int64, err error) {
	kind = r.Int(int64(len(s.dicts)))
	nodes := s.nodes
	if kind > 0 {
		nodes = s.dicts[kind-1].nodes
		top = nodes[:1]
	}
	b = &batch{rows: r.Int(maxRows - before), codec: r.Int(codecZstd), spare: r.Int(1<<62) - 1, parts: make([]part, len(nodes))}
	for i, n := range nodes {
		takePart(r, n, &b.parts[i])
	}
	if r.Bad || b.spare < 0 {
		return nil, 0, format.Damaged("a batch does not fit its size")
	}
	for i, n := range nodes {
		if err := b.check(n, &b.parts[i]); err != nil {
			return nil, 0, err
		}
	}
	for _, n := range top {
		if have := b.parts[n.place].length; have != b.rows {
			return nil, 0, format.Damaged("column %q has %d values in a batch of %d", n.name, have, b.rows)
		}
	}
	return b, kind, nil
}

// dictionary puts a dictionary in the place of one that came before.
func (t *taker) dictionary(b *batch, nodes []*node, number int64) error {
	if slices.ContainsFunc(nodes, func(n *node) bool { return n.dict != nil }) { // Entries that have entries.
		b.dicts, t.shared = t.dicts, true
	}
	if t.shared {
		t.dicts, t.shared = slices.Clone(t.dicts), false
		if t.memory += int64(len(t.dicts)) * 8; t.memory > format.MaxIndexBytes {
			return format.Damaged("its dictionaries change too often")
		}
	}
	t.dicts[number] = b
	return nil
}

// top are the fields that are in no other.
func (s *schema) top() []*node {
	inner := map[*node]bool{}
	for _, n := range s.nodes {
		for _, c := range n.children {
			inner[c] = true
		}
	}
	var out []*node
	for _, n := range s.nodes {
		if !inner[n] {
			out = append(out, n)
		}
	}
	return out
}

func takePart(r *format.Reader, n *node, p *part) {
	bytes := func(n int64) []byte {
		if n < 0 || n > int64(len(r.Rest)) {
			r.Bad, r.Rest = true, nil
			return nil
		}
		b := r.Rest[:n:n]
		r.Rest = r.Rest[n:]
		return b
	}
	p.length = r.Int(maxRows)
	if n.kind == kindNull {
		return
	}
	if flag := bytes(1); !r.Bad && flag[0] != 0 {
		p.validity = bytes((p.length + 7) / 8)
	}
	if n.kind == kindVariable || n.kind == kindList {
		p.offsets = bytes((p.length + 1) * n.width)
	}
	if n.kind == kindBool || n.kind == kindFixed || n.kind == kindVariable {
		p.values = format.Range{Off: r.Int(1 << 62), Len: r.Int(1 << 40)}
	}
}

// check holds a node to what its children and its values can have.
func (b *batch) check(n *node, p *part) error {
	last := int64(0)
	if p.offsets != nil {
		for i := range p.length + 1 {
			o := offsetAt(p.offsets, n.width, i)
			if o < last {
				return format.Damaged("column %q: value %d ends before it begins", n.name, i)
			}
			last = o
		}
	}
	switch n.kind {
	case kindBool:
		last = (p.length + 7) / 8
	case kindFixed:
		last = p.length * n.width
	case kindFixedList:
		last = p.length * n.width
	case kindStruct:
		last = p.length
	}
	if len(n.children) > 0 {
		for _, c := range n.children {
			if have := b.parts[c.place].length; have < last {
				return format.Damaged("column %q needs %d values of its parts, which have %d", n.name, last, have)
			}
		}
		return nil
	}
	if last > 0 && (b.codec == codecNone && last > p.values.Len || p.values.Len == 0) && n.kind != kindNull && n.kind != kindStruct {
		return format.Damaged("column %q has %d bytes of values, %d are needed", n.name, p.values.Len, last)
	}
	if last > 1<<50 {
		return format.Damaged("column %q can't have %d bytes of values", n.name, last)
	}
	return nil
}

// divide works out the units: rows of one column in one batch, as many as make about unitBytes.
func (s *shard) divide() {
	next := int64(0)
	for _, l := range s.leaves {
		steps, bases := make([]int64, len(s.batches)), make([]int64, len(s.batches))
		for i, b := range s.batches {
			step := b.rows
			if b.codec == codecNone {
				step = min(step, maxEntries)
			}
			if b.codec == codecNone && l.node.dict == nil && b.rows > 0 {
				step = min(maxStep, max(1, unitBytes/max(1, b.size(l.node, 0, b.rows)/b.rows)))
				if step > 8 {
					step &^= 7 // so that no two units share a byte of bits
				}
			}
			steps[i], bases[i] = max(1, step), next
			next += (b.rows + steps[i] - 1) / steps[i]
		}
		s.steps, s.bases = append(s.steps, steps), append(s.bases, bases)
		s.memory += int64(len(steps)) * 16
	}
}

// size is the number of bytes that values [from, to) of a node take in the file, when they are not compressed.
func (b *batch) size(n *node, from, to int64) (total int64) {
	b.ranges(n, from, to, nil, func(_ *node, _ *batch, g format.Range) { total += g.Len })
	return total
}

// ranges calls fn for each range of values [from, to) of n, outermost and first parts first. Where buffers are compressed, it
// is the whole buffer. dicts hold what numbers stand for; nil: without them.
func (b *batch) ranges(n *node, from, to int64, dicts []*batch, fn func(n *node, b *batch, g format.Range)) {
	p := &b.parts[n.place]
	switch n.kind {
	case kindBool:
		from, to = from/8, (to+7)/8
	case kindFixed:
		from, to = from*n.width, to*n.width
	case kindFixedList:
		from, to = from*n.width, to*n.width
	case kindVariable, kindList:
		from, to = offsetAt(p.offsets, n.width, from), offsetAt(p.offsets, n.width, to)
	}
	switch n.kind {
	case kindNull:
		return
	case kindList, kindFixedList, kindStruct:
		for _, c := range n.children {
			b.ranges(c, from, to, dicts, fn)
		}
		return
	}
	g := format.Range{Off: p.values.Off + from, Len: to - from}
	if b.codec != codecNone {
		if g = p.values; to == from {
			g.Len = 0
		}
	}
	fn(n, b, g)
	if n.dict == nil || dicts == nil {
		return
	}
	if d := dicts[n.dict.number]; d != nil {
		d.ranges(n.dict.values, 0, d.rows, d.dicts, fn)
	}
}

// NumSamples implements format.Shard.
func (s *shard) NumSamples() int64 { return s.rows }

// MemoryBytes implements format.Shard.
func (s *shard) MemoryBytes() int64 { return s.memory }

// Columns implements format.Shard.
func (s *shard) Columns() []format.Column { return s.columns }

// Units implements format.Shard.
func (s *shard) Units(rows []int64, wanted []bool) ([]format.Unit, error) {
	var units []format.Unit
	for i, l := range s.leaves {
		if !wanted[i] {
			continue
		}
		last := int64(-1)
		for _, row := range rows {
			at := s.batchOf(row)
			b, step := s.batches[at], s.steps[i][at]
			slice := (row - b.first) / step
			id := s.bases[i][at] + slice
			if id == last {
				continue
			}
			last = id
			from := slice * step
			to := min(from+step, b.rows)
			u := format.Unit{ID: id, First: b.first + from, Count: to - from}
			b.ranges(l.node, from, to, b.dicts, func(_ *node, _ *batch, g format.Range) {
				if g.Len > 0 {
					u.Ranges = append(u.Ranges, g)
				}
			})
			if len(u.Ranges) == 0 { // All is null or empty; a unit has a place nevertheless.
				u.Ranges = []format.Range{{Off: b.spare, Len: 1}}
			}
			units = append(units, u)
		}
	}
	return units, nil
}

// batchOf is the batch that holds a row.
func (s *shard) batchOf(row int64) int {
	return sort.Search(len(s.batches), func(i int) bool { return s.batches[i].first+s.batches[i].rows > row })
}

// find is the column, the batch and the rows within it that a unit holds.
func (s *shard) find(u format.Unit) (column int, b *batch, err error) {
	at := s.batchOf(u.First)
	if at == len(s.batches) {
		return 0, nil, format.Damaged("there is no row %d", u.First)
	}
	column = sort.Search(len(s.bases), func(i int) bool { return s.bases[i][at] > u.ID }) - 1
	if column < 0 {
		return 0, nil, format.Damaged("there is no unit %d", u.ID)
	}
	return column, s.batches[at], nil
}
