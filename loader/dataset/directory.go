package dataset

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset/index"
	"github.com/millrace/millrace/loader/store"
)

// Names of the fields that an image folder's samples have beside their image.
const (
	fieldCls   = "cls"
	fieldClass = "class"
)

// imageExtensions are the files that an image folder is made of.
const imageExtensions = "jpg, jpeg, png, webp, bmp, gif, tif, tiff"

// imageExtension is the extension of an image file, in lower case.
func imageExtension(path string) (ext string, ok bool) {
	base := store.Base(path)
	ext = lower(base[strings.LastIndexByte(base, '.')+1:])
	return ext, len(ext) < len(base)-1 && slices.Contains(strings.Split(imageExtensions, ", "), ext)
}

// hidden says whether any part of a path begins with a dot, or the object only marks a directory.
func hidden(rel string) bool {
	return rel == "" || strings.HasPrefix(rel, ".") || strings.Contains(rel, "/.") || strings.HasSuffix(rel, "/")
}

// directory sorts what lies under one URI into shards and images, while it is listed.
type directory struct {
	uri, prefix string // prefix is the key of the directory with a slash
	cache       *Cache
	unpinned    bool
	progress    *progress

	shards     []listed
	deepShards []string // a few directories below that hold shards
	flat       *folderShard
	classes    []folderShard
	open       *folderShard // the class being listed; its files are consecutive

	others  int64
	example string
}

// folderShard is one directory of images.
type folderShard struct {
	class   string
	builder *index.Builder
	shard   Shard
	// reported is how many bytes the progress has been told of, a multiple of reportEvery samples.
	reported int64
}

// scanDirectory lists uri and decides what it is.
func (b *building) scanDirectory(ctx context.Context, uri string) (*directory, error) {
	bucket, key, err := b.r.Resolve(ctx, uri)
	if err != nil {
		return nil, err
	}
	if key != "" {
		if a, err := bucket.Attributes(ctx, key); err == nil {
			return nil, errkind.Errorf(errkind.Invalid, "%s is a file of %d bytes, but no shard: those are named %s", uri, a.Size, shardNames())
		}
		key += "/"
	}
	d := &directory{uri: uri, prefix: key, cache: b.cache, unpinned: b.opts.Unpinned, progress: &b.progress}
	if err := bucket.List(ctx, key, d.add); err != nil {
		return nil, fmt.Errorf("listing %s: %w", uri, err)
	}
	if err := d.closeClass(); err != nil {
		return nil, err
	}
	if err := d.closeShard(d.flat, uri); err != nil {
		return nil, err
	}
	return d, d.judge()
}

// add takes the next object of the listing.
func (d *directory) add(a store.Attributes) error {
	rel := strings.TrimPrefix(a.Key, d.prefix)
	if hidden(rel) {
		return nil
	}
	top, rest, nested := strings.Cut(rel, "/")
	ext, image := imageExtension(rel)
	switch {
	case strings.HasPrefix(top, "_"): // What Spark and others leave: _SUCCESS, _metadata.
		d.others++
	case compressionOf(rel) != notShard && !nested:
		d.shards = append(d.shards, listed{uri: strings.TrimRight(d.uri, "/") + "/" + rel, size: a.Size, pin: a.Pin})
	case compressionOf(rel) != notShard:
		if len(d.deepShards) < 3 && !slices.Contains(d.deepShards, top) {
			d.deepShards = append(d.deepShards, top)
		}
	case !image:
		d.others++
		if d.example == "" {
			d.example = rel
		}
	case nested:
		if d.open == nil || d.open.class != top {
			if err := d.closeClass(); err != nil {
				return err
			}
			d.open = &folderShard{class: top, builder: &index.Builder{}}
		}
		return d.addImage(d.open, rest, ext, a)
	default:
		if d.flat == nil {
			d.flat = &folderShard{builder: &index.Builder{}}
		}
		return d.addImage(d.flat, rel, ext, a)
	}
	return nil
}

func (d *directory) addImage(s *folderShard, rel, ext string, a store.Attributes) error {
	if a.Pin == "" && !d.unpinned {
		return unpinnedError(d.uri + "/" + strings.TrimPrefix(a.Key, d.prefix))
	}
	if err := addImage(s.builder, rel, ext, a); err != nil {
		return err
	}
	if n := s.builder.NumSamples(); n%reportEvery == 0 {
		d.progress.add(0, reportEvery, s.builder.DataBytes()-s.reported)
		s.reported = s.builder.DataBytes()
	}
	return nil
}

