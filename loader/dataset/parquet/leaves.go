package parquet

import (
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/schema"

	"github.com/millrace/millrace/loader/dataset/format"
)

// leaf is a column of the file: what its values are, and how its levels make lists.
type leaf struct {
	column format.Column
	value  format.Type // of a single value; that of column is JSON for lists
	descr  *schema.Column
	// lists[k] is the definition level from which the list of depth k+1 has an element.
	lists []int16
}

// leavesOf are the columns of a schema. They are named by the path to them, without the groups that only make a list
// or a map: "tags", "user.name", "scores.value". The bytes of a struct {bytes, path}, as Hugging Face has images
// and audio, go by the name of the struct.
func leavesOf(s *schema.Schema) []leaf {
	leaves := make([]leaf, s.NumColumns())
	full := make([]string, len(leaves))
	used := map[string]int{}
	for i := range leaves {
		l := &leaves[i]
		l.descr = s.Column(i)
		l.value = valueType(l.descr)
		var parts []string
		parts, l.lists = walk(l.descr.SchemaNode())
		full[i] = strings.Join(parts, ".")
		l.column = format.Column{Name: full[i], Type: l.value}
		if media := mediaName(l.descr.SchemaNode(), full[i]); media != "" {
			l.column.Name = media
		}
		if len(l.lists) > 0 {
			l.column.Type = format.JSON
		}
		used[l.column.Name]++
	}
	for i := range leaves {
		if used[leaves[i].column.Name] > 1 {
			leaves[i].column.Name = full[i]
		}
	}
	return leaves
}

// walk is the path to a node that people see, and the levels of the lists on it.
func walk(n schema.Node) (parts []string, lists []int16) {
	var path []schema.Node // from below the root to the leaf
	for ; n != nil && n.Parent() != nil; n = n.Parent() {
		path = append(path, n)
	}
	def := int16(0)
	hidden := 0 // how many of the next groups only make a list
	for i, n := range slices.Backward(path) {
		if n.RepetitionType() != parquet.Repetitions.Required {
			def++
		}
		if n.RepetitionType() == parquet.Repetitions.Repeated {
			lists = append(lists, def)
		}
		if hidden == 0 {
			parts = append(parts, n.Name())
		} else {
			hidden--
		}
		switch {
		case i >= 2 && isList(n) && path[i-1].RepetitionType() == parquet.Repetitions.Repeated:
			hidden = 2 // the repeated group and its element
		case i >= 1 && (isList(n) || isMap(n)) && path[i-1].RepetitionType() == parquet.Repetitions.Repeated:
			hidden = 1
		}
	}
	return parts, lists
}

func isList(n schema.Node) bool {
	_, ok := n.LogicalType().(schema.ListLogicalType)
	return n.Type() == schema.Group && (ok || n.ConvertedType() == schema.ConvertedTypes.List)
}

func isMap(n schema.Node) bool {
	_, ok := n.LogicalType().(schema.MapLogicalType)
	return n.Type() == schema.Group && (ok || n.ConvertedType() == schema.ConvertedTypes.Map || n.ConvertedType() == schema.ConvertedTypes.MapKeyValue)
}

// mediaName is the name of the struct that n holds the bytes of, empty where it is none.
func mediaName(n schema.Node, full string) string {
	parent, ok := n.Parent().(*schema.GroupNode)
	if !ok || n.Name() != "bytes" || parent.NumFields() != 2 || parent.FieldIndexByName("path") < 0 {
		return ""
	}
	return strings.TrimSuffix(full, ".bytes")
}

func valueType(c *schema.Column) format.Type {
	switch c.LogicalType().(type) {
	case schema.StringLogicalType, *schema.StringLogicalType, schema.EnumLogicalType, schema.JSONLogicalType, schema.UUIDLogicalType:
		return format.Text
	case *schema.DecimalLogicalType, schema.DecimalLogicalType:
		return format.Float64
	case schema.Float16LogicalType, *schema.Float16LogicalType:
		return format.Float64
	}
	switch c.PhysicalType() {
	case parquet.Types.Boolean, parquet.Types.Int32, parquet.Types.Int64, parquet.Types.Int96:
		return format.Int64
	case parquet.Types.Float, parquet.Types.Double:
		return format.Float64
	}
	return format.Bytes
}
