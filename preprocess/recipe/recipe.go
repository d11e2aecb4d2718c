// Package recipe reads and writes recipes: what a sample is (source, fields, operators, output).
//
// A recipe is YAML (or JSON, which is YAML), one to one with the Python builder. How the stream is dealt
// (shuffle, seed, batch, tail) is not part of it. Parsing checks the shape of the text and names unknown keys;
// whether the operators fit together is checked when package plan builds them.
package recipe

// Recipe is a chain of operators over one source.
type Recipe struct {
	// Source lists URIs: brace patterns, single shards, directories.
	Source []string
	// Fields of a sample in order; empty means DefaultFields.
	Fields []Field
	// Operators in order. The place of an operator is part of its random key.
	Operators []Operator
	// Output lists the columns of a batch in order; empty means every field that is left.
	Output []Output
	// Partition fixes sizes; zero values are derived from the manifest when a job is created.
	Partition Partitioning
}

// Field takes a member of a sample by extension or column name.
type Field struct {
	Name string
	// From lists members; the first that a sample has wins.
	From []string
	// Optional fields may be missing from a sample; others are an error of that sample.
	Optional bool
}

// Operator is one named step.
type Operator struct {
	Name string
	// Params as YAML gave them: string, bool, int, float64, []any, map[string]any.
	Params map[string]any
	// Resources are the slots that one task takes; empty means the operator's own.
	Resources map[string]int
	// Barrier begins a new stage even if the resources are those of the operator before.
	Barrier bool
}

// Output declares one column of a batch.
type Output struct {
	Name string
	// Layout is "CHW", "HWC" or empty.
	Layout string
	// DType is an element type such as "uint8", or empty for the natural one.
	DType string
}

// Partitioning fixes partition sizes; every value is part of the order digest.
type Partitioning struct {
	// Samples of a source partition.
	Samples int64
	// TargetBytes of an output partition, at which it is handed on.
	TargetBytes int64
	// BlockSamples is the number of samples of a shuffle block.
	BlockSamples int64
	// WindowBlocks is the number of blocks of a shuffle window.
	WindowBlocks int64
	// Lanes is the number of windows that the order draws from at a time.
	Lanes int64
}

// DefaultFields are the fields of a recipe that names none: an image and, where a sample has one, a label.
func DefaultFields() []Field {
	return []Field{
		{Name: "image", From: []string{"jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "avif"}},
		{Name: "label", From: []string{"cls"}, Optional: true},
	}
}
