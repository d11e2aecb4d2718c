package filestore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/millrace/millrace/loader/store"
)

var _ store.Creator = (*Bucket)(nil)

// temporary begins the names of files that are being written. One that a crash left behind holds nothing of value.
const temporary = ".create-"

// Create implements store.Creator: the file is written and synced under another name, then linked, which fails where the
// name is taken and is seen whole or not at all; then the folder is synced.
func (b *Bucket) Create(ctx context.Context, key string, data []byte) (err error) {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("creating %s: %w", key, err)
	}
	path, err := b.path(key)
	if err != nil {
		return err
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return classify(dir, err)
	}
	f, err := os.CreateTemp(dir, temporary+"*")
	if err != nil {
		return classify(dir, err)
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return classify(path, err)
	}
	switch err := os.Link(f.Name(), path); {
	case errors.Is(err, fs.ErrExist):
		return store.Exists(path)
	case err != nil:
		return classify(path, err)
	}
	return syncFolder(dir)
}

// Remove implements store.Creator.
func (b *Bucket) Remove(ctx context.Context, key string) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("removing %s: %w", key, err)
	}
	path, err := b.path(key)
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return classify(path, err)
	}
	return nil
}

// syncFolder makes names in a folder durable.
func syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err == nil {
		err = errors.Join(f.Sync(), f.Close())
	}
	if err != nil {
		return classify(dir, err)
	}
	return nil
}
