// Package format is the seam between datasets and the formats of their shards other than tar.
//
// A [Format] knows shards by name and indexes them once, streaming. What it found is kept as bytes that only
// the format reads: a [Shard] opened over them says which ranges of bytes hold wanted rows and columns, as
// [Unit]s, and turns fetched ranges into values. All else is the same for every format: joining ranges,
// fetching, retries, pins, limits and caches are the caller's.
package format

import (
	"context"
	"io"

	"github.com/millrace/millrace/internal/errkind"
)

// Type says what the bytes of a value spell.
type Type uint8

const (
	// Bytes are opaque, encoded media for example.
	Bytes Type = iota
	// Text is UTF-8.
	Text
	// Int64 is a decimal integer as text. True and false are 1 and 0.
	Int64
	// Float64 is a decimal number as text, as short as brings back the same number.
	Float64
	// JSON is a JSON document: lists, and whatever has parts. Numbers that JSON lacks are the strings "NaN",
	// "Infinity" and "-Infinity".
	JSON
)

// String is the name of the type in recipes and messages.
func (t Type) String() string {
	switch t {
	case Bytes:
		return "bytes"
	case Text:
		return "text"
	case Int64:
		return "int64"
	case Float64:
		return "float64"
	case JSON:
		return "json"
	}
	return "unknown"
}

// Column is a field that the samples of a shard may have.
type Column struct {
	Name string
	Type Type
}

// Object is what an indexer reads: one version of a stored object.
type Object interface {
	// Name is the object's URI, for messages.
	Name() string
	// Size is the number of bytes, as stored.
	Size() int64
	// ReadAt reads len(dst) bytes at off, as stored.
	ReadAt(ctx context.Context, off int64, dst []byte) error
	// Open streams the content from its beginning, decompressed. Its errors have the kind BadData where
	// the content is damaged.
	Open(ctx context.Context) (io.ReadCloser, error)
}

// Neighbour is an optional second interface of an Object.
type Neighbour interface {
	// Neighbour is what parse made of the small file name in the object's directory, once for all shards there. A file that
	// is not there is an error of kind NotFound.
	Neighbour(ctx context.Context, name string, parse func([]byte) (any, error)) (any, error)
}

// Format indexes and reads the shards of one format. It holds no state.
type Format interface {
	// Name is what manifests call the format.
	Name() string
	// Suffixes are the names by which its shards are known, in lower case: ".parquet".
	Suffixes() []string
	// Compressible says whether shards may be compressed as a whole, with a second suffix (".gz", ".zst").
	Compressible() bool
	// Index reads a whole shard once, in bounded memory. tolerate is asked about damage that leaves the
	// samples before it whole: it returns nil to go on with these, or the error to return.
	Index(ctx context.Context, o Object, tolerate func(error) error) (Indexed, error)
	// Open checks and reads what Index gave, which may come from anywhere. Anything else is BadData.
	Open(raw []byte) (Shard, error)
}

// Indexed is what indexing a shard gives.
type Indexed struct {
	// Raw is the index. It is a function of the shard's content alone.
	Raw []byte
	// Samples is the number of samples, DataBytes that of their payload.
	Samples, DataBytes int64
	// Content is the number of bytes of the shard after decompression.
	Content int64
}

// Shard is an opened index. It is immutable and may be used by many goroutines at once.
type Shard interface {
	// NumSamples is the number of rows.
	NumSamples() int64
	// MemoryBytes is about what the shard holds in memory.
	MemoryBytes() int64
	// Columns are the fields that rows may have, in the order of the shard.
	Columns() []Column
	// Units are those that hold the given rows, which ascend, of the columns whose place in wanted is set.
	Units(rows []int64, wanted []bool) ([]Unit, error)
	// Decode turns the bytes of a unit, one slice for each of its ranges, into a block. Values may lie in
	// these bytes. limit bounds the memory of the block.
	Decode(ctx context.Context, u Unit, wanted []bool, bytes [][]byte, limit int64) (Block, error)
}

// Range is a stretch of bytes of the shard, after decompression of shards that are compressed as a whole.
type Range struct{ Off, Len int64 }

// Unit is the least that can be fetched and decoded: a record, or a page of a column.
type Unit struct {
	// ID tells the units of a shard apart, whatever rows were asked for.
	ID int64
	// First and Count are the rows it holds.
	First, Count int64
	// Ranges bring its bytes.
	Ranges []Range
}

// Block is a decoded unit.
type Block interface {
	// Values calls fn for each value that row has in this block, in the order of the columns. column is its
	// place in Columns. Nulls are left out. An error is about that row alone.
	Values(row int64, fn func(column int, data []byte)) error
	// MemoryBytes is about what the block holds in memory.
	MemoryBytes() int64
}

// Damaged is an error of the kind BadData.
func Damaged(text string, args ...any) error {
	return errkind.Errorf(errkind.BadData, text, args...)
}

// Guard turns a panic of a decoder that was given foreign bytes into an error of kind BadData.
func Guard(what string, err *error) {
	if r := recover(); r != nil {
		*err = Damaged("%s: the decoder stopped with %q", what, r)
	}
}
