package worker

import (
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/op"
	"github.com/millrace/millrace/preprocess/partition"
)

// record makes a record batch of b with the columns of schema, which has the key and the sample number after those of
// b. Tensors that lie in mem move into it; all else is copied.
func record(schema *arrow.Schema, b *op.Batch, mem *arena) (arrow.RecordBatch, error) {
	if err := b.Check(); err != nil {
		return nil, err
	}
	if len(b.Columns)+2 != schema.NumFields() {
		return nil, errkind.Errorf(errkind.Internal, "a batch of %d columns does not fit a schema of %d", len(b.Columns), schema.NumFields())
	}
	columns := make([]arrow.Array, 0, schema.NumFields())
	defer func() {
		for _, c := range columns {
			c.Release()
		}
	}()
	for i := range b.Columns {
		c, err := columnArray(schema.Field(i).Type, &b.Columns[i], b.NumRows, mem)
		if err != nil {
			return nil, err
		}
		columns = append(columns, c)
	}
	keys := make([][]byte, b.NumRows)
	samples := make([]int64, b.NumRows)
	for i := range b.NumRows {
		keys[i], samples[i] = []byte(b.Keys[i]), int64(b.Samples[i]) //nolint:gosec // Ordinals are below 2^53.
	}
	key, err := bytesArray(arrow.BinaryTypes.String, keys, mem.pool)
	if err != nil {
		return nil, err
	}
	columns = append(columns, key, numbersArray(arrow.PrimitiveTypes.Int64, arrow.Int64Traits.CastToBytes(samples), b.NumRows, mem.pool))
	return array.NewRecordBatch(schema, columns, int64(b.NumRows)), nil
}

func columnArray(t arrow.DataType, c *op.Column, rows int, mem *arena) (arrow.Array, error) {
	switch c.Kind {
	case op.KindBytes, op.KindText:
		return bytesArray(t, c.Bytes, mem.pool)
	case op.KindInt64:
		return numbersArray(t, arrow.Int64Traits.CastToBytes(c.Ints), rows, mem.pool), nil
	case op.KindFloat64:
		return numbersArray(t, arrow.Float64Traits.CastToBytes(c.Floats), rows, mem.pool), nil
	case op.KindTensor:
		return tensorArray(t, c, rows, mem)
	case op.KindImage, op.KindInvalid:
	}
	return nil, errkind.Errorf(errkind.Invalid, "output %s: image has rows of different shapes; add resize or random_resized_crop", c.Name)
}

func tensorArray(t arrow.DataType, c *op.Column, rows int, mem *arena) (arrow.Array, error) {
	tensor, ok := t.(*partition.TensorType)
	if !ok || len(c.Tensor) != rows*c.RowBytes() {
		return nil, errkind.Errorf(errkind.Internal, "output %s: %d bytes for %d rows of %s", c.Name, len(c.Tensor), rows, c.Field)
	}
	values := mem.buffer(c.Tensor)
	defer values.Release()
	child := array.NewData(tensor.ValueType(), rows*tensor.NumElements(), []*memory.Buffer{nil, values}, nil, 0, 0)
	defer child.Release()
	data := array.NewData(t, rows, []*memory.Buffer{nil}, []arrow.ArrayData{child}, 0, 0)
	defer data.Release()
	return array.MakeFromData(data), nil
}

func numbersArray(t arrow.DataType, raw []byte, rows int, pool *partition.Pool) arrow.Array {
	own := pool.Alloc(len(raw))
	copy(own, raw)
	values := pool.Buffer(own)
	defer values.Release()
	data := array.NewData(t, rows, []*memory.Buffer{nil, values}, nil, 0, 0)
	defer data.Release()
	return array.MakeFromData(data)
}

func bytesArray(t arrow.DataType, values [][]byte, pool *partition.Pool) (arrow.Array, error) {
	total := 0
	for _, v := range values {
		total += len(v)
	}
	if total > math.MaxInt32 {
		return nil, errkind.Errorf(errkind.Exhausted, "output of %d bytes of %s in one partition; at most %d can travel, make the target size smaller", total, t, math.MaxInt32)
	}
	ends := pool.Alloc((len(values) + 1) * arrow.Int32SizeBytes)
	content := pool.Alloc(total)
	at, places := 0, arrow.Int32Traits.CastFromBytes(ends)
	for i, v := range values {
		places[i] = int32(at)
		at += copy(content[at:], v)
	}
	places[len(values)] = int32(at)
	endsBuffer, contentBuffer := pool.Buffer(ends), pool.Buffer(content)
	defer endsBuffer.Release()
	defer contentBuffer.Release()
	data := array.NewData(t, len(values), []*memory.Buffer{nil, endsBuffer, contentBuffer}, nil, 0, 0)
	defer data.Release()
	return array.MakeFromData(data), nil
}
