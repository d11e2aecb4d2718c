package filestore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/store"
)

// List implements store.Bucket. It holds the names of one directory per level in memory, nothing more.
func (b *Bucket) List(ctx context.Context, prefix string, fn func(store.Attributes) error) error {
	dir := ""
	if i := strings.LastIndexByte(prefix, '/'); i >= 0 {
		dir = prefix[:i]
	}
	path := b.root
	if dir != "" {
		var err error
		if path, err = b.path(dir); err != nil {
			return err
		}
	}
	info, err := os.Stat(path)
	if err != nil {
		if err := classify(path, err); errkind.Of(err) != errkind.NotFound {
			return err
		}
		return nil
	}
	if !info.IsDir() {
		return nil
	}
	w := &walk{ctx: ctx, bucket: b, prefix: prefix, fn: fn}
	return w.dir(dir, path, []os.FileInfo{info})
}

// walk is one listing in progress.
type walk struct {
	ctx    context.Context //nolint:containedctx // lives only for the one call of List that made it
	bucket *Bucket
	prefix string
	fn     func(store.Attributes) error
}

// dir lists the directory path, whose key is dir ("" for the root). Its ancestors are chain, itself last.
func (w *walk) dir(dir, path string, chain []os.FileInfo) error {
	names, err := w.names(dir, path)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := w.ctx.Err(); err != nil {
			return fmt.Errorf("listing %s: %w", path, err)
		}
		name, isDir := strings.CutSuffix(name, "/")
		key := join(dir, name)
		info, err := os.Stat(path + "/" + name)
		switch {
		case err != nil:
			if err := w.vanished(path+"/"+name, err); err != nil {
				return err
			}
		case isDir && info.IsDir():
			if i := slices.IndexFunc(chain, func(a os.FileInfo) bool { return os.SameFile(a, info) }); i >= 0 {
				return errkind.Errorf(errkind.Invalid, "%s/%s: this symbolic link leads back into a directory above it", path, name)
			}
			if err := w.dir(key, path+"/"+name, append(slices.Clip(chain), info)); err != nil {
				return err
			}
		case info.Mode().IsRegular():
			if err := w.fn(attributes(key, info)); err != nil {
				return err
			}
		}
	}
	return nil
}

// names are the entries of a directory that can match the prefix, in the order of the keys below them:
// directories carry a trailing slash, so that "a.b" comes before what lies in "a".
func (w *walk) names(dir, path string) (names []string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, classify(path, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for {
		entries, err := f.ReadDir(1024)
		for _, e := range entries {
			name := e.Name()
			if e.IsDir() || e.Type()&fs.ModeSymlink != 0 && leadsToDir(path+"/"+name) {
				name += "/"
			}
			if key := join(dir, name); strings.HasPrefix(key, w.prefix) || strings.HasSuffix(name, "/") && strings.HasPrefix(w.prefix, key) {
				names = append(names, name)
			}
		}
		if errors.Is(err, io.EOF) {
			slices.Sort(names)
			return names, nil
		}
		if err != nil {
			return nil, classify(path, err)
		}
	}
}

func leadsToDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// vanished decides what an entry means that was listed but can't be looked up: deleted meanwhile is no
// error, a link to nowhere is one, or data would be missing in silence.
func (w *walk) vanished(path string, cause error) error {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	err := classify(path, cause)
	if errkind.Of(err) == errkind.NotFound {
		return errkind.Errorf(errkind.NotFound, "%s: this symbolic link leads to nothing", path)
	}
	return err
}

func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}
