package dataset

import (
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset/index"
)

// Cache is a local directory that keeps manifests by their source and shard indexes by the pin of their
// shard. Processes may share it: files appear whole or not at all, and one that is damaged counts as absent.
type Cache struct {
	dir string
}

// NewCache is the cache in dir, which is made if needed.
func NewCache(dir string) (*Cache, error) {
	c := &Cache{dir: filepath.Join(dir, "dataset-v1")}
	for _, sub := range []string{"manifests", "indexes"} {
		if err := os.MkdirAll(filepath.Join(c.dir, sub), 0o750); err != nil {
			return nil, errkind.Errorf(errkind.Invalid, "cache directory %s: %w; name another one", dir, err)
		}
	}
	return c, nil
}

// name is the file name of what the parts identify together.
func name(parts ...string) string {
	var b []byte
	for _, p := range parts {
		b = appendText(b, p)
	}
	sum := xxh3.Hash128(b).Bytes()
	return hex.EncodeToString(sum[:])
}

func (c *Cache) manifestPath(source []string) string {
	return filepath.Join(c.dir, "manifests", name(source...))
}

// indexPath names an index by its shard's pin, and by its own hash where that is given.
func (c *Cache) indexPath(parts ...string) string {
	n := name(parts...)
	return filepath.Join(c.dir, "indexes", n[:2], n[2:])
}

// manifest is the manifest that was last built for source, or nil.
func (c *Cache) manifest(source []string) *Manifest {
	if c == nil {
		return nil
	}
	b, err := os.ReadFile(c.manifestPath(source))
	if err != nil {
		return nil
	}
	m, err := DecodeManifest(b)
	if err != nil {
		return nil // Damaged: built again and overwritten.
	}
	return m
}

func (c *Cache) putManifest(source []string, m *Manifest) error {
	if c == nil {
		return nil
	}
	return c.put(c.manifestPath(source), m.Encode())
}

// whole is the index of an undamaged shard of that pin, or nil.
func (c *Cache) whole(uri, pin string) *shardIndex {
	if c == nil || pin == "" {
		return nil
	}
	return readIndex(uri, c.indexPath(uri, pin))
}

// index is the index of that hash of a shard, or nil.
func (c *Cache) index(uri, pin string, hash [16]byte) *shardIndex {
	if c == nil {
		return nil
	}
	for _, path := range []string{c.indexPath(uri, pin), c.indexPath(uri, pin, string(hash[:]))} {
		if x := readIndex(uri, path); x != nil && index.Hash(x.raw) == hash {
			return x
		}
	}
	return nil
}

func readIndex(uri, path string) *shardIndex {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	x, err := openIndex(uri, b)
	if err != nil {
		return nil // Damaged: built again and overwritten.
	}
	return x
}

// putIndex keeps an index. That of a shard which is not whole, or has no pin, is found only by those
// who know its hash: nobody who asks for the whole shard may get it.
func (c *Cache) putIndex(uri, pin string, raw []byte, whole bool) error {
	if c == nil {
		return nil
	}
	if whole && pin != "" {
		return c.put(c.indexPath(uri, pin), raw)
	}
	hash := index.Hash(raw)
	return c.put(c.indexPath(uri, pin, string(hash[:])), raw)
}

// put writes a file that appears under its name only when it is whole.
func (c *Cache) put(path string, data []byte) (err error) {
	defer func() {
		if err != nil {
			err = errkind.Errorf(errkind.Exhausted, "writing the cache in %s: %w; free some space or name another directory", c.dir, err)
		}
	}()
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if errors.Is(err, fs.ErrNotExist) { // The first file of its directory.
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			return err
		}
		f, err = os.CreateTemp(filepath.Dir(path), ".new-*")
	}
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
