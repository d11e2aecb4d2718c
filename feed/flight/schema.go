package flight

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
)

// raggedExtension is Arrow's canonical name for tensors whose shapes differ. No library that we know has a type for it,
// so it travels as its storage with this name: who knows it sees tensors, who does not sees a struct.
const raggedExtension = "arrow.variable_shape_tensor"

// canonical gives columns that are stored as ragged tensors their canonical name.
func canonical(schema *arrow.Schema) *arrow.Schema {
	fields := schema.Fields()
	for i, f := range fields {
		t, ok := f.Type.(*arrow.StructType)
		if !ok || f.Metadata.FindKey(ipc.ExtensionTypeKeyName) >= 0 || !isRagged(t) {
			continue
		}
		meta := f.Metadata.ToMap()
		meta[ipc.ExtensionTypeKeyName], meta[ipc.ExtensionMetadataKeyName] = raggedExtension, "{}"
		fields[i].Metadata = arrow.MetadataFrom(meta)
	}
	meta := schema.Metadata()
	return arrow.NewSchema(fields, &meta)
}

// isRagged says whether t is the storage of a ragged tensor: its values in a list, and its shape.
func isRagged(t *arrow.StructType) bool {
	data, ok := t.FieldByName("data")
	if !ok || t.NumFields() != 2 || data.Type.ID() != arrow.LIST {
		return false
	}
	shape, ok := t.FieldByName("shape")
	if !ok {
		return false
	}
	list, ok := shape.Type.(*arrow.FixedSizeListType)
	return ok && list.Elem().ID() == arrow.INT32
}
