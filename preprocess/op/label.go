package op

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/nearest"
)

// labelOp reads a number or text from a field of text or JSON into a column of its own.
type labelOp struct {
	info        Info
	field, from string
	key         []string
	dtype       string
}

func buildLabel(_ int, a *args) (Operator, error) {
	o := &labelOp{field: a.field("field")}
	o.from = a.text("from", o.field)
	if key := a.text("key", ""); key != "" {
		o.key = strings.Split(key, ".")
	}
	o.dtype = a.text("dtype", "int64", "int64", "float64", "text")
	if err := a.done(); err != nil {
		return nil, err
	}
	o.info = cpuInfo(a.operator, 1, a.canon)
	return o, nil
}

func (o *labelOp) Info() Info { return o.info }

func (o *labelOp) kind() Kind {
	switch o.dtype {
	case "float64":
		return KindFloat64
	case "text":
		return KindText
	}
	return KindInt64
}

func (o *labelOp) Schema(in Schema) (Schema, error) {
	i, err := in.Lookup(o.info.Name, o.from)
	if err != nil {
		return nil, err
	}
	if k := in[i].Kind; k != KindBytes && k != KindText {
		return nil, errkind.Errorf(errkind.Invalid, "label: field %q is %s; a label is read from text or JSON", o.from, in[i])
	}
	return in.with(in.Index(o.field), scalarField(o.field, o.kind())), nil
}

func (o *labelOp) Apply(_ context.Context, _ *Env, in *Batch, emit func(*Batch) error) error {
	i, err := in.column(o.info.Name, o.from)
	if err != nil {
		return err
	}
	out := Column{Field: scalarField(o.field, o.kind())}
	for row, text := range in.Columns[i].Bytes {
		if err := o.read(&out, text); err != nil {
			return sampleError(in, row, o.info.Name, err)
		}
	}
	return emit(in.with(in.Schema().Index(o.field), out))
}

// scalarField is the field of one value per row.
func scalarField(name string, kind Kind) Field {
	f := Field{Name: name, Kind: kind}
	switch kind {
	case KindInt64:
		f.DType = DTypeInt64
	case KindFloat64:
		f.DType = DTypeFloat64
	case KindInvalid, KindBytes, KindText, KindTensor, KindImage:
	}
	return f
}

// read appends the label in text to out.
func (o *labelOp) read(out *Column, text []byte) error {
	if len(o.key) > 0 {
		var err error
		if text, err = jsonPath(text, o.key); err != nil {
			return err
		}
	}
	return out.appendText(text)
}

// appendText appends the value that text spells to a column of scalars or text.
func (c *Column) appendText(text []byte) error {
	switch c.Kind {
	case KindInt64:
		n, err := parseInt(text)
		if err != nil {
			return err
		}
		c.Ints = append(c.Ints, n)
	case KindFloat64:
		f, err := strconv.ParseFloat(string(bytes.TrimSpace(text)), 64)
		if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
			return errkind.Errorf(errkind.BadData, "%q is not a number", clip(text))
		}
		c.Floats = append(c.Floats, f)
	default:
		if !utf8.Valid(text) {
			return errkind.Errorf(errkind.BadData, "%q is not UTF-8 text", clip(text))
		}
		c.Bytes = append(c.Bytes, text)
	}
	return nil
}

// parseInt reads a decimal integer with space around it; 7.0 counts as one.
func parseInt(text []byte) (int64, error) {
	s := string(bytes.TrimSpace(text))
	n, err := strconv.ParseInt(s, 10, 64)
	if err == nil {
		return n, nil
	}
	if f, floatErr := strconv.ParseFloat(s, 64); floatErr == nil && f == math.Trunc(f) && math.Abs(f) < 1<<53 {
		return int64(f), nil
	}
	return 0, errkind.Errorf(errkind.BadData, "%q is not an integer", clip(text))
}

// clip shortens text for a message.
func clip(text []byte) []byte {
	if len(text) > 40 {
		return append(bytes.Clone(text[:40]), "…"...)
	}
	return text
}

// jsonPath is the text of the value at path in a JSON document: a string without its quotes, true and false as 1 and 0.
func jsonPath(doc []byte, path []string) ([]byte, error) {
	value := json.RawMessage(doc)
	for depth, key := range path {
		next, err := jsonChild(value, key)
		if err != nil {
			return nil, errkind.Errorf(errkind.BadData, "JSON at %q: %w", strings.Join(path[:depth+1], "."), err)
		}
		value = next
	}
	switch trimmed := bytes.TrimSpace(value); {
	case len(trimmed) > 0 && trimmed[0] == '"':
		var s string
		if err := json.Unmarshal(trimmed, &s); err != nil {
			return nil, errkind.Errorf(errkind.BadData, "JSON at %q: %w", strings.Join(path, "."), err)
		}
		return []byte(s), nil
	case string(trimmed) == "true":
		return []byte("1"), nil
	case string(trimmed) == "false":
		return []byte("0"), nil
	default:
		return trimmed, nil
	}
}

// jsonChild is the member of an object called key, or the element of an array at that index.
func jsonChild(value json.RawMessage, key string) (json.RawMessage, error) {
	trimmed := bytes.TrimSpace(value)
	if len(trimmed) > 0 && trimmed[0] == '[' {
		var list []json.RawMessage
		if err := json.Unmarshal(trimmed, &list); err != nil {
			return nil, err
		}
		i, err := strconv.Atoi(key)
		if err != nil || i < 0 || i >= len(list) {
			return nil, errkind.Errorf(errkind.BadData, "a list of %d elements has no element %q", len(list), key)
		}
		return list[i], nil
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(trimmed, &object); err != nil {
		return nil, err
	}
	child, ok := object[key]
	if !ok {
		return nil, errkind.Errorf(errkind.BadData, "no member %q%s", key, nearest.Hint(key, slices.Collect(maps.Keys(object))))
	}
	return child, nil
}
