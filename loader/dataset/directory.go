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

// Names of the fields that a folder's samples have beside their file.
const (
	fieldCls   = "cls"
	fieldClass = "class"
)

// media is a kind of folder: what manifests call it, and the extensions of the files that it is made of.
type media struct{ format, extensions string }

// medias are the kinds of folders. Where a directory holds files of several, the first one counts: others are beside them.
func medias() []media {
	return []media{
		{FormatFolder, "jpg, jpeg, png, webp, bmp, gif, tif, tiff, avif"},
		{FormatVideoFolder, "mp4, m4v, mov, mkv, webm, avi, mpg, mpeg"},
		{FormatAudioFolder, "wav, flac, mp3, ogg, opus, m4a, aac, aif, aiff"},
	}
}

// isFolder says whether the samples of a format are files of their own: those of folders and lists.
func isFolder(format string) bool {
	return format == FormatList || slices.ContainsFunc(medias(), func(m media) bool { return m.format == format })
}

// extension is that of a media file, in lower case, and the kind of folders that it belongs to; -1: none.
func extension(path string) (ext string, kind int) {
	base := store.Base(path)
	ext = lower(base[strings.LastIndexByte(base, '.')+1:])
	if len(ext) >= len(base)-1 {
		return ext, -1
	}
	return ext, slices.IndexFunc(medias(), func(m media) bool { return slices.Contains(strings.Split(m.extensions, ", "), ext) })
}

// mediaNames lists the extensions of media files, for messages.
func mediaNames() string {
	var names []string
	for _, m := range medias() {
		names = append(names, m.extensions)
	}
	return strings.Join(names, ", ")
}

// hidden says whether any part of a path begins with a dot, or the object only marks a directory.
func hidden(rel string) bool {
	return rel == "" || strings.HasPrefix(rel, ".") || strings.Contains(rel, "/.") || strings.HasSuffix(rel, "/")
}

// directory sorts what lies under one URI into shards and media files, while it is listed.
type directory struct {
	uri, prefix string // prefix is the key of the directory with a slash
	cache       *Cache
	unpinned    bool
	progress    *progress

	shards     []listed
	deepShards []string // a few directories below that hold shards
	folders    []folder // by kind, as medias has them

	others  int64
	example string

	state store.Attributes // of Hugging Face's list of shards; its key is empty where there is none
	info  bool             // a description by Hugging Face's datasets is there
}

// folder is what a directory holds of one kind of files.
type folder struct {
	flat    *folderShard
	classes []folderShard
	open    *folderShard // the class being listed; its files are consecutive
}

func (f *folder) empty() bool { return f.flat == nil && len(f.classes) == 0 }

// folderShard is one directory of files.
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
	d := &directory{uri: uri, prefix: key, cache: b.cache, unpinned: b.opts.Unpinned, progress: &b.progress, folders: make([]folder, len(medias()))}
	if err := bucket.List(ctx, key, d.add); err != nil {
		return nil, fmt.Errorf("listing %s: %w", uri, err)
	}
	if err := d.savedDataset(ctx, bucket); err != nil {
		return nil, err
	}
	for i := range d.folders {
		f := &d.folders[i]
		if err := d.closeClass(f); err != nil {
			return nil, err
		}
		if err := d.closeShard(f.flat, uri); err != nil {
			return nil, err
		}
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
	ext, kind := extension(rel)
	switch {
	case strings.HasPrefix(top, "_"): // What Spark and others leave: _SUCCESS, _metadata.
		d.others++
	case compressionOf(rel) != notShard && !nested:
		d.shards = append(d.shards, listed{uri: strings.TrimRight(d.uri, "/") + "/" + rel, size: a.Size, pin: a.Pin})
	case compressionOf(rel) != notShard:
		if len(d.deepShards) < 3 && !slices.Contains(d.deepShards, top) {
			d.deepShards = append(d.deepShards, top)
		}
	case kind < 0:
		switch rel {
		case hfState:
			d.state = a
		case hfInfo:
			d.info = true
		}
		d.others++
		if d.example == "" {
			d.example = rel
		}
	default:
		return d.addFile(&d.folders[kind], top, rest, rel, ext, a)
	}
	return nil
}

// addFile takes a media file: rest of the class top, or rel of no class.
func (d *directory) addFile(f *folder, top, rest, rel, ext string, a store.Attributes) error {
	if rest == "" {
		if f.flat == nil {
			f.flat = &folderShard{builder: &index.Builder{}}
		}
		return d.addTo(f.flat, rel, ext, a)
	}
	if f.open == nil || f.open.class != top {
		if err := d.closeClass(f); err != nil {
			return err
		}
		f.open = &folderShard{class: top, builder: &index.Builder{}}
	}
	return d.addTo(f.open, rest, ext, a)
}

