// Package statusjson writes protobuf messages as plain JSON: the proto's own field names, all fields, and 64-bit integers
// as numbers, which protobuf's own JSON writes as strings.
package statusjson

import (
	"encoding/json"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Marshal is m as JSON. Bytes are base64, enums numbers.
func Marshal(m proto.Message) ([]byte, error) { return json.Marshal(object(m.ProtoReflect())) }

func object(m protoreflect.Message) map[string]any {
	fields := m.Descriptor().Fields()
	out := make(map[string]any, fields.Len())
	for i := range fields.Len() {
		f := fields.Get(i)
		v := m.Get(f)
		name := string(f.Name())
		switch {
		case f.IsList():
			list := make([]any, v.List().Len())
			for k := range list {
				list[k] = value(f, v.List().Get(k))
			}
			out[name] = list
		case f.IsMap():
			entries := map[string]any{}
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				entries[k.String()] = value(f.MapValue(), v)
				return true
			})
			out[name] = entries
		case f.Message() != nil && !m.Has(f):
			out[name] = nil
		default:
			out[name] = value(f, v)
		}
	}
	return out
}

func value(f protoreflect.FieldDescriptor, v protoreflect.Value) any {
	if f.Message() != nil {
		return object(v.Message())
	}
	return v.Interface()
}
