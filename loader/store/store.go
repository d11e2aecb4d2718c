// Package store is the boundary to where data lies: objects in buckets, read by range.
//
// A [Bucket] is the read side of one store: a directory, a bucket of an object store, a map in memory.
// What a bucket does beside the plain reads (timeouts, faults, metrics) is added by wrapping it. The
// package storetest holds the laws that every implementation must keep.
//
// A [Resolver] finds the bucket of a URI; [Expand] turns a brace pattern into the URIs it stands for.
package store

import (
	"context"
	"io"

	"github.com/millrace/millrace/internal/errkind"
)

// Bucket is the read side of a store. It may be used by many goroutines at once.
//
// Keys are slash-separated paths without a leading slash. Errors carry an errkind.Kind: NotFound for an
// object that does not exist, Unavailable for what may succeed later, Invalid for a key or range that
// can't exist, BadData for an object shorter than the range asked for.
type Bucket interface {
	// ReadRange reads len(dst) bytes at offset off of the object key into dst. An object that ends
	// before off+len(dst) is an error (see [ShortRead]) and leaves dst undefined.
	ReadRange(ctx context.Context, key string, off int64, dst []byte) error
	// List calls fn for every object whose key starts with prefix, in ascending byte order of the
	// keys, while the listing still runs. An error of fn stops the listing and is returned as it is.
	// A prefix that nothing matches is no error.
	List(ctx context.Context, prefix string, fn func(Attributes) error) error
	// Attributes describes the object key. A directory is not an object.
	Attributes(ctx context.Context, key string) (Attributes, error)
	// Close frees what the bucket holds. It is called once, after the last use.
	Close() error
}

// Attributes describes one version of an object.
type Attributes struct {
	// Key is the object's key in its bucket.
	Key string
	// Size is the object's length in bytes.
	Size int64
	// Pin identifies this version of the object: another content has another pin. For files it is
	// "size-mtime_ns-inode", for object stores the etag. It is empty where the store has none.
	Pin string
}

// Opener is an optional second interface of a Bucket: a stream over an object from offset off to its end.
type Opener interface {
	Open(ctx context.Context, key string, off int64) (io.ReadCloser, error)
}

// PinReader is an optional third interface of a Bucket: ReadRange that fails with [Changed] when the
// object's pin is no longer pin, at no extra request (If-Match, fstat).
type PinReader interface {
	ReadPinned(ctx context.Context, key, pin string, off int64, dst []byte) error
}

// Range is a range of one object and where its bytes go.
type Range struct {
	Key string
	// Pin is the version that is wanted; empty: any.
	Pin string
	Off int64
	// Dst takes len(Dst) bytes. The buffers of the ranges of one read must not overlap.
	Dst []byte
}

// RangesReader is an optional fourth interface of a Bucket: many ranges at once, the first being the most urgent. It
// is worth having where requests can overtake each other. An error leaves all buffers undefined.
type RangesReader interface {
	ReadRanges(ctx context.Context, ranges []Range) error
}

// ShortRead is the error of a range that the object does not hold: size is the object's size in bytes.
func ShortRead(key string, off, length, size int64) error {
	return errkind.Errorf(errkind.BadData, "%s: object has %d bytes, %d bytes at offset %d were asked for", key, size, length, off)
}

// Changed is the error of an object whose pin is got where want was expected.
func Changed(key, want, got string) error {
	return errkind.Errorf(errkind.Conflict, "%s changed: it was version %s, is %s", key, want, got)
}

// CheckRange refuses ranges that no object can hold.
func CheckRange(key string, off int64, dst []byte) error {
	if off < 0 || off+int64(len(dst)) < off {
		return errkind.Errorf(errkind.Invalid, "%s: no object holds %d bytes at offset %d", key, len(dst), off)
	}
	return nil
}

// OpenStream streams key from off to size: through [Opener] where b has it, else by ranges of 1 MiB.
// The stream ends early with the error of the failed range. The caller must close it.
func OpenStream(ctx context.Context, b Bucket, key string, off, size int64) (io.ReadCloser, error) {
	if o, ok := b.(Opener); ok {
		return o.Open(ctx, key, off)
	}
	if off < 0 || off > size {
		return nil, ShortRead(key, off, 0, size)
	}
	return &rangeStream{next: func(off int64, dst []byte) error {
		return b.ReadRange(ctx, key, off, dst)
	}, off: off, size: size}, nil
}

// streamChunk is the range size of streams over buckets that can't stream by themselves: large enough
// to hide the latency of a request, small enough to hold many of them.
const streamChunk = 1 << 20

type rangeStream struct {
	next      func(off int64, dst []byte) error
	off, size int64
	buf, rest []byte
}

func (s *rangeStream) Read(p []byte) (int, error) {
	if len(s.rest) == 0 {
		n := min(streamChunk, s.size-s.off)
		if n == 0 {
			return 0, io.EOF
		}
		if s.buf == nil {
			s.buf = make([]byte, n)
		}
		if err := s.next(s.off, s.buf[:n]); err != nil {
			return 0, err
		}
		s.rest = s.buf[:n]
		s.off += n
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

func (s *rangeStream) Close() error {
	s.buf, s.rest = nil, nil
	s.off = s.size
	return nil
}

// Creator is an optional fifth interface of a Bucket: objects written once. It is the base of logs, not of data: objects
// are small and whole.
type Creator interface {
	// Create writes the object key, unless there is one: then nothing changes and the error is of kind Conflict. When it
	// returns nil the object is durable. After an error of another kind the object may be there or not, but never in part.
	Create(ctx context.Context, key string, data []byte) error
	// Remove deletes the object key, if it is there.
	Remove(ctx context.Context, key string) error
}

// Exists is the error of an object that was to be created and is there.
func Exists(key string) error {
	return errkind.Errorf(errkind.Conflict, "%s exists already", key)
}