func (d *directory) addTo(s *folderShard, rel, ext string, a store.Attributes) error {
	if a.Pin == "" && !d.unpinned {
		return unpinnedError(d.uri + "/" + strings.TrimPrefix(a.Key, d.prefix))
	}
	if err := addMedia(s.builder, rel, ext, a); err != nil {
		return err
	}
	if n := s.builder.NumSamples(); n%reportEvery == 0 {
		d.progress.add(0, reportEvery, s.builder.DataBytes()-s.reported)
		s.reported = s.builder.DataBytes()
	}
	return nil
}

// reportEvery is the number of files after which a listing shows that it lives.
const reportEvery = 10_000

func addMedia(b *index.Builder, rel, ext string, a store.Attributes) error {
	return b.Add(rel, []index.Field{{Name: ext, Length: a.Size, Pin: a.Pin}})
}

// listFolder is the index of one directory of a folder of that format as it is now; a flat one has no classes below it.
func listFolder(ctx context.Context, r *store.Resolver, uri, format string, flat bool) (*scanned, error) {
	want := slices.IndexFunc(medias(), func(m media) bool { return m.format == format })
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
		ext, kind := extension(rel)
		if hidden(rel) || kind != want || flat && strings.Contains(rel, "/") {
			return nil
		}
		return addMedia(builder, rel, ext, a)
	})
	if err != nil {
		return nil, fmt.Errorf("listing %s: %w", uri, err)
	}
	return &scanned{raw: builder.Bytes(builder.DataBytes()), samples: builder.NumSamples(), data: builder.DataBytes()}, nil
}

// closeClass finishes the class being listed, so that only one is ever held in memory.
func (d *directory) closeClass(f *folder) error {
	if f.open == nil {
		return nil
	}
	s := f.open
	f.open = nil
	if err := d.closeShard(s, strings.TrimRight(d.uri, "/")+"/"+s.class); err != nil {
		return err
	}
	f.classes = append(f.classes, *s)
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
	kind := d.kind()
	media := kind >= 0
	// Beside tar shards and media, files of other formats are notes about them: metadata.jsonl, an index.
	tar := func(l listed) bool { return typeOf(l.uri).format == nil }
	if media || slices.ContainsFunc(d.shards, tar) {
		d.shards = slices.DeleteFunc(d.shards, func(l listed) bool { return !tar(l) })
	}
	switch {
	case len(d.shards) > 0 && media:
		return errkind.Errorf(errkind.Invalid, "directory %s holds both shards and %s; name the shards by a pattern, or the folder of %s", d.uri, mediaPlural(kind), mediaPlural(kind))
	case media && d.folders[kind].flat != nil && len(d.folders[kind].classes) > 0:
		return errkind.Errorf(errkind.Invalid, "directory %s holds %s both by itself and in sub-directories such as %s; a folder is either flat or has one sub-directory per class",
			d.uri, mediaPlural(kind), d.folders[kind].classes[0].class)
	case len(d.shards) > 0 || media:
		return nil
	case len(d.deepShards) > 0:
		return errkind.Errorf(errkind.Invalid, "directory %s holds no shards itself, but its sub-directories do (%s); name one of these", d.uri, strings.Join(d.deepShards, ", "))
	case d.others > 0:
		return errkind.Errorf(errkind.Invalid, "directory %s holds neither shards nor images, videos or audio files; seen %d other files, such as %s (shards are named %s, media %s)",
			d.uri, d.others, d.example, shardNames(), mediaNames())
	default:
		return errkind.Errorf(errkind.NotFound, "%s: nothing is there, neither a file nor a directory with files", d.uri)
	}
}

// kind is that of the files that make a folder of the directory; -1: there are none.
func (d *directory) kind() int {
	return slices.IndexFunc(d.folders, func(f folder) bool { return !f.empty() })
}

func mediaPlural(kind int) string {
	switch medias()[kind].format {
	case FormatVideoFolder:
		return "videos"
	case FormatAudioFolder:
		return "audio files"
	}
	return "images"
}

// folder is the manifest of a folder of media files. Classes are in the order of their names, which is not
// that of the listing: "a-b/" comes before "a/".
func (d *directory) folder() *Manifest {
	kind := d.kind()
	m, f := &Manifest{Format: medias()[kind].format}, &d.folders[kind]
	if f.flat != nil {
		m.Shards = []Shard{f.flat.shard}
		return m
	}
	slices.SortFunc(f.classes, func(a, b folderShard) int { return strings.Compare(a.class, b.class) })
	for _, c := range f.classes {
		m.Classes = append(m.Classes, c.class)
		m.Shards = append(m.Shards, c.shard)
	}
	return m
}

func unpinnedError(uri string) error {
	return errkind.Errorf(errkind.Invalid, "%s: its store gives no version to pin it to; allow unpinned data (--unpinned) if nothing will change it", uri)
}
