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
}

// Schema is the columns of the output: image (a tensor of bytes), label and text.
func (d Data) Schema() (*arrow.Schema, error) {
	tensor, err := partition.NewTensorType(arrow.PrimitiveTypes.Uint8, []int64{int64(d.TensorBytes)}, nil, nil)
	if err != nil {
		return nil, err
	}
	return arrow.NewSchema([]arrow.Field{
		{Name: "image", Type: tensor},
		{Name: "label", Type: arrow.PrimitiveTypes.Int64},
		{Name: "text", Type: arrow.BinaryTypes.String},
	}, nil), nil
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
func Pixel(label int64, i int) byte { return byte(label*31 + int64(i)) }

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
	b := array.NewRecordBuilder(memory.DefaultAllocator, all)
	defer b.Release()
	first, n := d.rowsOf(source)
	for row := first; row < first+n; row++ {
		label := Label(epoch, row)
		image := b.Field(0).(*array.ExtensionBuilder).StorageBuilder().(*array.FixedSizeListBuilder)
		image.Append(true)
		for i := range d.TensorBytes {
			image.ValueBuilder().(*array.Uint8Builder).Append(Pixel(label, i))
		}
		b.Field(1).(*array.Int64Builder).Append(label)
		b.Field(2).(*array.StringBuilder).Append(fmt.Sprintf("text %d", label))
		b.Field(3).(*array.StringBuilder).Append(fmt.Sprintf("shard-0/%d", row))
		b.Field(4).(*array.Int64Builder).Append(row)
	}
	return b.NewRecordBatch(), nil
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
			s.Put(job, 1, partition.New(lineage.SourceID(e, uint64(source)), 0, rec)) //nolint:gosec // Never negative.
			rec.Release()
		}
	}
	return s, nil
}
