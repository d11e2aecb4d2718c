package partition

import (
	"encoding/binary"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/zeebo/xxh3"
)

// hashVersion opens every hashed text. It changes whenever equal data would hash differently.
const hashVersion = "millrace-partition-1"

// Hash is the content hash of a record batch: xxh3-128, big endian, of its schema, its number of rows and its values
// in one canonical form. Equal data has an equal hash, whatever the offsets, padding and spare validity bitmaps of
// its buffers, and whatever lies under null values. Metadata does not count, except [DTypeKey].
func Hash(rec arrow.RecordBatch) [16]byte {
	c := canonical{h: xxh3.New()}
	c.text(hashVersion)
	schema := rec.Schema()
	c.count(schema.NumFields())
	for _, f := range schema.Fields() {
		c.text(fieldKey(f))
	}
	c.count(int(rec.NumRows()))
	for _, column := range rec.Columns() {
		data := column.Data()
		c.values(data, data.Offset(), data.Len())
	}
	c.flush()
	return c.h.Sum128().Bytes()
}

// fieldKey is a text that differs for fields of different name, type or meaning.
func fieldKey(f arrow.Field) string {
	key := f.Name + "\x00" + typeKey(f.Type)
	if f.Nullable {
		key += "?"
	}
	if dtype, ok := f.Metadata.GetValue(DTypeKey); ok {
		key += "\x00" + dtype
	}
	return key
}

// typeKey names a type. Arrow's own names are kept for what has no parts; the names of list elements do not count,
// since systems differ in them.
func typeKey(t arrow.DataType) string {
	switch t := t.(type) {
	case arrow.ExtensionType:
		return "extension<" + t.ExtensionName() + "," + t.Serialize() + "," + typeKey(t.StorageType()) + ">"
	case *arrow.FixedSizeListType:
		return "list[" + strconv.Itoa(int(t.Len())) + "]<" + typeKey(t.Elem()) + ">"
	case *arrow.ListType:
		return "list<" + typeKey(t.Elem()) + ">"
	case *arrow.LargeListType:
		return "large_list<" + typeKey(t.Elem()) + ">"
	case *arrow.StructType:
		parts := make([]string, t.NumFields())
		for i, f := range t.Fields() {
			parts[i] = fieldKey(f)
		}
		return "struct<" + strings.Join(parts, "\x01") + ">"
	}
	return t.String()
}

// canonical feeds a hasher with the canonical form of values. Small pieces are gathered, so that a column of short
// strings does not cost a call for each length.
type canonical struct {
	h     *xxh3.Hasher
	small []byte
}

const smallPieces = 512

func (c *canonical) flush() {
	_, _ = c.h.Write(c.small) // a hash never fails
	c.small = c.small[:0]
}

func (c *canonical) number(v uint64) {
	c.small = binary.LittleEndian.AppendUint64(c.small, v)
	if len(c.small) >= smallPieces {
		c.flush()
	}
}

func (c *canonical) count(n int) { c.number(uint64(n)) } //nolint:gosec // Counts are never negative.

func (c *canonical) bytes(b []byte) {
	if len(b) < smallPieces {
		c.small = append(c.small, b...)
		if len(c.small) >= smallPieces {
			c.flush()
		}
		return
	}
	c.flush()
	_, _ = c.h.Write(b)
}

func (c *canonical) text(s string) {
	c.count(len(s))
	c.bytes([]byte(s))
}

// values writes n values of d from off on, off counting from the beginning of d's buffers: first which ones are null,
// then each run of those that are not.
func (c *canonical) values(d arrow.ArrayData, off, n int) {
	if d.DataType().ID() == arrow.NULL {
		return
	}
	validity := validityOf(d)
	nulls := countNulls(validity, off, n)
	c.count(nulls)
	if nulls == 0 {
		c.run(d, off, n)
		return
	}
	c.bits(validity, off, n)
	forEachRun(validity, off, n, func(from, count int) { c.run(d, from, count) })
}

