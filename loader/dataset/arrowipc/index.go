package arrowipc

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset/format"
)

const (
	fileMagic    = "ARROW1"
	featherMagic = "FEA1"
	// continuation begins a message, except in files of very old writers.
	continuation = 0xffffffff
	maxMetadata  = 64 << 20
	// aheadBytes is how much is read from where a message begins: mostly all but the values.
	aheadBytes = 32 << 10
	maxRows    = 1 << 40
)

// Codecs of the buffers of a batch. Arrow's number is one less; 0 is none.
const (
	codecNone = iota
	codecLZ4
	codecZstd
)

// indexer walks over the messages of a file, and reads of their bodies what says where the values are.
type indexer struct {
	ctx  context.Context //nolint:containedctx // lives as long as one call of Index
	o    format.Object
	buf  []byte // what is at start
	at   int64
	spec *schema
	top  []*node // of spec

	out  []byte
	rows int64
	data int64
}

// read has n bytes at off, valid until the next call.
func (x *indexer) read(off, n int64) ([]byte, error) {
	if off < x.at || off+n > x.at+int64(len(x.buf)) {
		want := min(max(n, aheadBytes), x.o.Size()-off)
		if int64(cap(x.buf)) < want {
			x.buf = make([]byte, want)
		}
		x.buf, x.at = x.buf[:want], off
		if err := x.o.ReadAt(x.ctx, off, x.buf); err != nil {
			x.buf = x.buf[:0]
			return nil, err
		}
	}
	return x.buf[off-x.at:][:n:n], nil
}

// next is the metadata of the message at off, and where its body is; nil at the end of the stream.
func (x *indexer) next(off int64) (metadata []byte, body int64, err error) {
	size := x.o.Size()
	if off+4 > size {
		return nil, off, nil
	}
	head, err := x.read(off, min(8, size-off))
	if err != nil {
		return nil, 0, err
	}
	n, skip := int64(binary.LittleEndian.Uint32(head)), int64(4)
	if n == continuation && len(head) == 8 {
		n, skip = int64(binary.LittleEndian.Uint32(head[4:])), 8
	}
	switch {
	case n == 0:
		return nil, off, nil
	case n > maxMetadata:
		return nil, 0, format.Damaged("the message at offset %d can't have %d bytes of metadata", off, n)
	case off+skip+n > size:
		return nil, 0, format.Damaged("it is cut off in the message at offset %d", off)
	}
	metadata, err = x.read(off+skip, n)
	return bytes.Clone(metadata), off + skip + n, err
}

// run indexes all messages. It returns the metadata of the schema.
func (x *indexer) run(tolerate func(error) error) (head []byte, err error) {
	off, err := x.begin()
	if err != nil {
		return nil, err
	}
	first, off, err := x.next(off)
	if err == nil && first == nil {
		err = format.Damaged("nothing is in it")
	}
	if errkind.Of(err) == errkind.BadData {
		err = format.Damaged("it is no Arrow file or stream: %w", err)
	}
	if err != nil {
		return nil, err
	}
	head = first
	if x.spec, err = parseSchema(head); err != nil {
		return nil, err
	}
	x.top = x.spec.top()
	for {
		metadata, body, err := x.next(off)
		if err == nil && metadata == nil {
			return head, nil
		}
		if err == nil {
			off, err = x.message(metadata, body)
		}
		if err != nil {
			return head, tolerate(err)
		}
	}
}

// begin is where the messages begin.
func (x *indexer) begin() (int64, error) {
	head, err := x.read(0, min(8, x.o.Size()))
	switch {
	case err != nil:
		return 0, err
	case len(head) == 8 && string(head[:len(fileMagic)]) == fileMagic:
		tail := make([]byte, len(fileMagic))
		if err := x.o.ReadAt(x.ctx, x.o.Size()-int64(len(tail)), tail); err != nil {
			return 0, err
		}
		if string(tail) != fileMagic {
			return 0, format.Damaged("it does not end as an Arrow file does; it is cut off")
		}
		return 8, nil
	case len(head) >= 4 && string(head[:4]) == featherMagic:
		return 0, errkind.Errorf(errkind.Invalid, "it is Feather of version 1; write it anew as version 2")
	}
	return 0, nil
}

// message indexes one message and returns where the next one is.
func (x *indexer) message(metadata []byte, body int64) (next int64, err error) {
	bad := false
	m, err := parseMessage(metadata, &bad)
	if err != nil {
		return 0, err
	}
	if bad || m.body > x.o.Size()-body {
		return 0, format.Damaged("it is cut off in the message whose body begins at offset %d", body)
	}
	next = body + m.body
	switch m.kind {
	case messageBatch:
		before := len(x.out)
		rows, err := x.batch(m.header, body, m.body, x.spec.nodes, 0)
		if err != nil {
			x.out = x.out[:before]
			return 0, err
		}
		x.rows += rows
	case messageDictionary:
		if err := x.dictionary(m.header, body, m.body); err != nil {
			return 0, err
		}
	}
	if bad {
		return 0, format.Damaged("the message whose body begins at offset %d can't be read", body)
	}
	return next, nil
}

func (x *indexer) dictionary(t table, body, size int64) error {
	id := t.number(0, 8, 0)
	data, ok := t.child(1)
	for _, d := range x.spec.dicts {
		if d.id != id || !ok {
			continue
		}
		if t.number(2, 1, 0) != 0 {
			return errkind.Errorf(errkind.Invalid, "column %q: its dictionary comes in parts (deltas), which is not supported", d.values.name)
		}
		before, payload := len(x.out), x.data
		_, err := x.batch(data, body, size, d.nodes, 1+int64(d.number))
		x.data = payload // Entries belong to no sample.
		if err != nil {
			x.out = x.out[:before]
			return err
		}
	}
	return nil
}

