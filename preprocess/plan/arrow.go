package plan

import (
	"github.com/apache/arrow-go/v18/arrow"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/op"
	"github.com/millrace/millrace/preprocess/partition"
)

// Names of the columns that every partition has after those of its schema.
const (
	// KeyColumn holds the sample's key, utf8.
	KeyColumn = "__key__"
	// SampleColumn holds the sample's number in the manifest, int64.
	SampleColumn = "__sample__"
)

// ArrowSchema is how rows of schema travel: tensors as arrow.fixed_shape_tensor, text as utf8, bytes as binary,
// numbers as int64 and float64; then KeyColumn and SampleColumn. Images of differing sizes are an error.
func ArrowSchema(schema op.Schema) (*arrow.Schema, error) {
	fields := make([]arrow.Field, 0, len(schema)+2)
	for _, f := range schema {
		field, err := arrowField(f)
		if err != nil {
			return nil, err
		}
		fields = append(fields, field)
	}
	fields = append(fields,
		arrow.Field{Name: KeyColumn, Type: arrow.BinaryTypes.String},
		arrow.Field{Name: SampleColumn, Type: arrow.PrimitiveTypes.Int64},
	)
	return arrow.NewSchema(fields, nil), nil
}

func arrowField(f op.Field) (arrow.Field, error) {
	out := arrow.Field{Name: f.Name}
	switch f.Kind {
	case op.KindBytes:
		out.Type = arrow.BinaryTypes.Binary
	case op.KindText:
		out.Type = arrow.BinaryTypes.String
	case op.KindInt64:
		out.Type = arrow.PrimitiveTypes.Int64
	case op.KindFloat64:
		out.Type = arrow.PrimitiveTypes.Float64
	case op.KindTensor:
		value, metadata := elementType(f.DType)
		if value == nil {
			return out, errkind.Errorf(errkind.Invalid, "output: field %q is a tensor of %s, which cannot travel; choose another dtype", f.Name, f.DType)
		}
		tensor, err := partition.NewTensorType(value, f.Shape, f.DimNames, nil)
		if err != nil {
			return out, err
		}
		out.Type, out.Metadata = tensor, metadata
	case op.KindImage, op.KindInvalid:
		return out, errkind.Errorf(errkind.Invalid, "output: field %q (%s) cannot travel; give it a fixed size", f.Name, f)
	}
	return out, nil
}

// elementType is the Arrow type of a tensor's elements, nil when there is none. Arrow has no bfloat16: it travels as
// uint16 with the name in the field's metadata.
func elementType(d op.DType) (arrow.DataType, arrow.Metadata) {
	switch d {
	case op.DTypeBool, op.DTypeUint8:
		return arrow.PrimitiveTypes.Uint8, arrow.Metadata{}
	case op.DTypeUint16:
		return arrow.PrimitiveTypes.Uint16, arrow.Metadata{}
	case op.DTypeInt32:
		return arrow.PrimitiveTypes.Int32, arrow.Metadata{}
	case op.DTypeInt64:
		return arrow.PrimitiveTypes.Int64, arrow.Metadata{}
	case op.DTypeFloat16:
		return arrow.FixedWidthTypes.Float16, arrow.Metadata{}
	case op.DTypeBfloat16:
		return arrow.PrimitiveTypes.Uint16, arrow.NewMetadata([]string{partition.DTypeKey}, []string{"bfloat16"})
	case op.DTypeFloat32:
		return arrow.PrimitiveTypes.Float32, arrow.Metadata{}
	case op.DTypeFloat64:
		return arrow.PrimitiveTypes.Float64, arrow.Metadata{}
	case op.DTypeNone:
	}
	return nil, arrow.Metadata{}
}
