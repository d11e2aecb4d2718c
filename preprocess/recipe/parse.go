package recipe

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/nearest"
)

// MaxBytes is the largest recipe text that Parse reads.
const MaxBytes = 1 << 20

// Parse reads a recipe from YAML or JSON text. Errors have kind Invalid and name the line and the nearest known key.
func Parse(text []byte) (*Recipe, error) {
	if len(text) > MaxBytes {
		return nil, errkind.Errorf(errkind.Invalid, "recipe has %d bytes; at most %d are read", len(text), MaxBytes)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var document yaml.Node
	if err := decoder.Decode(&document); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errkind.Errorf(errkind.Invalid, "recipe is empty; it needs at least a source")
		}
		return nil, errkind.Errorf(errkind.Invalid, "recipe is not YAML: %s", oneLine(err))
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errkind.Errorf(errkind.Invalid, "recipe has more than one YAML document; keep one")
	}
	r := &Recipe{}
	if err := parseRecipe(document.Content[0], r); err != nil {
		return nil, errkind.Errorf(errkind.Invalid, "recipe: %s", oneLine(err))
	}
	return r, nil
}

// oneLine joins the lines of an error of the YAML library.
func oneLine(err error) string {
	text := strings.ReplaceAll(strings.TrimPrefix(err.Error(), "yaml: "), "unmarshal errors:", "")
	return strings.Join(strings.Fields(text), " ")
}

func parseRecipe(n *yaml.Node, r *Recipe) error {
	err := eachKey(n, "the recipe", map[string]func(*yaml.Node) error{
		"source":    func(v *yaml.Node) (err error) { r.Source, err = stringList(v, "source"); return err },
		"fields":    func(v *yaml.Node) (err error) { r.Fields, err = parseFields(v); return err },
		"operators": func(v *yaml.Node) (err error) { r.Operators, err = parseOperators(v); return err },
		"output":    func(v *yaml.Node) (err error) { r.Output, err = parseOutput(v); return err },
		"partition": func(v *yaml.Node) error { return parsePartitioning(v, &r.Partition) },
	})
	if err != nil {
		return err
	}
	if len(r.Source) == 0 {
		return errors.New("source is missing; give a URI or a list of URIs")
	}
	return nil
}

// eachKey calls the function of each key of the mapping n; an unknown or repeated key is an error.
func eachKey(n *yaml.Node, of string, keys map[string]func(*yaml.Node) error) error {
	return eachEntry(n, of, func(key string, value *yaml.Node) error {
		f, known := keys[key]
		if !known {
			names := make([]string, 0, len(keys))
			for k := range keys {
				names = append(names, k)
			}
			return fmt.Errorf("line %d: unknown key %q of %s%s", value.Line, key, of, nearest.Hint(key, names))
		}
		return f(value)
	})
}

// eachEntry calls f for each entry of the mapping n in the order of the text.
func eachEntry(n *yaml.Node, of string, f func(key string, value *yaml.Node) error) error {
	n = resolve(n)
	if n.Kind != yaml.MappingNode {
		return fmt.Errorf("line %d: %s must be a mapping (key: value), not %s", n.Line, of, kindName(n))
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := resolve(n.Content[i])
		if key.Kind != yaml.ScalarNode {
			return fmt.Errorf("line %d: a key of %s must be a word, not %s", key.Line, of, kindName(key))
		}
		if seen[key.Value] {
			return fmt.Errorf("line %d: key %q of %s is given twice", key.Line, key.Value, of)
		}
		seen[key.Value] = true
		if err := f(key.Value, resolve(n.Content[i+1])); err != nil {
			return err
		}
	}
	return nil
}

func parseFields(n *yaml.Node) ([]Field, error) {
	var fields []Field
	err := eachEntry(n, "fields", func(name string, v *yaml.Node) error {
		f := Field{Name: name}
		if err := checkName(name, "field", v.Line); err != nil {
			return err
		}
		var err error
		if v.Kind == yaml.MappingNode {
			err = eachKey(v, "field "+name, map[string]func(*yaml.Node) error{
				"from":     func(v *yaml.Node) (err error) { f.From, err = stringList(v, "from"); return err },
				"optional": func(v *yaml.Node) error { return v.Decode(&f.Optional) },
			})
		} else {
			f.From, err = stringList(v, "field "+name)
		}
		if err != nil {
			return err
		}
		if len(f.From) == 0 {
			return fmt.Errorf("line %d: field %s names no extension or column", v.Line, name)
		}
		fields = append(fields, f)
		return nil
	})
	return fields, err
}

func parseOperators(n *yaml.Node) ([]Operator, error) {
	if n.Kind != yaml.SequenceNode {
		return nil, fmt.Errorf("line %d: operators must be a list (- name: {parameters}), not %s", n.Line, kindName(n))
	}
	var operators []Operator
	for i, item := range n.Content {
		o, err := parseOperator(resolve(item))
		if err != nil {
			return nil, fmt.Errorf("operator %d: %w", i+1, err)
		}
		operators = append(operators, o)
	}
	return operators, nil
}