// batch appends the index of a batch of nodes: of rows where kind is 0, else of dictionary kind-1.
func (x *indexer) batch(t table, body, size int64, nodes []*node, kind int64) (rows int64, err error) {
	rows = t.number(0, 8, 0)
	lengths, numNodes := t.vector(1, 16)
	buffers, numBuffers := t.vector(2, 16)
	if *t.bad || rows < 0 || rows > maxRows-x.rows || numNodes != int64(len(nodes)) {
		return 0, format.Damaged("a batch of %d rows and %d columns does not fit the schema of %d", rows, numNodes, len(nodes))
	}
	codec := int64(codecNone)
	if c, ok := t.child(3); ok {
		if codec = c.number(0, 1, 0) + 1; codec > codecZstd || c.number(1, 1, 0) != 0 {
			return 0, errkind.Errorf(errkind.Invalid, "its buffers are compressed in a way that is not supported")
		}
	}
	begin := len(x.out)
	put := func(v int64) { x.out = binary.AppendUvarint(x.out, uint64(v)) } //nolint:gosec // not negative
	put(kind)
	put(rows)
	put(codec)
	put(body)
	r := &bodies{x: x, t: t, at: buffers, left: numBuffers, body: body, size: size, codec: codec}
	for i, n := range nodes {
		length, nulls := t.i64(lengths+16*int64(i)), t.i64(lengths+16*int64(i)+8)
		if length < 0 || length > maxRows || nulls < 0 || nulls > length {
			return 0, format.Damaged("column %q can't have %d values, %d of them null", n.name, length, nulls)
		}
		put(length)
		if err := r.node(n, length, nulls); err != nil {
			return 0, err
		}
		if int64(len(x.out)) > format.MaxIndexBytes {
			return 0, format.Damaged("its values are too many for one shard")
		}
	}
	_, _, err = x.spec.parse(&format.Reader{Rest: x.out[begin:]}, x.top, x.rows)
	return rows, err
}

// bodies takes the buffers of a batch one after the other.
type bodies struct {
	x          *indexer
	t          table
	at, left   int64 // of the list of buffers
	body, size int64
	codec      int64
}

// next is where the next buffer is in the file.
func (r *bodies) next() (format.Range, error) {
	if r.left == 0 {
		return format.Range{}, format.Damaged("a batch has fewer buffers than its columns need")
	}
	off, n := r.t.i64(r.at), r.t.i64(r.at+8)
	r.at, r.left = r.at+16, r.left-1
	if off < 0 || n < 0 || off > r.size || n > r.size-off {
		return format.Range{}, format.Damaged("a buffer lies outside of its message")
	}
	return format.Range{Off: r.body + off, Len: n}, nil
}

// keep appends a buffer of want bytes to the index.
func (r *bodies) keep(g format.Range, want int64) error {
	if want > format.MaxIndexBytes-int64(len(r.x.out)) || r.codec == codecNone && want > g.Len {
		return format.Damaged("a buffer of %d bytes can't hold %d", g.Len, want)
	}
	if r.codec == codecNone {
		b, err := r.x.read(g.Off, want)
		if err == nil {
			r.x.out = append(r.x.out, b...)
		}
		return err
	}
	b, err := r.x.read(g.Off, g.Len)
	if err != nil {
		return err
	}
	plain, err := unpack(r.codec, b, want)
	if err == nil {
		r.x.out = append(r.x.out, plain...)
	}
	return err
}

// node appends what the index keeps of one node: validity if there are nulls, offsets, and where the values are.
func (r *bodies) node(n *node, length, nulls int64) error {
	x := r.x
	if n.kind == kindNull {
		return nil
	}
	validity, err := r.next()
	if err != nil {
		return err
	}
	if nulls == 0 {
		x.out = append(x.out, 0)
	} else {
		x.out = append(x.out, 1)
		if err := r.keep(validity, (length+7)/8); err != nil {
			return err
		}
	}
	last := int64(0)
	if n.kind == kindVariable || n.kind == kindList {
		offsets, err := r.next()
		if err != nil {
			return err
		}
		want := (length + 1) * n.width
		if length == 0 { // The offsets of nothing may be left out.
			x.out = append(x.out, make([]byte, want)...)
		} else if err := r.keep(offsets, want); err != nil {
			return err
		}
		last = offsetAt(x.out[int64(len(x.out))-want:], n.width, length)
	}
	switch n.kind {
	case kindBool, kindFixed, kindVariable:
	default:
		return nil
	}
	values, err := r.next()
	if err != nil {
		return err
	}
	x.out = binary.AppendUvarint(x.out, uint64(values.Off)) //nolint:gosec // not negative
	x.out = binary.AppendUvarint(x.out, uint64(values.Len)) //nolint:gosec // not negative
	switch n.kind {
	case kindBool:
		last = (length + 7) / 8
	case kindFixed:
		last = min(length, math.MaxInt64/max(1, n.width)) * n.width
	}
	x.data += max(0, min(last, math.MaxInt64/2-x.data))
	return nil
}

// offsetAt is an offset of width 4 or 8.
func offsetAt(b []byte, width, i int64) int64 {
	if width == 4 {
		return int64(int32(binary.LittleEndian.Uint32(b[4*i:]))) //nolint:gosec // that is how it is stored
	}
	return int64(binary.LittleEndian.Uint64(b[8*i:])) //nolint:gosec // that is how it is stored
}
