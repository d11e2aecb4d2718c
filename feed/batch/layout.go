package batch

import (
	"slices"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/millrace/millrace/internal/errkind"
)

// Names of the columns that go with every batch besides those of the recipe's output.
const (
	// KeyColumn holds the key of each sample (utf8), SampleColumn its number in the manifest (int64).
	KeyColumn    = "__key__"
	SampleColumn = "__sample__"
	// ValidColumn is false for rows that only fill the batch (bool). Partitions do not have it.
	ValidColumn = "__valid__"
)

// maxDepth bounds the nesting of column types.
const maxDepth = 8

// Layout says how the batches of a job look. It is immutable and safe for concurrent use.
type Layout struct {
	schema  *arrow.Schema // of batches
	columns []arrow.Field // the columns that partitions have
	outputs int           // how many of these are the recipe's
}

// NewLayout makes the layout of a job whose partitions have the columns of schema. Key and sample columns may be among
// them or not; partitions have them all the same. A type of column that cannot be batched is an error of kind Invalid.
func NewLayout(schema *arrow.Schema) (*Layout, error) {
	var fields []arrow.Field
	for _, f := range schema.Fields() {
		switch f.Name {
		case KeyColumn, SampleColumn, ValidColumn:
			continue
		}
		if slices.ContainsFunc(fields, func(g arrow.Field) bool { return g.Name == f.Name }) {
			return nil, errkind.Errorf(errkind.Invalid, "column %q comes twice in the output of the recipe", f.Name)
		}
		if err := checkType(f.Type, maxDepth); err != nil {
			return nil, errkind.Errorf(errkind.Invalid, "column %q: %w", f.Name, err)
		}
		fields = append(fields, f)
	}
	l := &Layout{outputs: len(fields)}
	l.columns = append(fields,
		arrow.Field{Name: KeyColumn, Type: arrow.BinaryTypes.String},
		arrow.Field{Name: SampleColumn, Type: arrow.PrimitiveTypes.Int64})
	all := append(slices.Clone(l.columns), arrow.Field{Name: ValidColumn, Type: arrow.FixedWidthTypes.Boolean})
	meta := schema.Metadata()
	l.schema = arrow.NewSchema(all, &meta)
	return l, nil
}

// Schema is the schema of batches: the output columns, then key, sample and valid.
func (l *Layout) Schema() *arrow.Schema { return l.schema }

// Outputs is the columns of the recipe's output; not to be changed.
func (l *Layout) Outputs() []arrow.Field { return l.columns[:l.outputs:l.outputs] }

// RowBytes is what a row takes at least: all of it where no column varies in size.
func (l *Layout) RowBytes() int64 {
	total := int64(1)
	for _, f := range l.columns {
		total += rowBytes(f.Type)
	}
	return total
}

// keyRoom is the room for a sample's key in memory that is set aside before keys are known, bytes.
const keyRoom = 256

// Room is what a batch of rows needs at most, each buffer aligned to align bytes, where no column of the output varies
// in size; else ok is false, and it is what such a batch needs at least.
func (l *Layout) Room(rows int64, align int) (bytes int64, ok bool) {
	ok, buffers := true, 0
	for i, f := range l.columns {
		fixed, n := shapeOf(f.Type)
		ok = ok && (fixed || i >= l.outputs)
		buffers += n
	}
	return rows*(l.RowBytes()+keyRoom) + int64(8+(buffers+1)*align), ok
}

// Slack is what aligning the buffers of a batch to align bytes takes at most.
func (l *Layout) Slack(align int) int64 {
	buffers := 1
	for _, f := range l.columns {
		_, n := shapeOf(f.Type)
		buffers += n
	}
	return int64(buffers) * int64(align+8)
}

// shapeOf says whether all values of t take the same room and none can be missing, and how many buffers they lie in.
func shapeOf(t arrow.DataType) (fixed bool, buffers int) {
	switch t := storage(t).(type) {
	case *arrow.StructType:
		fixed, buffers = true, 1
		for _, f := range t.Fields() {
			ok, n := shapeOf(f.Type)
			fixed, buffers = fixed && ok, buffers+n
		}
		return fixed, buffers
	case *arrow.FixedSizeListType:
		fixed, n := shapeOf(t.Elem())
		return fixed, n + 1
	case *arrow.ListType:
		_, n := shapeOf(t.Elem())
		return false, n + 2
	case *arrow.LargeListType:
		_, n := shapeOf(t.Elem())
		return false, n + 2
	case *arrow.StringType, *arrow.BinaryType, *arrow.LargeStringType, *arrow.LargeBinaryType:
		return false, 3
	}
	return true, 2
}

// storage is t, or what holds the values of an extension type.
func storage(t arrow.DataType) arrow.DataType {
	for {
		ext, ok := t.(arrow.ExtensionType)
		if !ok {
			return t
		}
		t = ext.StorageType()
	}
}

// fixedBytes is the size of a value of t where that is a whole number of bytes, else 0.
func fixedBytes(t arrow.DataType) int64 {
	switch t := storage(t).(type) {
	case *arrow.BooleanType:
		return 0
	case arrow.FixedWidthDataType:
		if _, ok := t.(*arrow.DictionaryType); ok {
			return 0
		}
		return int64(t.Bytes())
	}
	return 0
}

func checkType(t arrow.DataType, depth int) error {
	if depth == 0 {
		return errkind.Errorf(errkind.Invalid, "type %s is nested too deep", t)
	}
	switch t := storage(t).(type) {
	case *arrow.BooleanType, *arrow.StringType, *arrow.BinaryType, *arrow.LargeStringType, *arrow.LargeBinaryType:
		return nil
	case *arrow.FixedSizeListType:
		return checkType(t.Elem(), depth-1)
	case *arrow.ListType:
		return checkType(t.Elem(), depth-1)
	case *arrow.LargeListType:
		return checkType(t.Elem(), depth-1)
	case *arrow.StructType:
		for _, f := range t.Fields() {
			if err := checkType(f.Type, depth-1); err != nil {
				return err
			}
		}
		return nil
	default:
		if fixedBytes(t) == 0 {
			return errkind.Errorf(errkind.Invalid, "type %s cannot be put into batches", t)
		}
		return nil
	}
}

// rowBytes is what a value of t takes at least.
func rowBytes(t arrow.DataType) int64 {
	switch t := storage(t).(type) {
	case *arrow.FixedSizeListType:
		return int64(t.Len()) * rowBytes(t.Elem())
	case *arrow.StructType:
		total := int64(0)
		for _, f := range t.Fields() {
			total += rowBytes(f.Type)
		}
		return total
	case *arrow.StringType, *arrow.BinaryType, *arrow.ListType:
		return 4
	case *arrow.LargeStringType, *arrow.LargeBinaryType, *arrow.LargeListType:
		return 8
	case *arrow.BooleanType:
		return 1
	default:
		return fixedBytes(t)
	}
}
