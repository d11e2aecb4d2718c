package partition

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// DataBytes is the exact number of bytes that the buffers of rec need for its rows: a function of the data alone,
// without spare capacity, padding or what lies outside of the rows. A validity bitmap counts only if a value is null.
func DataBytes(rec arrow.RecordBatch) int64 {
	total := int64(0)
	for _, column := range rec.Columns() {
		data := column.Data()
		total += valueBytes(data, data.Offset(), data.Len())
	}
	return total
}

// valueBytes is the size of n values of d from off on, off counting from the beginning of d's buffers.
func valueBytes(d arrow.ArrayData, off, n int) int64 {
	total := int64(0)
	if countNulls(validityOf(d), off, n) > 0 {
		total += int64(n+7) / 8
	}
	switch t := storageType(d.DataType()).(type) {
	case *arrow.NullType:
	case *arrow.BooleanType:
		total += int64(n+7) / 8
	case *arrow.BinaryType, *arrow.StringType:
		from, to := span32(d, off, n)
		total += int64(n+1)*4 + to - from
	case *arrow.LargeBinaryType, *arrow.LargeStringType:
		from, to := span64(d, off, n)
		total += int64(n+1)*8 + to - from
	case *arrow.ListType:
		from, to := span32(d, off, n)
		total += int64(n+1)*4 + childBytes(d.Children()[0], from, to-from)
	case *arrow.LargeListType:
		from, to := span64(d, off, n)
		total += int64(n+1)*8 + childBytes(d.Children()[0], from, to-from)
	case *arrow.FixedSizeListType:
		width := int64(t.Len())
		total += childBytes(d.Children()[0], int64(off)*width, int64(n)*width)
	case *arrow.StructType:
		for _, child := range d.Children() {
			total += childBytes(child, int64(off), int64(n))
		}
	case arrow.FixedWidthDataType:
		total += int64(n) * int64(t.Bytes())
	default:
		total += wholeBytes(d)
	}
	return total
}

func childBytes(d arrow.ArrayData, off, n int64) int64 {
	return valueBytes(d, d.Offset()+int(off), int(n))
}

// wholeBytes counts the buffers of a type whose rows can't be told apart in them.
func wholeBytes(d arrow.ArrayData) int64 {
	total := int64(0)
	for _, b := range d.Buffers() {
		total += int64(len(bytesOf(b)))
	}
	for _, child := range d.Children() {
		total += wholeBytes(child)
	}
	return total
}

// span32 and span64 are the ends of the run of elements or bytes that n values of d from off on refer to.
func span32(d arrow.ArrayData, off, n int) (from, to int64) {
	if n == 0 {
		return 0, 0
	}
	ends := arrow.Int32Traits.CastFromBytes(bytesOf(d.Buffers()[1]))
	return int64(ends[off]), int64(ends[off+n])
}

func span64(d arrow.ArrayData, off, n int) (from, to int64) {
	if n == 0 {
		return 0, 0
	}
	ends := arrow.Int64Traits.CastFromBytes(bytesOf(d.Buffers()[1]))
	return ends[off], ends[off+n]
}

func bytesOf(b *memory.Buffer) []byte {
	if b == nil {
		return nil
	}
	return b.Bytes()
}
