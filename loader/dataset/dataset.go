// Package dataset knows what a source is and reads its samples.
//
// A source is a list of tar shards in WebDataset form, of shards in one of the formats below loader/dataset, or a
// folder of images. [Build]
// turns it into a [Manifest], the immutable list of its shards; a [Dataset] reads samples by their
// ordinal, their place in the order of the manifest. Where the samples of a shard lie is in the shard's
// own index, which is read only by those who read the shard, so memory does not grow with the number of samples.
package dataset

import (
	"context"
	"slices"
	"sort"
	"sync"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset/format"
	"github.com/millrace/millrace/loader/store"
)

// Field is one named part of a sample.
type Field struct {
	// Name is the extension in lower case ("jpg", "seg.png"); in an image folder also "cls", the number
	// of the class as decimal text, and "class", its name.
	Name string
	// Data are the bytes. They must not be changed, and are valid until the release function of the read is called.
	Data []byte
	// Offset and Length say where Data lies in the shard, after decompression; in shards of records and pages
	// where the record or page lies that holds it. For made-up fields ("cls", "class") Offset is 0.
	Offset, Length int64
	// Type says what Data spells. Members of tar shards and files are Bytes, whatever they are.
	Type format.Type
}

// Sample is one training example.
type Sample struct {
	// Ordinal is the sample's place in the order of the manifest.
	Ordinal int64
	// Key names the sample for people: "train-000017.tar!n01440764_10026", or "n01440764/n01440764_10026.JPEG" in a folder.
	Key string
	// URI is that of the shard, or of the sample's own file in a folder.
	URI string
	// Fields are those asked for, in the order in which the shard holds them.
	Fields []Field
	// Err says why the sample's record can't be decoded. It has the kind BadData, and is about this sample alone.
	Err error
}

// Field is the field of that name, and whether the sample has it.
func (s *Sample) Field(name string) (Field, bool) {
	i := slices.IndexFunc(s.Fields, func(f Field) bool { return f.Name == name })
	if i < 0 {
		return Field{}, false
	}
	return s.Fields[i], true
}

// OpenOptions bound what a Dataset holds. A zero value stands for the default.
type OpenOptions struct {
	// IndexBytes is how much memory the indexes of shards in use may take; default 256 MiB. The index of
	// one shard that is larger is still loaded, alone.
	IndexBytes int64
	// SpillBytes is how much disk decompressed shards may take; default 32 GiB. A shard that is larger can't be read.
	SpillBytes int64
	// SpillDir is where decompressed shards lie, in files without a name; default os.TempDir().
	SpillDir string
	// Concurrency is the number of requests that one Read may have in flight; default 16.
	Concurrency int
	// RequestBytes is the size from which a run of bytes is read by several requests; default 8 MiB.
	RequestBytes int64
	// ReadBytes is the most that one Read may bring into memory, as stored and once more decoded; default 4 GiB.
	ReadBytes int64
	// BlockBytes is how much memory decoded pages that hold more samples than were asked for may take, until these
	// are asked for too; default 256 MiB.
	BlockBytes int64
	// Blocks keeps the blocks of windows for the reads that follow; nil: every read asks the store for what it wants.
	Blocks *Blocks
}

func (o OpenOptions) withDefaults() OpenOptions {
	if o.IndexBytes <= 0 {
		o.IndexBytes = 256 << 20
	}
	if o.SpillBytes <= 0 {
		o.SpillBytes = 32 << 30
	}
	if o.Concurrency <= 0 {
		o.Concurrency = 16
	}
	if o.RequestBytes <= 0 {
		o.RequestBytes = 8 << 20
	}
	if o.ReadBytes <= 0 {
		o.ReadBytes = 4 << 30
	}
	if o.BlockBytes <= 0 {
		o.BlockBytes = 256 << 20
	}
	return o
}

// Dataset reads the samples of a manifest. It may be used by many goroutines at once.
type Dataset struct {
	manifest *Manifest
	resolver *store.Resolver
	cache    *Cache
	opts     OpenOptions
	starts   []int64 // starts[i] is the ordinal of the first sample of shard i; the last is the number of samples

	damaged map[string]bool // URIs of shards that are not whole

	indexes *indexLRU
	blocks  *blockCache
	spill   *spill
	arenas  sync.Pool
	stats   stats
}

// Open prepares reading the samples of m; it reads nothing. cache may be nil: then indexes are built
// again from the shards whenever they are needed. The caller must Close the dataset.
func Open(m *Manifest, r *store.Resolver, cache *Cache, o OpenOptions) (*Dataset, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	d := &Dataset{manifest: m, resolver: r, cache: cache, opts: o, starts: make([]int64, 0, len(m.Shards)+1)}
	var total int64
	for _, s := range m.Shards {
		d.starts = append(d.starts, total)
		total += s.NumSamples
	}
	d.starts = append(d.starts, total)
	d.damaged = make(map[string]bool, len(m.Damaged))
	for _, s := range m.Damaged {
		d.damaged[s.URI] = true
	}
	d.indexes = newIndexLRU(o.IndexBytes)
	d.blocks = newBlockCache(o.BlockBytes)
	d.spill = newSpill(o.SpillDir, o.SpillBytes)
	return d, nil
}

// Manifest is what the dataset was opened with.
func (d *Dataset) Manifest() *Manifest { return d.manifest }

// NumSamples is the number of samples.
func (d *Dataset) NumSamples() int64 { return d.starts[len(d.starts)-1] }

// Locate is the shard of a sample and the sample's index in it. The ordinal must be in [0, NumSamples()).
func (d *Dataset) Locate(ordinal int64) (shard int, index int64) {
	shard = sort.Search(len(d.starts)-1, func(i int) bool { return d.starts[i+1] > ordinal })
	return shard, ordinal - d.starts[shard]
}

// FieldNames are the names of the fields that shard holds, in order of first appearance.
func (d *Dataset) FieldNames(ctx context.Context, shard int) ([]string, error) {
	if shard < 0 || shard >= len(d.manifest.Shards) {
		return nil, errkind.Errorf(errkind.Invalid, "there is no shard %d; the manifest has %d", shard, len(d.manifest.Shards))
	}
	x, err := d.index(ctx, shard)
	if err != nil {
		return nil, err
	}
	names := slices.Clone(x.Names())
	if len(d.manifest.Classes) > 0 {
		names = append(names, fieldCls, fieldClass)
	}
	return names, nil
}

// Close frees memory and disk. It must not be called while reads are running.
func (d *Dataset) Close() error {
	if d.opts.Blocks != nil {
		d.opts.Blocks.forget(d)
	}
	return d.spill.close()
}
