// Package filestore is a store.Bucket over a directory.
//
// A key is the slash-separated path below the directory. Symbolic links are followed, wherever they
// lead: whoever can write into the directory decides what it holds. Keys can't leave it.
package filestore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/store"
)

// Bucket reads the files below one directory. It holds no file open between calls.
type Bucket struct {
	root string
}

var (
	_ store.Bucket    = (*Bucket)(nil)
	_ store.Opener    = (*Bucket)(nil)
	_ store.PinReader = (*Bucket)(nil)
)

// New is the bucket of the directory root; "/" for the whole file system.
func New(root string) (*Bucket, error) {
	abs, err := filepath.Abs(root)
	if err != nil {
		return nil, errkind.Errorf(errkind.Invalid, "directory %s: %w", root, err)
	}
	info, err := os.Stat(abs)
	if err != nil {
		return nil, classify(root, err)
	}
	if !info.IsDir() {
		return nil, errkind.Errorf(errkind.Invalid, "%s is not a directory", root)
	}
	return &Bucket{root: abs}, nil
}

// Open is the store.OpenFunc of the scheme "file": the whole file system.
func Open(_ context.Context, authority string) (store.Bucket, error) {
	if authority != "" {
		return nil, errkind.Errorf(errkind.Invalid, "files of host %q can't be read from here", authority)
	}
	return New("/")
}

// path is the file of key. Keys that are no plain relative path are refused: they are how a listing or
// a manifest from elsewhere would reach out of the root.
func (b *Bucket) path(key string) (string, error) {
	if !fs.ValidPath(key) || key == "." || strings.IndexByte(key, 0) >= 0 {
		return "", errkind.Errorf(errkind.Invalid, "%q is not a key: it must be a relative path without empty, . or .. elements", key)
	}
	return filepath.Join(b.root, filepath.FromSlash(key)), nil
}

func (b *Bucket) open(ctx context.Context, key string) (*os.File, os.FileInfo, error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, fmt.Errorf("reading %s: %w", key, err)
	}
	path, err := b.path(key)
	if err != nil {
		return nil, nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, classify(path, err)
	}
	if err := regular(path, info); err != nil {
		return nil, nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, classify(path, err)
	}
	if info, err = f.Stat(); err != nil {
		return nil, nil, errors.Join(classify(path, err), f.Close())
	}
	return f, info, nil
}

// ReadRange implements store.Bucket.
func (b *Bucket) ReadRange(ctx context.Context, key string, off int64, dst []byte) error {
	return b.read(ctx, key, "", off, dst)
}

// ReadPinned implements store.PinReader.
func (b *Bucket) ReadPinned(ctx context.Context, key, pin string, off int64, dst []byte) error {
	return b.read(ctx, key, pin, off, dst)
}

func (b *Bucket) read(ctx context.Context, key, pin string, off int64, dst []byte) (err error) {
	if err := store.CheckRange(key, off, dst); err != nil {
		return err
	}
	f, info, err := b.open(ctx, key)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if pin != "" && pinOf(info) != pin {
		return store.Changed(f.Name(), pin, pinOf(info))
	}
	if off+int64(len(dst)) > info.Size() {
		return store.ShortRead(f.Name(), off, int64(len(dst)), info.Size())
	}
	n, err := f.ReadAt(dst, off)
	if n == len(dst) {
		return nil
	}
	if errors.Is(err, io.EOF) { // Cut while it was read.
		return store.ShortRead(f.Name(), off, int64(len(dst)), off+int64(n))
	}
	return classify(f.Name(), err)
}

// Open implements store.Opener.
func (b *Bucket) Open(ctx context.Context, key string, off int64) (io.ReadCloser, error) {
	f, info, err := b.open(ctx, key)
	if err != nil {
		return nil, err
	}
	if off < 0 || off > info.Size() {
		return nil, errors.Join(store.ShortRead(f.Name(), off, 0, info.Size()), f.Close())
	}
	if _, err := f.Seek(off, io.SeekStart); err != nil {
		return nil, errors.Join(classify(f.Name(), err), f.Close())
	}
	return f, nil
}

// Attributes implements store.Bucket.
func (b *Bucket) Attributes(ctx context.Context, key string) (store.Attributes, error) {
	if err := ctx.Err(); err != nil {
		return store.Attributes{}, fmt.Errorf("looking up %s: %w", key, err)
	}
	path, err := b.path(key)
	if err != nil {
		return store.Attributes{}, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return store.Attributes{}, classify(path, err)
	}
	if err := regular(path, info); err != nil {
		return store.Attributes{}, err
	}
	return attributes(key, info), nil
}

// Close implements store.Bucket; there is nothing to free.
func (b *Bucket) Close() error { return nil }

func attributes(key string, info os.FileInfo) store.Attributes {
	return store.Attributes{Key: key, Size: info.Size(), Pin: pinOf(info)}
}

func pinOf(info os.FileInfo) string {
	return fmt.Sprintf("%d-%d-%d", info.Size(), info.ModTime().UnixNano(), inode(info))
}

// regular refuses what is not a plain file: a directory is no object, and reading a pipe or a device would hang.
func regular(path string, info os.FileInfo) error {
	switch {
	case info.Mode().IsRegular():
		return nil
	case info.IsDir():
		return errkind.Errorf(errkind.NotFound, "%s is a directory, not a file", path)
	default:
		return errkind.Errorf(errkind.Invalid, "%s is not a regular file (%s)", path, info.Mode().Type())
	}
}

// classify gives an error of the file system its kind and a text that names the file once.
func classify(path string, err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = pe.Err
	}
	kind := errkind.Unavailable
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		kind = errkind.NotFound
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.ELOOP), errors.Is(err, syscall.EISDIR):
		kind = errkind.Invalid
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		kind = errkind.Exhausted
	}
	return errkind.Errorf(kind, "%s: %w", path, err)
}
