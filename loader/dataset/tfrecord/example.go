package tfrecord

import (
	"encoding/base64"
	"math"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/millrace/millrace/loader/dataset/format"
)

// value is a feature: some values of one kind, numbers as their bits.
type value struct {
	list    listKind
	bytes   [][]byte
	numbers []uint64
}

// listKind is the number of a list in tf.train.Feature.
type listKind protowire.Number

const (
	noList    listKind = 0
	bytesList listKind = 1
	floatList listKind = 2
	int64List listKind = 3
)

// features calls fn for each feature of a tf.train.Example, as they come. A name that comes again replaces what was before,
// as in a map of protobuf: fn is called again.
func features(example []byte, fn func(name string, v value) error) error {
	return fields(example, func(n protowire.Number, t protowire.Type, set []byte, _ uint64) error {
		if n != 1 || t != protowire.BytesType {
			return nil
		}
		return fields(set, func(n protowire.Number, t protowire.Type, entry []byte, _ uint64) error {
			if n != 1 || t != protowire.BytesType {
				return nil
			}
			name, v, err := feature(entry)
			if err != nil {
				return err
			}
			return fn(name, v)
		})
	})
}

// feature is an entry of the map.
func feature(entry []byte) (name string, v value, err error) {
	err = fields(entry, func(n protowire.Number, t protowire.Type, b []byte, _ uint64) error {
		switch {
		case t != protowire.BytesType:
		case n == 1:
			name = string(b)
		case n == 2:
			return fields(b, func(n protowire.Number, t protowire.Type, list []byte, _ uint64) error {
				if k := listKind(n); t == protowire.BytesType && k >= bytesList && k <= int64List {
					if k != v.list { // the last of a oneof counts
						v = value{list: k}
					}
					return v.add(list)
				}
				return nil
			})
		}
		return nil
	})
	return name, v, err
}

// add adds the values of a list.
func (v *value) add(list []byte) error {
	return fields(list, func(n protowire.Number, t protowire.Type, b []byte, bits uint64) error {
		switch {
		case n != 1:
		case v.list == bytesList && t == protowire.BytesType:
			v.bytes = append(v.bytes, b)
		case v.list == floatList && t == protowire.Fixed32Type, v.list == int64List && t == protowire.VarintType:
			v.numbers = append(v.numbers, bits)
		case t == protowire.BytesType:
			return v.unpack(b)
		}
		return nil
	})
}

// unpack adds numbers that were packed.
func (v *value) unpack(b []byte) error {
	for len(b) > 0 {
		var bits uint64
		var n int
		if v.list == floatList {
			var x uint32
			x, n = protowire.ConsumeFixed32(b)
			bits = uint64(x)
		} else {
			bits, n = protowire.ConsumeVarint(b)
		}
		if n < 0 {
			return noExample(n)
		}
		v.numbers, b = append(v.numbers, bits), b[n:]
	}
	return nil
}

// fields calls fn for each field of a message, with its bytes or its bits.
func fields(b []byte, fn func(n protowire.Number, t protowire.Type, data []byte, bits uint64) error) error {
	for len(b) > 0 {
		num, t, n := protowire.ConsumeTag(b)
		if n < 0 {
			return noExample(n)
		}
		b = b[n:]
		var data []byte
		var bits uint64
		switch t {
		case protowire.BytesType:
			data, n = protowire.ConsumeBytes(b)
		case protowire.VarintType:
			bits, n = protowire.ConsumeVarint(b)
		case protowire.Fixed32Type:
			var x uint32
			x, n = protowire.ConsumeFixed32(b)
			bits = uint64(x)
		default:
			n = protowire.ConsumeFieldValue(num, t, b)
		}
		if n < 0 {
			return noExample(n)
		}
		b = b[n:]
		if err := fn(num, t, data, bits); err != nil {
			return err
		}
	}
	return nil
}

func noExample(n int) error {
	return format.Damaged("the record is no tf.train.Example: %w", protowire.ParseError(n))
}

// kind is the type of the feature in this record; one without values has none.
func (v *value) kind() (t format.Type, ok bool) {
	switch n := len(v.bytes) + len(v.numbers); {
	case n == 0:
		return 0, false
	case n > 1:
		return format.JSON, true
	}
	switch v.list {
	case floatList:
		return format.Float64, true
	case int64List:
		return format.Int64, true
	case bytesList, noList:
	}
	return format.Bytes, true
}

// decode is the feature as a column of type t has it; nil for null.
func (v *value) decode(t format.Type) ([]byte, error) {
	n := len(v.bytes) + len(v.numbers)
	switch {
	case n == 0:
		return nil, nil
	case t == format.JSON:
		return v.json(), nil
	case n > 1:
		return nil, format.Damaged("a feature has %d values where one was indexed", n)
	case v.list == bytesList:
		if v.bytes[0] == nil {
			return []byte{}, nil
		}
		return v.bytes[0], nil
	}
	return v.appendNumber(nil, v.numbers[0]), nil
}

func (v *value) appendNumber(b []byte, bits uint64) []byte {
	if v.list == int64List {
		return strconv.AppendInt(b, int64(bits), 10) //nolint:gosec // The bits of an int64.
	}
	return format.AppendFloat(b, float64(math.Float32frombits(uint32(bits))), 32) //nolint:gosec // Of 32 bits.
}

// json is the values as a list.
func (v *value) json() []byte {
	out := []byte{'['}
	for i, x := range v.bytes {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, '"')
		out = base64.StdEncoding.AppendEncode(out, x)
		out = append(out, '"')
	}
	for i, bits := range v.numbers {
		if i > 0 {
			out = append(out, ',')
		}
		if v.list == floatList {
			out = format.AppendJSONFloat(out, float64(math.Float32frombits(uint32(bits))), 32) //nolint:gosec // Of 32 bits.
			continue
		}
		out = v.appendNumber(out, bits)
	}
	return append(out, ']')
}
