package dataset

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset/index"
	"github.com/millrace/millrace/loader/store"
)

const (
	// listSuffix is the name by which a list of files is known.
	listSuffix = ".txt"
	// maxListLine bounds a line of a list.
	maxListLine = 64 << 10
	// noExtension is the name of the field of a file whose name has none.
	noExtension = "bin"
)

func isList(uri string) bool { return strings.HasSuffix(strings.ToLower(uri), listSuffix) }

// entry is a line of a list.
type entry struct {
	key   string // what the index keeps: the path below the list's directory, or a URI; behind a tab the label
	uri   string
	label bool
}

// listEntries reads the list at uri: a file a line, which may be followed by a tab and a label. Files are named by
// their paths from the list's directory, or by URIs in the list's own bucket.
func listEntries(ctx context.Context, r *store.Resolver, uri string) ([]entry, error) {
	b, key, err := r.Resolve(ctx, uri)
	if err != nil {
		return nil, err
	}
	a, err := b.Attributes(ctx, key)
	if errkind.Of(err) == errkind.NotFound {
		return nil, errkind.With(errkind.NotFound, &MissingError{URIs: []string{uri}, Total: 1})
	}
	if err != nil {
		return nil, fmt.Errorf("looking up %s: %w", uri, err)
	}
	text, err := store.OpenStream(ctx, b, key, 0, a.Size)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", uri, err)
	}
	entries, err := parseEntries(ctx, r, b, uri, text)
	return entries, errors.Join(err, text.Close())
}

func parseEntries(ctx context.Context, r *store.Resolver, b store.Bucket, uri string, text io.Reader) (entries []entry, err error) {
	lines := bufio.NewScanner(text)
	lines.Buffer(nil, maxListLine)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSuffix(lines.Text(), "\r")
		if n == 1 {
			line = strings.TrimPrefix(line, "\ufeff")
		}
		if line == "" || line[0] == '#' {
			continue
		}
		e, err := parseEntry(ctx, r, b, uri, line)
		if err != nil {
			return nil, errkind.With(errkind.Of(err), fmt.Errorf("line %d of %s: %w", n, uri, err))
		}
		entries = append(entries, e)
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		return nil, errkind.Errorf(errkind.BadData, "%s has a line of more than %d bytes; it is no list of files", uri, maxListLine)
	} else if err != nil {
		return nil, fmt.Errorf("reading %s: %w", uri, err)
	}
	if len(entries) == 0 {
		return nil, errkind.Errorf(errkind.Invalid, "%s: the list names no files", uri)
	}
	return entries, nil
}

func parseEntry(ctx context.Context, r *store.Resolver, b store.Bucket, list, line string) (entry, error) {
	name, label, labelled := strings.Cut(line, "\t")
	if strings.ContainsRune(label, '\t') {
		return entry{}, errkind.Errorf(errkind.Invalid, "a line is a file, or a file, a tab and a label")
	}
	dir := list[:strings.LastIndexByte(list, '/')+1]
	if !absolute(name) {
		if slices.Contains(strings.Split(name, "/"), "..") {
			return entry{}, errkind.Errorf(errkind.Invalid, "%q leads out of the list's directory; name the file by its URI", name)
		}
		name = dir + name
	}
	uri, err := store.Canonical(name)
	if err != nil {
		return entry{}, err
	}
	in, _, err := r.Resolve(ctx, uri)
	if err != nil {
		return entry{}, err
	}
	if in != b {
		return entry{}, errkind.Errorf(errkind.Invalid, "%s is in another bucket than the list, which is not allowed", uri)
	}
	e := entry{key: strings.TrimPrefix(uri, dir), uri: uri, label: labelled}
	if labelled {
		e.key += "\t" + label
	}
	return e, nil
}

// absolute says whether a name in a list stands for itself, wherever the list is.
func absolute(name string) bool {
	return strings.HasPrefix(name, "/") || strings.Contains(name, "://")
}

// listFiles is the index of the files that a list names, in its order, and which of them are missing.
func listFiles(ctx context.Context, r *store.Resolver, uri string, concurrency int) (out *scanned, missing []string, unpinned string, err error) {
	entries, err := listEntries(ctx, r, uri)
	if err != nil {
		return nil, nil, "", err
	}
	var uris []string // each once
	known := make(map[string]*listed, len(entries))
	for _, e := range entries {
		if _, ok := known[e.uri]; !ok {
			known[e.uri] = nil
			uris = append(uris, e.uri)
		}
	}
	found, missing, err := lookup(ctx, r, uris, concurrency)
	if err != nil {
		return nil, nil, "", err
	}
	for i := range found {
		known[found[i].uri] = &found[i]
	}
	b := &index.Builder{}
	for _, e := range entries {
		l := known[e.uri]
		if l == nil {
			continue
		}
		ext, _ := extension(l.uri)
		if ext == "" || ext == lower(store.Base(l.uri)) {
			ext = noExtension
		}
		if err := b.Add(e.key, []index.Field{{Name: ext, Length: l.size, Pin: l.pin}}); err != nil {
			return nil, nil, "", fmt.Errorf("%s: %w", uri, err)
		}
		if l.pin == "" {
			unpinned = l.uri
		}
	}
	return &scanned{raw: b.Bytes(b.DataBytes()), samples: b.NumSamples(), data: b.DataBytes()}, missing, unpinned, nil
}

// list is the manifest of a list of files.
func (b *building) list(ctx context.Context, uri string) (*Manifest, error) {
	out, missing, unpinned, err := listFiles(ctx, b.r, uri, b.opts.Concurrency)
	if err != nil {
		return nil, err
	}
	if len(missing) > 0 && (!b.opts.TolerateMissing || out.samples == 0) {
		return nil, errkind.With(errkind.NotFound, &MissingError{URIs: missing, Total: len(missing) + int(out.samples)})
	}
	if unpinned != "" && !b.opts.Unpinned {
		return nil, unpinnedError(unpinned)
	}
	l := listed{uri: uri, size: out.data}
	hash := index.Hash(out.raw)
	l.pin = hex.EncodeToString(hash[:])
	b.progress.add(1, out.samples, out.data)
	m := &Manifest{Format: FormatList, Shards: []Shard{shardOf(l, out.raw, out.samples, out.data)}, Missing: missing}
	return m, b.cache.putIndex(uri, l.pin, out.raw, true)
}

// listed is the file that a key of the index of a list stands for, and its label.
func (d *Dataset) listedFile(ctx context.Context, list object, key string) (file object, label string, err error) {
	name, label, _ := strings.Cut(key, "\t")
	if !absolute(name) {
		name = list.uri[:strings.LastIndexByte(list.uri, '/')+1] + name
	}
	file, err = openObject(ctx, d.resolver, name, "", 0)
	return file, label, err
}
