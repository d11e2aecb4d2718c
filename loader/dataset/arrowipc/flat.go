package arrowipc

import (
	"encoding/binary"

	"github.com/millrace/millrace/loader/dataset/format"
)

// table is a table of a flatbuffer: its fields are found by their slots. What lies outside reads as absent, and sets bad.
type table struct {
	b   []byte
	at  int64
	bad *bool
}

// root is the table that a flatbuffer consists of.
func root(b []byte, bad *bool) table {
	t := table{b: b, bad: bad}
	return t.jump(0)
}

func (t table) u16(at int64) int64 {
	if at < 0 || at+2 > int64(len(t.b)) {
		*t.bad = true
		return 0
	}
	return int64(binary.LittleEndian.Uint16(t.b[at:]))
}

func (t table) u32(at int64) int64 {
	if at < 0 || at+4 > int64(len(t.b)) {
		*t.bad = true
		return 0
	}
	return int64(binary.LittleEndian.Uint32(t.b[at:]))
}

func (t table) i64(at int64) int64 {
	if at < 0 || at+8 > int64(len(t.b)) {
		*t.bad = true
		return 0
	}
	return int64(binary.LittleEndian.Uint64(t.b[at:])) //nolint:gosec // that is how it is stored
}

// jump follows the offset at a place.
func (t table) jump(at int64) table {
	t.at = at + t.u32(at)
	return t
}

// field is where the value of a slot is; 0: it is left out.
func (t table) field(slot int64) int64 {
	if *t.bad {
		return 0
	}
	vtable := t.at - int64(int32(t.u32(t.at))) //nolint:gosec // an offset has a sign
	if 4+2*slot+2 > t.u16(vtable) {
		return 0
	}
	off := t.u16(vtable + 4 + 2*slot)
	if off == 0 {
		return 0
	}
	return t.at + off
}

// number is a value of size bytes, def where it is left out.
func (t table) number(slot int64, size int, def int64) int64 {
	at := t.field(slot)
	if at == 0 {
		return def
	}
	switch size {
	case 1:
		if at >= int64(len(t.b)) {
			*t.bad = true
			return 0
		}
		return int64(t.b[at])
	case 2:
		return t.u16(at)
	case 4:
		return int64(int32(t.u32(at))) //nolint:gosec // that is how it is stored
	}
	return t.i64(at)
}

// child is a table that another one refers to.
func (t table) child(slot int64) (c table, ok bool) {
	at := t.field(slot)
	if at == 0 {
		return table{}, false
	}
	return t.jump(at), !*t.bad
}

// text is a string.
func (t table) text(slot int64) string {
	at := t.field(slot)
	if at == 0 {
		return ""
	}
	s := t.jump(at)
	n := s.u32(s.at)
	if *t.bad || s.at+4+n > int64(len(t.b)) {
		*t.bad = true
		return ""
	}
	return string(t.b[s.at+4 : s.at+4+n])
}

// vector is where the n elements of a vector are, each of size bytes.
func (t table) vector(slot, size int64) (at, n int64) {
	field := t.field(slot)
	if field == 0 {
		return 0, 0
	}
	v := t.jump(field)
	n = v.u32(v.at)
	if *t.bad || v.at+4+n*size > int64(len(t.b)) {
		*t.bad = true
		return 0, 0
	}
	return v.at + 4, n
}

// tables are the elements of a vector of tables.
func (t table) tables(slot int64) []table {
	at, n := t.vector(slot, 4)
	out := make([]table, n)
	for i := range out {
		out[i] = t.jump(at + 4*int64(i))
	}
	return out
}

// Kinds of messages.
const (
	messageSchema     = 1
	messageDictionary = 2
	messageBatch      = 3
)

// message is the head of one, and how long its body is.
type message struct {
	kind   int64
	header table
	body   int64
}

func parseMessage(b []byte, bad *bool) (message, error) {
	t := root(b, bad)
	m := message{kind: t.number(1, 1, 0), body: t.number(3, 8, 0)}
	var ok bool
	if m.header, ok = t.child(2); !ok || m.body < 0 {
		return m, format.Damaged("a message has no header")
	}
	return m, nil
}
