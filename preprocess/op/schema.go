package op

import (
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/nearest"
)

// Kind says how a column holds its values.
type Kind uint8

const (
	// KindInvalid is the zero Kind.
	KindInvalid Kind = iota
	// KindBytes is opaque bytes per row, encoded media for example, in Column.Bytes.
	KindBytes
	// KindText is UTF-8 per row, in Column.Bytes.
	KindText
	// KindTensor is a tensor of one fixed shape per row, in Column.Tensor.
	KindTensor
	// KindImage is an H×W×C uint8 image of its own size per row, in Column.Images.
	KindImage
	// KindInt64 is one integer per row, in Column.Ints.
	KindInt64
	// KindFloat64 is one number per row, in Column.Floats.
	KindFloat64
)

// String is the name of k in messages.
func (k Kind) String() string {
	names := [...]string{"invalid", "bytes", "text", "tensor", "image", "int64", "float64"}
	if int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// DType is the type of a tensor's elements.
type DType uint8

const (
	// DTypeNone is the zero DType: not a tensor, or "as it is" in an output declaration.
	DTypeNone DType = iota
	// DTypeBool is one byte, 0 or 1.
	DTypeBool
	// DTypeUint8 is an unsigned byte.
	DTypeUint8
	// DTypeUint16 is a little-endian uint16.
	DTypeUint16
	// DTypeInt32 is a little-endian int32.
	DTypeInt32
	// DTypeInt64 is a little-endian int64.
	DTypeInt64
	// DTypeFloat16 is IEEE binary16.
	DTypeFloat16
	// DTypeBfloat16 is the upper half of a float32.
	DTypeBfloat16
	// DTypeFloat32 is IEEE binary32.
	DTypeFloat32
	// DTypeFloat64 is IEEE binary64.
	DTypeFloat64
)

var dtypes = [...]struct {
	name string
	size int
}{
	{"none", 0}, {"bool", 1}, {"uint8", 1}, {"uint16", 2}, {"int32", 4}, {"int64", 8}, {"float16", 2}, {"bfloat16", 2}, {"float32", 4}, {"float64", 8},
}

// String is the name of d in recipes.
func (d DType) String() string {
	if int(d) < len(dtypes) {
		return dtypes[d].name
	}
	return fmt.Sprintf("DType(%d)", uint8(d))
}

// Size is the size of one element in bytes, 0 for DTypeNone.
func (d DType) Size() int {
	if int(d) < len(dtypes) {
		return dtypes[d].size
	}
	return 0
}

// ParseDType is the DType of that name in recipes. The error lists the names.
func ParseDType(name string) (DType, error) {
	names := make([]string, 0, len(dtypes)-1)
	for d, t := range dtypes[1:] {
		if t.name == name {
			return DType(d + 1), nil
		}
		names = append(names, t.name)
	}
	return DTypeNone, errkind.Errorf(errkind.Invalid, "unknown dtype %q%s", name, nearest.Hint(name, names))
}

// Field is the name and type of a column.
type Field struct {
	Name  string
	Kind  Kind
	DType DType
	// Shape is that of one row; -1 stands for a size that differs from row to row (images).
	Shape []int64
	// DimNames names the dimensions of Shape: H, W, C.
	DimNames []string
}

// NumElements is the number of elements of one row of a tensor.
func (f Field) NumElements() int64 {
	n := int64(1)
	for _, d := range f.Shape {
		n *= d
	}
	return n
}

// RowBytes is the size of one row of a tensor in bytes.
func (f Field) RowBytes() int { return int(f.NumElements()) * f.DType.Size() }

// String describes f's type for messages: "uint8 tensor [224,224,3] (HWC)".
func (f Field) String() string {
	switch f.Kind {
	case KindTensor:
		dims := make([]string, len(f.Shape))
		for i, d := range f.Shape {
			dims[i] = fmt.Sprint(d)
		}
		text := fmt.Sprintf("%s tensor [%s]", f.DType, strings.Join(dims, ","))
		if len(f.DimNames) > 0 {
			text += " (" + strings.Join(f.DimNames, "") + ")"
		}
		return text
	case KindImage:
		return "uint8 images of differing sizes"
	case KindInvalid, KindBytes, KindText, KindInt64, KindFloat64:
	}
	return f.Kind.String()
}

// Equal says whether f and g are the same name and type.
func (f Field) Equal(g Field) bool {
	return f.Name == g.Name && f.Kind == g.Kind && f.DType == g.DType && slices.Equal(f.Shape, g.Shape) && slices.Equal(f.DimNames, g.DimNames)
}

// Schema is the ordered list of a batch's fields.
type Schema []Field

// Index is the place of the field called name, -1 when there is none.
func (s Schema) Index(name string) int {
	return slices.IndexFunc(s, func(f Field) bool { return f.Name == name })
}

// Names lists the fields' names in order.
func (s Schema) Names() []string {
	names := make([]string, len(s))
	for i, f := range s {
		names[i] = f.Name
	}
	return names
}

// Lookup is the place of the field called name, or an error of kind Invalid that names the nearest.
func (s Schema) Lookup(operator, name string) (int, error) {
	if i := s.Index(name); i >= 0 {
		return i, nil
	}
	return -1, errkind.Errorf(errkind.Invalid, "%s: no field %q%s", operator, name, nearest.Hint(name, s.Names()))
}

// with is s with field i replaced by f, or with f at the end when i is -1. s itself is left alone.
func (s Schema) with(i int, f Field) Schema {
	out := slices.Clone(s)
	if i < 0 {
		return append(out, f)
	}
	out[i] = f
	return out
}
