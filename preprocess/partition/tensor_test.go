package partition

import (
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/google/go-cmp/cmp"
)

// tensorRecord is a batch with one tensor column of the given bytes.
func tensorRecord(t *testing.T, pool *Pool, typ *TensorType, rows int, name string, fill func([]byte)) arrow.RecordBatch {
	t.Helper()
	value := as[arrow.FixedWidthDataType](typ.ValueType())
	raw := pool.Alloc(rows * typ.NumElements() * value.Bytes())
	fill(raw)
	buf := pool.Buffer(raw)
	defer buf.Release()
	child := array.NewData(value, rows*typ.NumElements(), []*memory.Buffer{nil, buf}, nil, 0, 0)
	defer child.Release()
	data := array.NewData(typ, rows, []*memory.Buffer{nil}, []arrow.ArrayData{child}, 0, 0)
	defer data.Release()
	column := array.MakeFromData(data)
	defer column.Release()
	return array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: name, Type: typ}}, nil), []arrow.Array{column}, int64(rows))
}

func TestTensorsSurviveIPC(t *testing.T) {
	for _, value := range []arrow.DataType{
		arrow.PrimitiveTypes.Uint8, arrow.PrimitiveTypes.Uint16, arrow.PrimitiveTypes.Int32, arrow.PrimitiveTypes.Int64,
		arrow.FixedWidthTypes.Float16, arrow.PrimitiveTypes.Float32, arrow.PrimitiveTypes.Float64,
	} {
		pool := NewPool(0)
		typ, err := NewTensorType(value, []int64{3, 5, 7}, []string{"C", "H", "W"}, []int64{1, 2, 0})
		if err != nil {
			t.Fatal(err)
		}
		rec := tensorRecord(t, pool, typ, 4, "image", func(b []byte) {
			for i := range b {
				b[i] = byte(i * 31)
			}
		})
		got := throughIPC(t, memory.DefaultAllocator, rec.NewSlice(1, 3))
		back, ok := got.Column(0).DataType().(*TensorType)
		if !ok {
			t.Fatalf("%s: column came back as %s", value, got.Column(0).DataType())
		}
		if !typ.ExtensionEquals(back) {
			t.Errorf("%s: type came back as %s %v %v", value, back, back.DimNames(), back.Permutation())
		}
		if Hash(got) != Hash(rec.NewSlice(1, 3)) {
			t.Errorf("%s: values changed", value)
		}
	}
}

func TestTensorMetadataIsWhatArrowDefines(t *testing.T) {
	typ, err := NewTensorType(arrow.PrimitiveTypes.Uint8, []int64{224, 224, 3}, []string{"H", "W", "C"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(`{"shape":[224,224,3],"dim_names":["H","W","C"]}`, typ.Serialize()); diff != "" {
		t.Error(diff)
	}
	if typ.ExtensionName() != "arrow.fixed_shape_tensor" || typ.NumElements() != 224*224*3 {
		t.Errorf("%s has %d elements", typ, typ.NumElements())
	}
}

func TestBadTensorTypesAreRefused(t *testing.T) {
	for _, c := range []struct {
		shape       []int64
		names       []string
		permutation []int64
	}{
		{shape: []int64{-1}},
		{shape: []int64{1 << 20, 1 << 20}},
		{shape: []int64{1 << 40}},
		{shape: []int64{2, 3}, names: []string{"H"}},
		{shape: []int64{2, 3}, permutation: []int64{0, 0}},
		{shape: []int64{2, 3}, permutation: []int64{0}},
		{shape: []int64{2, 3}, permutation: []int64{0, 2}},
		{shape: make([]int64, 100)},
	} {
		if typ, err := NewTensorType(arrow.PrimitiveTypes.Uint8, c.shape, c.names, c.permutation); err == nil {
			t.Errorf("%+v was accepted as %s", c, typ)
		}
	}
}

func FuzzTensorTypeDeserialize(f *testing.F) {
	f.Add(`{"shape":[3,2]}`, int32(6))
	f.Add(`{"shape":[]}`, int32(1))
	f.Add(`{"shape":[3,2],"permutation":[1,0],"dim_names":["a","b"]}`, int32(6))
	f.Add(`{"shape":[4294967296,4294967296]}`, int32(0))
	f.Fuzz(func(t *testing.T, data string, size int32) {
		if size < 1 {
			return
		}
		typ, err := (*TensorType)(nil).Deserialize(arrow.FixedSizeListOf(size, arrow.PrimitiveTypes.Uint8), data)
		if err != nil {
			return
		}
		again, err := (*TensorType)(nil).Deserialize(typ.StorageType(), typ.Serialize())
		if err != nil || !typ.ExtensionEquals(again) {
			t.Fatalf("%s is read again as %v: %v", typ.Serialize(), again, err)
		}
	})
}
