// Package memstore is a store.Bucket in memory, for tests, examples and synthetic data.
package memstore

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/store"
)

// Store holds objects in memory. The zero value is not usable; see [New].
type Store struct {
	mu      sync.RWMutex
	objects map[string]object
	version uint64
}

type object struct {
	data []byte
	pin  string
}

var (
	_ store.Bucket    = (*Store)(nil)
	_ store.Opener    = (*Store)(nil)
	_ store.PinReader = (*Store)(nil)
	_ store.Creator   = (*Store)(nil)
)

// New is an empty store.
func New() *Store {
	return &Store{objects: map[string]object{}}
}

// Opener is the store.OpenFunc of a scheme whose buckets are stores, by name: mem://name/key.
func Opener(stores map[string]*Store) store.OpenFunc {
	return func(_ context.Context, authority string) (store.Bucket, error) {
		s, ok := stores[authority]
		if !ok {
			return nil, errkind.Errorf(errkind.NotFound, "no store in memory is named %q", authority)
		}
		return s, nil
	}
}

// Put stores data under key and gives it a new pin. The store keeps data: it must not be changed afterwards.
func (s *Store) Put(key string, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.objects[key] = object{data: data, pin: fmt.Sprintf("%d-v%d", len(data), s.version)}
}

// Delete removes key, if it exists.
func (s *Store) Delete(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.objects, key)
}

// Create implements store.Creator.
func (s *Store) Create(ctx context.Context, key string, data []byte) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("creating %s: %w", key, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.objects[key]; ok {
		return store.Exists(key)
	}
	s.version++
	s.objects[key] = object{data: bytes.Clone(data), pin: fmt.Sprintf("%d-v%d", len(data), s.version)}
	return nil
}

// Remove implements store.Creator.
func (s *Store) Remove(ctx context.Context, key string) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("removing %s: %w", key, err)
	}
	s.Delete(key)
	return nil
}

func (s *Store) get(ctx context.Context, key string) (object, error) {
	if err := ctx.Err(); err != nil {
		return object{}, fmt.Errorf("reading %s: %w", key, err)
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	o, ok := s.objects[key]
	if !ok {
		return object{}, errkind.Errorf(errkind.NotFound, "%s: no such object", key)
	}
	return o, nil
}

// ReadRange implements store.Bucket.
func (s *Store) ReadRange(ctx context.Context, key string, off int64, dst []byte) error {
	return s.ReadPinned(ctx, key, "", off, dst)
}

// ReadPinned implements store.PinReader.
func (s *Store) ReadPinned(ctx context.Context, key, pin string, off int64, dst []byte) error {
	if err := store.CheckRange(key, off, dst); err != nil {
		return err
	}
	o, err := s.get(ctx, key)
	if err != nil {
		return err
	}
	if pin != "" && pin != o.pin {
		return store.Changed(key, pin, o.pin)
	}
	if size := int64(len(o.data)); off+int64(len(dst)) > size {
		return store.ShortRead(key, off, int64(len(dst)), size)
	}
	copy(dst, o.data[off:])
	return nil
}

// Open implements store.Opener.
func (s *Store) Open(ctx context.Context, key string, off int64) (io.ReadCloser, error) {
	o, err := s.get(ctx, key)
	if err != nil {
		return nil, err
	}
	if off < 0 || off > int64(len(o.data)) {
		return nil, store.ShortRead(key, off, 0, int64(len(o.data)))
	}
	return io.NopCloser(bytes.NewReader(o.data[off:])), nil
}

// List implements store.Bucket. It lists the objects that existed when it was called.
func (s *Store) List(ctx context.Context, prefix string, fn func(store.Attributes) error) error {
	s.mu.RLock()
	var found []store.Attributes
	for key, o := range s.objects {
		if strings.HasPrefix(key, prefix) {
			found = append(found, store.Attributes{Key: key, Size: int64(len(o.data)), Pin: o.pin})
		}
	}
	s.mu.RUnlock()
	slices.SortFunc(found, func(a, b store.Attributes) int { return strings.Compare(a.Key, b.Key) })
	for _, a := range found {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("listing %s: %w", prefix, err)
		}
		if err := fn(a); err != nil {
			return err
		}
	}
	return nil
}

// Attributes implements store.Bucket.
func (s *Store) Attributes(ctx context.Context, key string) (store.Attributes, error) {
	o, err := s.get(ctx, key)
	if err != nil {
		return store.Attributes{}, err
	}
	return store.Attributes{Key: key, Size: int64(len(o.data)), Pin: o.pin}, nil
}

// Close implements store.Bucket. The objects stay, for whoever opens the store again.
func (s *Store) Close() error { return nil }
