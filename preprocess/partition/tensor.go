package partition

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
)

// tensorExtension is the canonical name of Arrow's extension type for tensors of one shape.
const tensorExtension = "arrow.fixed_shape_tensor"

// DTypeKey is the key of a field's metadata that names the element type where Arrow has none of that name: "bfloat16"
// on a tensor whose values are uint16.
const DTypeKey = "millrace.dtype"

// maxTensorMetadata bounds the JSON of a tensor type that came from outside, and maxTensorDims its dimensions.
const (
	maxTensorMetadata = 64 << 10
	maxTensorDims     = 32
)

// TensorType is Arrow's canonical extension type arrow.fixed_shape_tensor: each value is a row-major tensor of the
// same shape, stored as a fixed-size list of its elements.
type TensorType struct {
	arrow.ExtensionBase

	list   *arrow.FixedSizeListType // the storage
	params tensorParams
}

// tensorParams is the JSON that describes the type, with the names that the Arrow format gives them.
type tensorParams struct {
	Shape       []int64  `json:"shape"`
	DimNames    []string `json:"dim_names,omitempty"`
	Permutation []int64  `json:"permutation,omitempty"`
}

// NewTensorType is the type of tensors of elements of type value and the given shape. dimNames names the dimensions
// and permutation maps logical to physical ones; both may be empty. Mismatched lengths, sizes below 1 and sizes
// above 2^31-1 elements are errors.
func NewTensorType(value arrow.DataType, shape []int64, dimNames []string, permutation []int64) (*TensorType, error) {
	params := tensorParams{Shape: slices.Clone(shape), DimNames: slices.Clone(dimNames), Permutation: slices.Clone(permutation)}
	if params.Shape == nil {
		params.Shape = []int64{} // the Arrow format wants the key, for a scalar too
	}
	n, err := params.elements()
	if err != nil {
		return nil, err
	}
	return newTensorType(arrow.FixedSizeListOf(n, value), params), nil
}

func newTensorType(list *arrow.FixedSizeListType, params tensorParams) *TensorType {
	return &TensorType{ExtensionBase: arrow.ExtensionBase{Storage: list}, list: list, params: params}
}

// RegisterTensorType makes Arrow's readers know [TensorType], so that tensors arrive as such and not as plain lists.
// Further calls do nothing.
func RegisterTensorType() error {
	if arrow.GetExtensionType(tensorExtension) != nil {
		return nil
	}
	example, err := NewTensorType(arrow.PrimitiveTypes.Uint8, []int64{1}, nil, nil)
	if err != nil {
		return err
	}
	if err := arrow.RegisterExtensionType(example); err != nil && arrow.GetExtensionType(tensorExtension) == nil {
		return fmt.Errorf("registering Arrow type %s: %w", tensorExtension, err)
	}
	return nil
}

// elements is the number of elements of one tensor.
func (p tensorParams) elements() (int32, error) {
	if len(p.Shape) > maxTensorDims {
		return 0, fmt.Errorf("tensor of %d dimensions; at most %d are supported", len(p.Shape), maxTensorDims)
	}
	n := int64(1)
	for _, d := range p.Shape {
		if d < 1 || d > math.MaxInt32 {
			return 0, fmt.Errorf("tensor of shape %v: a dimension is not within 1 to %d", p.Shape, math.MaxInt32)
		}
		if n *= d; n > math.MaxInt32 {
			return 0, fmt.Errorf("tensor of shape %v has more than %d elements", p.Shape, math.MaxInt32)
		}
	}
	if len(p.DimNames) != 0 && len(p.DimNames) != len(p.Shape) {
		return 0, fmt.Errorf("tensor of shape %v has %d dimension names", p.Shape, len(p.DimNames))
	}
	return int32(n), p.checkPermutation()
}

