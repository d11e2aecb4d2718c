package dataset

import (
	"slices"
	"strings"

	"github.com/millrace/millrace/loader/dataset/arrowipc"
	"github.com/millrace/millrace/loader/dataset/format"
	"github.com/millrace/millrace/loader/dataset/jsonl"
	"github.com/millrace/millrace/loader/dataset/mds"
	"github.com/millrace/millrace/loader/dataset/parquet"
	"github.com/millrace/millrace/loader/dataset/tfrecord"
)

// formats are those of shards other than tar.
func formats() []format.Format {
	return []format.Format{jsonl.Format{}, parquet.Format{}, tfrecord.Format{}, mds.Format{}, arrowipc.Format{}}
}

// formatNamed is the format that manifests call name, nil for tar shards and folders.
func formatNamed(name string) format.Format {
	for _, f := range formats() {
		if f.Name() == name {
			return f
		}
	}
	return nil
}

// shardType is what the name of a shard says about it.
type shardType struct {
	format      format.Format // nil: a tar
	compression compression
}

// name is what manifests call the type.
func (t shardType) name() string {
	if t.format == nil {
		return FormatWebDataset
	}
	return t.format.Name()
}

// typeOf is the type of a shard; its compression is notShard where the name is that of none.
func typeOf(uri string) shardType {
	name := strings.ToLower(uri)
	if strings.HasSuffix(name, ".tgz") {
		return shardType{compression: gzipped}
	}
	c := uncompressed
	for _, s := range []struct {
		suffix      string
		compression compression
	}{{".gz", gzipped}, {".zst", zstandard}, {".zstd", zstandard}, {".bz2", bzipped}} {
		if rest, found := strings.CutSuffix(name, s.suffix); found {
			name, c = rest, s.compression
			break
		}
	}
	if strings.HasSuffix(name, ".tar") {
		return shardType{compression: c}
	}
	for _, f := range formats() {
		if (c == uncompressed || f.Compressible()) && slices.ContainsFunc(f.Suffixes(), func(s string) bool { return strings.HasSuffix(name, s) }) {
			return shardType{format: f, compression: c}
		}
	}
	return shardType{}
}

// compressionOf is how a shard is stored, notShard where the name is that of none.
func compressionOf(uri string) compression {
	return typeOf(uri).compression
}

// shardNames lists the names by which shards are known, for messages.
func shardNames() string {
	names := []string{".tar"}
	for _, f := range formats() {
		names = append(names, f.Suffixes()...)
	}
	return strings.Join(names, ", ")
}