// reportEvery is the number of images after which a listing shows that it lives.
const reportEvery = 10_000

func addImage(b *index.Builder, rel, ext string, a store.Attributes) error {
	return b.Add(rel, []index.Field{{Name: ext, Length: a.Size, Pin: a.Pin}})
}

// listFolder is the index of one directory of an image folder as it is now; a flat one has no classes below it.
func listFolder(ctx context.Context, r *store.Resolver, uri string, flat bool) (*scanned, error) {
	b, key, err := r.Resolve(ctx, uri)
	if err != nil {
		return nil, err
	}
	if key != "" {
		key += "/"
	}
	builder := &index.Builder{}
	err = b.List(ctx, key, func(a store.Attributes) error {
		rel := strings.TrimPrefix(a.Key, key)
		ext, image := imageExtension(rel)
		if hidden(rel) || !image || flat && strings.Contains(rel, "/") {
			return nil
		}
		return addImage(builder, rel, ext, a)
	})
	if err != nil {
		return nil, fmt.Errorf("listing %s: %w", uri, err)
	}
	return &scanned{raw: builder.Bytes(builder.DataBytes()), samples: builder.NumSamples(), data: builder.DataBytes()}, nil
}

// closeClass finishes the class being listed, so that only one is ever held in memory.
func (d *directory) closeClass() error {
	if d.open == nil {
		return nil
	}
	s := d.open
	d.open = nil
	if err := d.closeShard(s, strings.TrimRight(d.uri, "/")+"/"+s.class); err != nil {
		return err
	}
	d.classes = append(d.classes, *s)
	return nil
}

func (d *directory) closeShard(s *folderShard, uri string) error {
	if s == nil {
		return nil
	}
	data := s.builder.DataBytes()
	raw := s.builder.Bytes(data)
	l := listed{uri: uri, size: data}
	hash := index.Hash(raw)
	l.pin = hex.EncodeToString(hash[:])
	s.shard = shardOf(l, raw, s.builder.NumSamples(), data)
	d.progress.add(1, s.builder.NumSamples()%reportEvery, data-s.reported)
	s.builder = nil
	return d.cache.putIndex(uri, l.pin, raw, true)
}

// judge refuses a directory that is not clearly one thing.
func (d *directory) judge() error {
	images := d.flat != nil || len(d.classes) > 0
	// Beside tar shards and images, files of other formats are notes about them: metadata.jsonl, an index.
	tar := func(l listed) bool { return typeOf(l.uri).format == nil }
	if images || slices.ContainsFunc(d.shards, tar) {
		d.shards = slices.DeleteFunc(d.shards, func(l listed) bool { return !tar(l) })
	}
	switch {
	case len(d.shards) > 0 && images:
		return errkind.Errorf(errkind.Invalid, "directory %s holds both shards and images; name the shards by a pattern, or the folder of images", d.uri)
	case d.flat != nil && len(d.classes) > 0:
		return errkind.Errorf(errkind.Invalid, "directory %s holds images both by itself and in sub-directories such as %s; a folder is either flat or has one sub-directory per class",
			d.uri, d.classes[0].class)
	case len(d.shards) > 0 || images:
		return nil
	case len(d.deepShards) > 0:
		return errkind.Errorf(errkind.Invalid, "directory %s holds no shards itself, but its sub-directories do (%s); name one of these", d.uri, strings.Join(d.deepShards, ", "))
	case d.others > 0:
		return errkind.Errorf(errkind.Invalid, "directory %s holds neither shards nor images; seen %d other files, such as %s (shards are named %s, images %s)",
			d.uri, d.others, d.example, shardNames(), imageExtensions)
	default:
		return errkind.Errorf(errkind.NotFound, "%s: nothing is there, neither a file nor a directory with files", d.uri)
	}
}

// folder is the manifest of an image folder. Classes are in the order of their names, which is not
// that of the listing: "a-b/" comes before "a/".
func (d *directory) folder() *Manifest {
	m := &Manifest{Format: FormatFolder}
	if d.flat != nil {
		m.Shards = []Shard{d.flat.shard}
		return m
	}
	slices.SortFunc(d.classes, func(a, b folderShard) int { return strings.Compare(a.class, b.class) })
	for _, c := range d.classes {
		m.Classes = append(m.Classes, c.class)
		m.Shards = append(m.Shards, c.shard)
	}
	return m
}

func unpinnedError(uri string) error {
	return errkind.Errorf(errkind.Invalid, "%s: its store gives no version to pin it to; allow unpinned data (--unpinned) if nothing will change it", uri)
}