// run writes n values, none of which is null.
func (c *canonical) run(d arrow.ArrayData, off, n int) {
	if n == 0 {
		return
	}
	switch t := storageType(d.DataType()).(type) {
	case *arrow.BooleanType:
		c.bits(d.Buffers()[1].Bytes(), off, n)
	case *arrow.BinaryType, *arrow.StringType:
		ends := arrow.Int32Traits.CastFromBytes(d.Buffers()[1].Bytes())[off : off+n+1]
		lengths(c, ends)
		c.bytes(bytesOf(d.Buffers()[2])[ends[0]:ends[n]])
	case *arrow.LargeBinaryType, *arrow.LargeStringType:
		ends := arrow.Int64Traits.CastFromBytes(d.Buffers()[1].Bytes())[off : off+n+1]
		lengths(c, ends)
		c.bytes(bytesOf(d.Buffers()[2])[ends[0]:ends[n]])
	case *arrow.ListType:
		ends := arrow.Int32Traits.CastFromBytes(d.Buffers()[1].Bytes())[off : off+n+1]
		lengths(c, ends)
		c.child(d.Children()[0], int(ends[0]), int(ends[n]-ends[0]))
	case *arrow.LargeListType:
		ends := arrow.Int64Traits.CastFromBytes(d.Buffers()[1].Bytes())[off : off+n+1]
		lengths(c, ends)
		c.child(d.Children()[0], int(ends[0]), int(ends[n]-ends[0]))
	case *arrow.FixedSizeListType:
		c.child(d.Children()[0], off*int(t.Len()), n*int(t.Len()))
	case *arrow.StructType:
		for _, child := range d.Children() {
			c.child(child, off, n)
		}
	case *arrow.DictionaryType:
		c.described(d, off, n)
	case arrow.FixedWidthDataType:
		size := t.Bytes()
		c.bytes(bytesOf(d.Buffers()[1])[off*size : (off+n)*size])
	default:
		c.described(d, off, n)
	}
}

func (c *canonical) child(d arrow.ArrayData, off, n int) { c.values(d, d.Offset()+off, n) }

// described writes the text form of each value: slow, and equal for equal values, for types that partitions do not
// have unless a source brings them along.
func (c *canonical) described(d arrow.ArrayData, off, n int) {
	slice := array.NewSliceData(d, int64(off-d.Offset()), int64(off-d.Offset()+n))
	defer slice.Release()
	values := array.MakeFromData(slice)
	defer values.Release()
	for i := range n {
		c.text(values.ValueStr(i))
	}
}

// bits writes n bits from off on, so that the first one is the lowest of the first byte.
func (c *canonical) bits(bitmap []byte, off, n int) {
	for done := 0; done < n; done += 64 {
		word := uint64(0)
		for i := range min(64, n-done) {
			if bitutil.BitIsSet(bitmap, off+done+i) {
				word |= 1 << i
			}
		}
		c.number(word)
	}
}

func lengths[T int32 | int64](c *canonical, ends []T) {
	for i, end := range ends[1:] {
		c.count(int(end - ends[i]))
	}
}

// forEachRun calls fn for each longest run of set bits among the n bits of bitmap from off on.
func forEachRun(bitmap []byte, off, n int, fn func(from, count int)) {
	start := -1
	for i := off; i < off+n; i++ {
		switch set := bitutil.BitIsSet(bitmap, i); {
		case set && start < 0:
			start = i
		case !set && start >= 0:
			fn(start, i-start)
			start = -1
		}
	}
	if start >= 0 {
		fn(start, off+n-start)
	}
}

// validityOf is d's bitmap of values that are not null; nil when none is null.
func validityOf(d arrow.ArrayData) []byte {
	switch storageType(d.DataType()).ID() {
	case arrow.NULL, arrow.SPARSE_UNION, arrow.DENSE_UNION, arrow.RUN_END_ENCODED:
		return nil
	}
	return bytesOf(d.Buffers()[0])
}

func countNulls(validity []byte, off, n int) int {
	if len(validity) == 0 {
		return 0
	}
	return n - bitutil.CountSetBits(validity, off, n)
}

func storageType(t arrow.DataType) arrow.DataType {
	for {
		extension, ok := t.(arrow.ExtensionType)
		if !ok {
			return t
		}
		t = extension.StorageType()
	}
}
