package parquet

import (
	"encoding/base64"
	"encoding/binary"
	"math/big"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow/float16"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/schema"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset/format"
)

// batchLevels is the number of values that are decoded at a time.
const batchLevels = 1024

// printer appends value i of the last batch as text; quoted as it stands in JSON.
type printer func(b []byte, i int, quoted bool) []byte

// batchReader reads the next batch of a column: its levels, and a printer for its values.
type batchReader struct {
	read func(defs, reps []int16) (levels int64, values int, err error)
	text printer
}

// readerOf is a batchReader for a column by its physical and logical type.
func readerOf(r file.ColumnChunkReader, l leaf) (batchReader, error) {
	switch r := r.(type) {
	case *file.BooleanColumnChunkReader:
		return typed(r.ReadBatch, func(b []byte, v, quoted bool) []byte {
			if quoted {
				return strconv.AppendBool(b, v)
			}
			return format.AppendBool(b, v)
		}), nil
	case *file.Int32ColumnChunkReader:
		return typed(r.ReadBatch, func(b []byte, v int32, _ bool) []byte {
			if unsigned(l.descr) {
				return strconv.AppendUint(b, uint64(uint32(v)), 10) //nolint:gosec // that is how it is stored
			}
			return appendScaled(b, int64(v), l.descr)
		}), nil
	case *file.Int64ColumnChunkReader:
		return typed(r.ReadBatch, func(b []byte, v int64, _ bool) []byte {
			if unsigned(l.descr) {
				return strconv.AppendUint(b, uint64(v), 10) //nolint:gosec // that is how it is stored
			}
			return appendScaled(b, v, l.descr)
		}), nil
	case *file.Int96ColumnChunkReader:
		return typed(r.ReadBatch, func(b []byte, v parquet.Int96, _ bool) []byte {
			const epoch, nanosOfDay = 2440588, 86400 * 1e9                                            // the Julian day of 1970-01-01
			days := int64(int32(binary.LittleEndian.Uint32(v[8:]))) - epoch                           //nolint:gosec // that is how it is stored
			return strconv.AppendInt(b, days*nanosOfDay+int64(binary.LittleEndian.Uint64(v[:8])), 10) //nolint:gosec // that is how it is stored
		}), nil
	case *file.Float32ColumnChunkReader:
		return typed(r.ReadBatch, func(b []byte, v float32, quoted bool) []byte { return appendFloat(b, float64(v), 32, quoted) }), nil
	case *file.Float64ColumnChunkReader:
		return typed(r.ReadBatch, func(b []byte, v float64, quoted bool) []byte { return appendFloat(b, v, 64, quoted) }), nil
	case *file.ByteArrayColumnChunkReader:
		return typed(r.ReadBatch, func(b []byte, v parquet.ByteArray, quoted bool) []byte { return appendBytes(b, v, l, quoted) }), nil
	case *file.FixedLenByteArrayColumnChunkReader:
		return typed(r.ReadBatch, func(b []byte, v parquet.FixedLenByteArray, quoted bool) []byte { return appendBytes(b, v, l, quoted) }), nil
	}
	return batchReader{}, errkind.Errorf(errkind.Invalid, "column %q has a type that is not known", l.column.Name)
}

func typed[T any](read func(n int64, values []T, defs, reps []int16) (int64, int, error), text func(b []byte, v T, quoted bool) []byte) batchReader {
	values := make([]T, batchLevels)
	return batchReader{
		read: func(defs, reps []int16) (int64, int, error) { return read(batchLevels, values, defs, reps) },
		text: func(b []byte, i int, quoted bool) []byte { return text(b, values[i], quoted) },
	}
}

func appendFloat(b []byte, v float64, bits int, quoted bool) []byte {
	if quoted {
		return format.AppendJSONFloat(b, v, bits)
	}
	return format.AppendFloat(b, v, bits)
}

func unsigned(c *schema.Column) bool {
	switch t := c.LogicalType().(type) {
	case schema.IntLogicalType:
		return !t.IsSigned()
	case *schema.IntLogicalType:
		return !t.IsSigned()
	}
	return false
}

// scaleOf is the number of decimals of a decimal column.
func scaleOf(c *schema.Column) (scale int, ok bool) {
	switch t := c.LogicalType().(type) {
	case schema.DecimalLogicalType:
		return int(t.Scale()), true
	case *schema.DecimalLogicalType:
		return int(t.Scale()), true
	}
	return 0, false
}

func appendScaled(b []byte, v int64, c *schema.Column) []byte {
	scale, ok := scaleOf(c)
	if !ok || scale == 0 {
		return strconv.AppendInt(b, v, 10)
	}
	return format.AppendDecimal(b, big.NewInt(v), scale)
}

func appendBytes(b, v []byte, l leaf, quoted bool) []byte {
	if scale, ok := scaleOf(l.descr); ok {
		n := new(big.Int).SetBytes(v)
		if len(v) > 0 && v[0]&0x80 != 0 {
			n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(len(v))*8))
		}
		return format.AppendDecimal(b, n, scale)
	}
	switch l.value {
	case format.Float64: // of 16 bits
		if len(v) != 2 {
			return appendFloat(b, 0, 32, quoted)
		}
		return appendFloat(b, float64(float16.FromLEBytes(v).Float32()), 32, quoted)
	case format.Text:
		if isUUID(l.descr) && len(v) == 16 {
			return appendUUID(b, v, quoted)
		}
		if quoted {
			return format.AppendJSONText(b, v)
		}
	default:
		if quoted {
			return append(base64.StdEncoding.AppendEncode(append(b, '"'), v), '"')
		}
	}
	return append(b, v...)
}

func isUUID(c *schema.Column) bool {
	_, ok := c.LogicalType().(schema.UUIDLogicalType)
	return ok
}

func appendUUID(b, v []byte, quoted bool) []byte {
	const hex = "0123456789abcdef"
	if quoted {
		b = append(b, '"')
	}
	for i, c := range v {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			b = append(b, '-')
		}
		b = append(b, hex[c>>4], hex[c&15])
	}
	if quoted {
		b = append(b, '"')
	}
	return b
}