func (p tensorParams) checkPermutation() error {
	if len(p.Permutation) == 0 {
		return nil
	}
	seen := make([]bool, len(p.Shape))
	for _, d := range p.Permutation {
		if d < 0 || d >= int64(len(seen)) || seen[d] {
			return fmt.Errorf("tensor of shape %v: %v is not a permutation of its dimensions", p.Shape, p.Permutation)
		}
		seen[d] = true
	}
	if len(p.Permutation) != len(p.Shape) {
		return fmt.Errorf("tensor of shape %v: %v is not a permutation of its dimensions", p.Shape, p.Permutation)
	}
	return nil
}

// Shape is the physical shape of one tensor; not to be changed.
func (t *TensorType) Shape() []int64 { return t.params.Shape }

// DimNames names the dimensions, or is empty; not to be changed.
func (t *TensorType) DimNames() []string { return t.params.DimNames }

// Permutation maps logical to physical dimensions, or is empty; not to be changed.
func (t *TensorType) Permutation() []int64 { return t.params.Permutation }

// ValueType is the type of an element.
func (t *TensorType) ValueType() arrow.DataType { return t.list.Elem() }

// NumElements is the number of elements of one tensor.
func (t *TensorType) NumElements() int { return int(t.list.Len()) }

// ArrayType is the type of arrays of tensors.
func (*TensorType) ArrayType() reflect.Type { return reflect.TypeFor[TensorArray]() }

// ExtensionName is "arrow.fixed_shape_tensor".
func (*TensorType) ExtensionName() string { return tensorExtension }

// String describes the type for people.
func (t *TensorType) String() string {
	return fmt.Sprintf("extension<%s[value_type=%s, shape=%v]>", tensorExtension, t.ValueType(), t.params.Shape)
}

// Fingerprint tells tensor types apart, also by shape.
func (t *TensorType) Fingerprint() string {
	return t.ExtensionBase.Fingerprint() + "{" + t.Serialize() + "}"
}

// Serialize is the type's JSON, as the Arrow format defines it.
func (t *TensorType) Serialize() string {
	text, err := json.Marshal(t.params)
	if err != nil { // not reached: integers and strings always have a JSON form
		return ""
	}
	return string(text)
}

// Deserialize makes a type of its storage and its JSON.
func (*TensorType) Deserialize(storage arrow.DataType, data string) (arrow.ExtensionType, error) {
	list, ok := storage.(*arrow.FixedSizeListType)
	if !ok {
		return nil, fmt.Errorf("%s is stored as %s; it has to be a fixed-size list", tensorExtension, storage)
	}
	if len(data) > maxTensorMetadata {
		return nil, fmt.Errorf("%s has %d bytes of metadata; at most %d are read", tensorExtension, len(data), maxTensorMetadata)
	}
	var params tensorParams
	if err := json.Unmarshal([]byte(data), &params); err != nil {
		return nil, fmt.Errorf("reading the metadata of %s: %w", tensorExtension, err)
	}
	if params.Shape == nil {
		return nil, errors.New(tensorExtension + " has no shape in its metadata")
	}
	n, err := params.elements()
	if err != nil {
		return nil, err
	}
	if n != list.Len() {
		return nil, fmt.Errorf("%s of shape %v is stored as lists of %d elements, not %d", tensorExtension, params.Shape, list.Len(), n)
	}
	return newTensorType(list, params), nil
}

// ExtensionEquals says whether other has the same element type, shape, names and permutation.
func (t *TensorType) ExtensionEquals(other arrow.ExtensionType) bool {
	o, ok := other.(*TensorType)
	return ok && arrow.TypeEqual(t.ValueType(), o.ValueType()) &&
		slices.Equal(t.params.Shape, o.params.Shape) &&
		slices.Equal(t.params.DimNames, o.params.DimNames) &&
		slices.Equal(t.params.Permutation, o.params.Permutation)
}

// TensorArray is an array of tensors of one [TensorType].
type TensorArray struct {
	array.ExtensionArrayBase
}

var (
	_ arrow.ExtensionType  = (*TensorType)(nil)
	_ array.ExtensionArray = (*TensorArray)(nil)
)
