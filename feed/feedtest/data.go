package feedtest

import (
	"bytes"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/millrace/millrace/preprocess/lineage"
	"github.com/millrace/millrace/preprocess/partition"
)

// Data is a made-up data set of rows that can be told apart.
type Data struct {
	// NumRows of an epoch, PartitionRows of a partition.
	NumRows, PartitionRows int64
	// TensorBytes is the size of the image of a row.
	TensorBytes int
	// Plain leaves the column of text out.
	Plain bool
}

// Schema is the columns of the output: image (a tensor of bytes), label and text.
func (d Data) Schema() (*arrow.Schema, error) {
	tensor, err := partition.NewTensorType(arrow.PrimitiveTypes.Uint8, []int64{int64(d.TensorBytes)}, nil, nil)
	if err != nil {
		return nil, err
	}
	fields := []arrow.Field{{Name: "image", Type: tensor}, {Name: "label", Type: arrow.PrimitiveTypes.Int64}}
	if !d.Plain {
		fields = append(fields, arrow.Field{Name: "text", Type: arrow.BinaryTypes.String})
	}
	return arrow.NewSchema(fields, nil), nil
}

// encodedSchema is the schema as the dispatcher sends it.
func (d Data) encodedSchema() ([]byte, error) {
	schema, err := d.Schema()
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	w := ipc.NewWriter(&b, ipc.WithSchema(schema))
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// Label is the label of a row: it tells epoch and row.
func Label(epoch uint64, row int64) int64 { return int64(epoch)*1_000_000 + row } //nolint:gosec // Epochs of tests are small.

// Pixel is byte i of the image of the row with a label.
func Pixel(label int64, i int) byte { return byte(label*31 + int64(i)) } //nolint:gosec // Only the low bits are meant.

// Partitions is the partitions of an epoch, in order: the rows each has.
func (d Data) Partitions() int64 { return (d.NumRows + d.PartitionRows - 1) / d.PartitionRows }

func (d Data) rowsOf(source int64) (first, n int64) {
	first = source * d.PartitionRows
	return first, min(d.PartitionRows, d.NumRows-first)
}

// Record makes the rows of a source partition.
func (d Data) Record(epoch uint64, source int64) (arrow.RecordBatch, error) {
	schema, err := d.Schema()
	if err != nil {
		return nil, err
	}
	all := arrow.NewSchema(append(schema.Fields(),
		arrow.Field{Name: "__key__", Type: arrow.BinaryTypes.String},
		arrow.Field{Name: "__sample__", Type: arrow.PrimitiveTypes.Int64}), nil)
	first, n := d.rowsOf(source)
	var pixels []byte
	labels, samples := array.NewInt64Builder(memory.DefaultAllocator), array.NewInt64Builder(memory.DefaultAllocator)
	texts, keys := array.NewStringBuilder(memory.DefaultAllocator), array.NewStringBuilder(memory.DefaultAllocator)
	for row := first; row < first+n; row++ {
		label := Label(epoch, row)
		for i := range d.TensorBytes {
			pixels = append(pixels, Pixel(label, i))
		}
		labels.Append(label)
		texts.Append(fmt.Sprintf("text %d", label))
		keys.Append(fmt.Sprintf("shard-0/%d", row))
		samples.Append(row)
	}
	columns := []arrow.Array{tensors(schema.Field(0).Type, int(n), pixels), labels.NewArray()}
	if !d.Plain {
		columns = append(columns, texts.NewArray())
	}
	columns = append(columns, keys.NewArray(), samples.NewArray())
	defer func() {
		for _, c := range columns {
			c.Release()
		}
	}()
	return array.NewRecordBatch(all, columns, n), nil
}

// tensors is an array of n tensors of type t that lie in pixels.
func tensors(t arrow.DataType, n int, pixels []byte) arrow.Array {
	values := array.NewData(arrow.PrimitiveTypes.Uint8, len(pixels), []*memory.Buffer{nil, memory.NewBufferBytes(pixels)}, nil, 0, 0)
	defer values.Release()
	data := array.NewData(t, n, []*memory.Buffer{nil}, []arrow.ArrayData{values}, 0, 0)
	defer data.Release()
	return array.MakeFromData(data)
}

// Store makes a store that holds the partitions of some epochs of a job.
func (d Data) Store(job string, epochs uint64) (*partition.Store, error) {
	s := partition.NewStore("worker", partition.Hooks{})
	for e := range epochs {
		for source := range d.Partitions() {
			rec, err := d.Record(e, source)
			if err != nil {
				return nil, err
			}
			s.Put(job, 1, partition.New(lineage.SourceID(e, uint64(source)), 0, rec))
			rec.Release()
		}
	}
	return s, nil
}
