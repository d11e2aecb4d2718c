package recipe

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"

	"go.yaml.in/yaml/v3"
)

// YAML writes r so that Parse reads it back equal.
func (r *Recipe) YAML() ([]byte, error) {
	root := mapping()
	if len(r.Source) == 1 {
		put(root, "source", scalar(r.Source[0]))
	} else {
		put(root, "source", words(r.Source))
	}
	if len(r.Fields) > 0 {
		fields := mapping()
		for _, f := range r.Fields {
			put(fields, f.Name, fieldNode(f))
		}
		put(root, "fields", fields)
	}
	if len(r.Operators) > 0 {
		list := &yaml.Node{Kind: yaml.SequenceNode}
		for _, o := range r.Operators {
			node, err := operatorNode(o)
			if err != nil {
				return nil, err
			}
			list.Content = append(list.Content, node)
		}
		put(root, "operators", list)
	}
	if len(r.Output) > 0 {
		outputs := mapping()
		for _, o := range r.Output {
			put(outputs, o.Name, outputNode(o))
		}
		put(root, "output", outputs)
	}
	if node := partitionNode(r.Partition); node != nil {
		put(root, "partition", node)
	}
	var text bytes.Buffer
	encoder := yaml.NewEncoder(&text)
	encoder.SetIndent(2)
	if err := encoder.Encode(root); err != nil {
		return nil, fmt.Errorf("writing recipe as YAML: %w", err)
	}
	return text.Bytes(), nil
}

// CanonicalJSON is the same bytes for equal parameters, whatever their order in the text: keys are sorted and
// whole floats are written like integers, as JSON and protobuf do not tell them apart. It feeds the digests.
func CanonicalJSON(v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encoding %T: %w", v, err)
	}
	return text, nil
}

func fieldNode(f Field) *yaml.Node {
	var from *yaml.Node
	if len(f.From) == 1 {
		from = scalar(f.From[0])
	} else {
		from = words(f.From)
	}
	if !f.Optional {
		return from
	}
	node := mapping()
	node.Style = yaml.FlowStyle
	put(node, "from", from)
	put(node, "optional", &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: "true"})
	return node
}

func operatorNode(o Operator) (*yaml.Node, error) {
	if len(o.Params) == 0 && len(o.Resources) == 0 && !o.Barrier {
		return scalar(o.Name), nil
	}
	all := map[string]any{}
	maps.Copy(all, o.Params)
	if len(o.Resources) > 0 {
		all["resources"] = o.Resources
	}
	if o.Barrier {
		all["barrier"] = true
	}
	params := &yaml.Node{}
	if err := params.Encode(all); err != nil {
		return nil, fmt.Errorf("writing parameters of %s as YAML: %w", o.Name, err)
	}
	params.Style = yaml.FlowStyle
	node := mapping()
	put(node, o.Name, params)
	return node, nil
}

func outputNode(o Output) *yaml.Node {
	node := mapping()
	node.Style = yaml.FlowStyle
	if o.Layout != "" {
		put(node, "layout", scalar(o.Layout))
	}
	if o.DType != "" {
		put(node, "dtype", scalar(o.DType))
	}
	return node
}

func partitionNode(p Partitioning) *yaml.Node {
	node := mapping()
	for _, entry := range []struct {
		key   string
		value int64
	}{
		{"samples", p.Samples},
		{"target_bytes", p.TargetBytes},
		{"block_samples", p.BlockSamples},
		{"window_blocks", p.WindowBlocks},
		{"lanes", p.Lanes},
	} {
		if entry.value != 0 {
			put(node, entry.key, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: fmt.Sprint(entry.value)})
		}
	}
	if len(node.Content) == 0 {
		return nil
	}
	return node
}

func mapping() *yaml.Node { return &yaml.Node{Kind: yaml.MappingNode} }

func put(m *yaml.Node, key string, value *yaml.Node) {
	m.Content = append(m.Content, scalar(key), value)
}

// scalar is a string node that is quoted where YAML would read something else.
func scalar(s string) *yaml.Node {
	n := &yaml.Node{}
	n.SetString(s)
	return n
}

func words(list []string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	for _, s := range list {
		n.Content = append(n.Content, scalar(s))
	}
	return n
}
