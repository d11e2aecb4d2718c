// Package diskcache keeps ranges of remote objects in a local directory, for the next epoch and for other processes.
//
// A range is kept under the version of its object, so what is found is never out of date. Files appear whole, by rename,
// and carry a checksum: one that is damaged counts as absent. Processes share the directory and its limit: each takes room
// from a common count, under a lock, before it writes, and who finds no room removes what was used longest ago. A file
// that is being read while it is removed stays until its reader has closed it.
package diskcache

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/internal/errkind"
)

const (
	// headerSize is that of a file: magic, checksum, length.
	headerSize = 16
	magic      = "MRR1"
	// minRange is the least that is kept: below it, a file costs more than it saves.
	minRange = 32 << 10
	// mostShare: a range may take one part in so many of the limit.
	mostShare = 8
	// roomShare is the part of the limit that is freed at a time, so that not every write has to look for room.
	roomShare = 16
	// abandoned is the age from which a file that never got its name is that of a process that died.
	abandoned = time.Hour
	tempFiles = ".new-"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Cache is a directory of ranges. It may be used by many goroutines, and its directory by many processes, at once.
type Cache struct {
	dir   string
	limit int64

	mu   sync.Mutex
	lock *os.File // locked while the count, which it holds, is read and changed

	hits, misses, hitBytes, damaged, failed atomic.Int64
}

// Stats is what a Cache has done for this process.
type Stats struct {
	// Hits and Misses count ranges, HitBytes the bytes that no store was asked for.
	Hits, Misses, HitBytes int64
	// Damaged counts files whose checksum was wrong, Failed those that could not be written.
	Damaged, Failed int64
}

// Open is the cache in dir, which is made if needed, of up to limit bytes.
func Open(dir string, limit int64) (*Cache, error) {
	if limit < mostShare*minRange {
		return nil, errkind.Errorf(errkind.Invalid, "a disk cache of %d bytes holds nothing; give %d at least", limit, mostShare*minRange)
	}
	c := &Cache{dir: filepath.Join(dir, "ranges-v1"), limit: limit}
	err := os.MkdirAll(c.dir, 0o750)
	if err == nil {
		c.lock, err = os.OpenFile(filepath.Join(c.dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	}
	if err != nil {
		return nil, errkind.Errorf(errkind.Invalid, "disk cache %s: %w; name another directory", dir, err)
	}
	// What an earlier process left behind is counted anew; there may be more than this limit allows.
	if err := c.locked(func() error { return c.room(0, true) }); err != nil {
		return nil, errors.Join(err, c.lock.Close())
	}
	return c, nil
}

// Close lets go of the directory. What lies in it stays.
func (c *Cache) Close() error {
	if err := c.lock.Close(); err != nil {
		return fmt.Errorf("closing the disk cache %s: %w", c.dir, err)
	}
	return nil
}

// Stats is what the cache has done so far.
func (c *Cache) Stats() Stats {
	return Stats{Hits: c.hits.Load(), Misses: c.misses.Load(), HitBytes: c.hitBytes.Load(), Damaged: c.damaged.Load(), Failed: c.failed.Load()}
}

// path is the file of a range of an object, which is named with its store.
func (c *Cache) path(object, pin string, off int64, n int) string {
	h := xxh3.New()
	var b []byte
	for _, s := range []string{object, pin} {
		b = append(binary.AppendUvarint(b, uint64(len(s))), s...)
	}
	b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(off)), uint64(n)) //nolint:gosec // not negative
	_, _ = h.Write(b)                                                         // a hash takes all
	sum := h.Sum128().Bytes()
	name := hex.EncodeToString(sum[:])
	return filepath.Join(c.dir, name[:2], name[2:])
}

// keeps says whether a range may be kept.
func (c *Cache) keeps(pin string, n int) bool {
	return pin != "" && n >= minRange && int64(n) <= c.limit/mostShare
}

// get reads a range, if it is there.
func (c *Cache) get(path string, dst []byte) bool {
	f, err := os.Open(path)
	if err != nil {
		c.misses.Add(1)
		return false
	}
	defer func() { _ = f.Close() }() // It was only read.
	var header [headerSize]byte
	_, err = f.ReadAt(header[:], 0)
	if err == nil {
		_, err = f.ReadAt(dst, headerSize)
	}
	if err != nil || string(header[:4]) != magic || binary.LittleEndian.Uint64(header[8:]) != uint64(len(dst)) ||
		binary.LittleEndian.Uint32(header[4:]) != crc32.Checksum(dst, castagnoli) {
		c.damaged.Add(1)
		c.misses.Add(1)
		_ = os.Remove(path) // Another one is written in its place.
		return false
	}
	now := time.Now()
	_ = os.Chtimes(path, now, now) // It is only for who looks for room.
	c.hits.Add(1)
	c.hitBytes.Add(int64(len(dst)))
	return true
}

// put keeps a range. That it can't costs time later, not correctness.
func (c *Cache) put(path string, data []byte) {
	if err := c.write(path, data); err != nil {
		c.failed.Add(1)
	}
}

func (c *Cache) write(path string, data []byte) error {
	var f *os.File
	err := c.locked(func() (err error) {
		f, err = c.begin(path, headerSize+int64(len(data)))
		return err
	})
	if err != nil {
		return err
	}
	header := binary.LittleEndian.AppendUint32(append(make([]byte, 0, headerSize), magic...), crc32.Checksum(data, castagnoli))
	header = binary.LittleEndian.AppendUint64(header, uint64(len(data)))
	_, err = f.Write(header)
	if err == nil {
		_, err = f.Write(data)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = c.locked(func() error { return os.Rename(f.Name(), path) })
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// begin takes room for a file of size bytes and makes it, of that size and under a name for the time being, so that
// whoever counts meanwhile counts it whole. The lock is held, as it is when the file gets its own name.
func (c *Cache) begin(path string, size int64) (*os.File, error) {
	if err := c.room(size, false); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(filepath.Dir(path), tempFiles)
	if err != nil {
		return nil, err
	}
	if err := f.Truncate(size); err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(f.Name()))
	}
	return f, nil
}

// locked runs f alone among all that share the directory.
func (c *Cache) locked(f func() error) (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := lockFile(c.lock); err != nil {
		return fmt.Errorf("locking the disk cache %s: %w", c.dir, err)
	}
	defer func() { err = errors.Join(err, unlockFile(c.lock)) }()
	return f()
}

// room takes n bytes of the limit, and makes room where there is none. Where a write fails afterwards, or replaces a file,
// the count is too high until it is next counted anew: the limit holds all the same. The lock is held.
func (c *Cache) room(n int64, anew bool) error {
	var count [8]byte
	_, err := c.lock.ReadAt(count[:], 0)
	used := int64(binary.LittleEndian.Uint64(count[:])) //nolint:gosec // compared below
	if anew || err != nil || used < 0 || used+n > c.limit {
		if used, err = c.evict(n); err != nil {
			return err
		}
	}
	binary.LittleEndian.PutUint64(count[:], uint64(used+n)) //nolint:gosec // not negative
	if _, err := c.lock.WriteAt(count[:], 0); err != nil {
		return fmt.Errorf("counting the bytes of the disk cache %s: %w", c.dir, err)
	}
	return nil
}

// kept is a file of the cache.
type kept struct {
	path string
	size int64
	used time.Time
}

// evict counts what lies in the directory and, where it and n more bytes are too much, removes what was used longest ago.
func (c *Cache) evict(n int64) (used int64, err error) {
	var all []kept
	err = filepath.WalkDir(c.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || path == c.lock.Name() {
			return ignoreGone(err)
		}
		info, err := e.Info()
		if err != nil {
			return ignoreGone(err)
		}
		all = append(all, kept{path, info.Size(), info.ModTime()})
		used += info.Size()
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("looking through the disk cache %s: %w", c.dir, err)
	}
	over := used+n > c.limit
	slices.SortFunc(all, func(a, b kept) int { return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.path, b.path)) })
	for _, k := range all {
		temp := strings.HasPrefix(filepath.Base(k.path), tempFiles)
		if temp && time.Since(k.used) < abandoned {
			continue // It is being written.
		}
		if !temp && (!over || used+n <= c.limit-c.limit/roomShare) {
			continue
		}
		if err := ignoreGone(os.Remove(k.path)); err != nil {
			return 0, fmt.Errorf("making room in the disk cache %s: %w", c.dir, err)
		}
		used -= k.size
	}
	return used, nil
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
