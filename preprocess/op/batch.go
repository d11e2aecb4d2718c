package op

import (
	"fmt"
	"unsafe"

	"github.com/millrace/millrace/internal/errkind"
)

// Image is one decoded image: H rows of W pixels of C bytes each, rows adjacent.
type Image struct {
	H, W, C int
	Pix     []byte
}

// Column is a field and its values, one per row. Which of the slices is used follows from Kind.
type Column struct {
	Field
	// Bytes holds KindBytes and KindText.
	Bytes [][]byte
	// Ints holds KindInt64.
	Ints []int64
	// Floats holds KindFloat64.
	Floats []float64
	// Tensor holds KindTensor: rows × RowBytes, contiguous, little-endian, aligned to 64 when it came from Env.Alloc.
	Tensor []byte
	// Images holds KindImage.
	Images []Image
}

// TensorRow is row i of a tensor column.
func (c *Column) TensorRow(i int) []byte {
	n := c.RowBytes()
	return c.Tensor[i*n : (i+1)*n : (i+1)*n]
}

// Batch is some samples between two operators. Columns share rows: row i of each belongs to one sample.
type Batch struct {
	NumRows int
	// Samples are the samples' ordinals in the manifest. They key the random draws.
	Samples []uint64
	// Keys name the samples for people, as "shard!member".
	Keys []string
	// Origin, if set, says where row i's bytes were read from.
	Origin  func(i int) Origin
	Columns []Column
}

// Origin is a place in a shard.
type Origin struct {
	// URI names the object and the member within it: "s3://bucket/a.tar!n014.jpg".
	URI string
	// Offset and Length, in bytes, are zero when unknown.
	Offset, Length int64
}

// Schema is the list of b's fields.
func (b *Batch) Schema() Schema {
	s := make(Schema, len(b.Columns))
	for i := range b.Columns {
		s[i] = b.Columns[i].Field
	}
	return s
}

// Column is the column called name, nil when there is none.
func (b *Batch) Column(name string) *Column {
	for i := range b.Columns {
		if b.Columns[i].Name == name {
			return &b.Columns[i]
		}
	}
	return nil
}

// Bytes is the size of all values.
func (b *Batch) Bytes() int64 {
	total := int64(0)
	for i := range b.Columns {
		c := &b.Columns[i]
		for _, v := range c.Bytes {
			total += int64(len(v))
		}
		for _, m := range c.Images {
			total += int64(len(m.Pix))
		}
		total += 8*int64(len(c.Ints)+len(c.Floats)) + int64(len(c.Tensor))
	}
	return total
}

// Check says whether every column has NumRows rows of its kind.
func (b *Batch) Check() error {
	if len(b.Samples) != b.NumRows {
		return errkind.Errorf(errkind.Internal, "batch of %d rows has %d sample ordinals", b.NumRows, len(b.Samples))
	}
	for i := range b.Columns {
		if n, want := b.Columns[i].numRows(b.NumRows), b.NumRows; n != want {
			return errkind.Errorf(errkind.Internal, "column %s of a batch of %d rows has %d", b.Columns[i].Name, want, n)
		}
	}
	return nil
}

func (c *Column) numRows(rows int) int {
	switch c.Kind {
	case KindBytes, KindText:
		return len(c.Bytes)
	case KindImage:
		return len(c.Images)
	case KindInt64:
		return len(c.Ints)
	case KindFloat64:
		return len(c.Floats)
	case KindTensor:
		size := c.RowBytes()
		if size == 0 {
			return rows
		}
		if len(c.Tensor)%size != 0 {
			return -1
		}
		return len(c.Tensor) / size
	case KindInvalid:
	}
	return -1
}

// with is b with column i replaced, or c at the end when i is -1. Columns are shared, b itself is left alone.
func (b *Batch) with(i int, c Column) *Batch {
	out := *b
	out.Columns = make([]Column, len(b.Columns), len(b.Columns)+1)
	copy(out.Columns, b.Columns)
	if i < 0 {
		out.Columns = append(out.Columns, c)
	} else {
		out.Columns[i] = c
	}
	return &out
}

// column is the place of the column called name; a missing one is an error of kind Internal, since Schema was asked first.
func (b *Batch) column(operator, name string) (int, error) {
	for i := range b.Columns {
		if b.Columns[i].Name == name {
			return i, nil
		}
	}
	return -1, errkind.Errorf(errkind.Internal, "%s: batch has no column %q", operator, name)
}

func (e *Env) alloc(n int) []byte {
	if e.Alloc != nil {
		return e.Alloc(n)[:n:n]
	}
	const align = 64
	buf := make([]byte, n+align-1)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(buf))) & (align - 1)) //nolint:gosec // The address is only used for alignment.
	return buf[skip : skip+n : skip+n]
}

// label names row i for messages.
func (b *Batch) label(i int) string {
	if i < len(b.Keys) && b.Keys[i] != "" {
		return b.Keys[i]
	}
	return fmt.Sprintf("#%d", b.Samples[i])
}