// parseOperator reads `name`, or `name: {param: value, resources: {cpu: 1}, barrier: true}`.
func parseOperator(n *yaml.Node) (Operator, error) {
	if n.Kind == yaml.ScalarNode && n.Value != "" {
		return Operator{Name: n.Value}, nil
	}
	if n.Kind != yaml.MappingNode || len(n.Content) != 2 || resolve(n.Content[0]).Value == "" {
		return Operator{}, fmt.Errorf("line %d: write one operator an entry, as in - resize: {field: image, size: 224}", n.Line)
	}
	o := Operator{Name: resolve(n.Content[0]).Value}
	params := resolve(n.Content[1])
	if params.Kind == yaml.ScalarNode && params.Tag == "!!null" {
		return o, nil
	}
	err := eachEntry(params, o.Name, func(key string, v *yaml.Node) error {
		switch key {
		case "resources":
			return parseResources(v, &o)
		case "barrier":
			if err := v.Decode(&o.Barrier); err != nil {
				return fmt.Errorf("line %d: barrier must be true or false", v.Line)
			}
			return nil
		}
		var value any
		if err := v.Decode(&value); err != nil {
			return fmt.Errorf("line %d: %s: %w", v.Line, key, err)
		}
		if err := checkPlain(value); err != nil {
			return fmt.Errorf("line %d: %s: %w", v.Line, key, err)
		}
		if o.Params == nil {
			o.Params = map[string]any{}
		}
		o.Params[key] = value
		return nil
	})
	return o, err
}

// checkPlain admits what JSON and protobuf carry unchanged, so that a recipe means the same everywhere.
func checkPlain(v any) error {
	const exact = 1 << 53
	switch v := v.(type) {
	case nil, bool, string:
		return nil
	case int:
		if v > exact || v < -exact {
			return fmt.Errorf("%d is too large; whole numbers go up to 2^53", v)
		}
		return nil
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Errorf("%v is not a finite number", v)
		}
		return nil
	case []any:
		for _, item := range v {
			if err := checkPlain(item); err != nil {
				return err
			}
		}
		return nil
	case map[string]any:
		for _, item := range v {
			if err := checkPlain(item); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("%v (%T) is not text, a number, true or false, a list or a mapping with words as keys", v, v)
}

func parseResources(n *yaml.Node, o *Operator) error {
	o.Resources = map[string]int{}
	return eachEntry(n, "resources of "+o.Name, func(name string, v *yaml.Node) error {
		var slots int
		if err := v.Decode(&slots); err != nil || slots < 0 || slots > 1<<16 {
			return fmt.Errorf("line %d: resources of %s: %s must be a whole number of slots", v.Line, o.Name, name)
		}
		o.Resources[name] = slots
		return nil
	})
}

func parseOutput(n *yaml.Node) ([]Output, error) {
	var outputs []Output
	err := eachEntry(n, "output", func(name string, v *yaml.Node) error {
		out := Output{Name: name}
		if err := checkName(name, "output", v.Line); err != nil {
			return err
		}
		if v.Kind == yaml.ScalarNode && v.Tag == "!!null" {
			outputs = append(outputs, out)
			return nil
		}
		err := eachKey(v, "output "+name, map[string]func(*yaml.Node) error{
			"layout": func(v *yaml.Node) error { return oneOf(v, &out.Layout, "layout", "CHW", "HWC") },
			"dtype":  func(v *yaml.Node) error { return v.Decode(&out.DType) },
		})
		outputs = append(outputs, out)
		return err
	})
	return outputs, err
}

func parsePartitioning(n *yaml.Node, p *Partitioning) error {
	whole := func(dst *int64, name string) func(*yaml.Node) error {
		return func(v *yaml.Node) error {
			if err := v.Decode(dst); err != nil || *dst < 1 {
				return fmt.Errorf("line %d: %s must be a whole number of at least 1", v.Line, name)
			}
			return nil
		}
	}
	return eachKey(n, "partition", map[string]func(*yaml.Node) error{
		"samples":       whole(&p.Samples, "samples"),
		"target_bytes":  whole(&p.TargetBytes, "target_bytes"),
		"block_samples": whole(&p.BlockSamples, "block_samples"),
		"window_blocks": whole(&p.WindowBlocks, "window_blocks"),
		"lanes":         whole(&p.Lanes, "lanes"),
	})
}

func oneOf(v *yaml.Node, dst *string, name string, allowed ...string) error {
	if v.Kind != yaml.ScalarNode || !slices.Contains(allowed, v.Value) {
		return fmt.Errorf("line %d: unknown %s %q%s", v.Line, name, v.Value, nearest.Hint(v.Value, allowed))
	}
	*dst = v.Value
	return nil
}

// checkName keeps the names that a batch needs for itself out of recipes.
func checkName(name, what string, line int) error {
	switch {
	case name == "":
		return fmt.Errorf("line %d: a %s needs a name", line, what)
	case len(name) > 1 && name[0] == '_' && name[1] == '_':
		return fmt.Errorf("line %d: %s %q: names that begin with __ are kept for a batch's meta data; choose another", line, what, name)
	}
	return nil
}

func stringList(n *yaml.Node, what string) ([]string, error) {
	switch n.Kind {
	case yaml.ScalarNode:
		if n.Value == "" {
			return nil, nil
		}
		return []string{n.Value}, nil
	case yaml.SequenceNode:
		var list []string
		for _, item := range n.Content {
			item = resolve(item)
			if item.Kind != yaml.ScalarNode || item.Value == "" {
				return nil, fmt.Errorf("line %d: %s must be a word or a list of words", item.Line, what)
			}
			list = append(list, item.Value)
		}
		return list, nil
	case yaml.DocumentNode, yaml.MappingNode, yaml.AliasNode:
	}
	return nil, fmt.Errorf("line %d: %s must be a word or a list of words, not %s", n.Line, what, kindName(n))
}

func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func kindName(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.ScalarNode:
		return fmt.Sprintf("%q", n.Value)
	case yaml.DocumentNode, yaml.AliasNode:
	}
	return "something else"
}
