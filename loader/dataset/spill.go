package dataset

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/millrace/millrace/internal/errkind"
)

// spill keeps decompressed shards in files without a name, up to a number of bytes of disk: nothing is
// left behind when the process dies.
type spill struct {
	dir   string
	limit int64

	mu      sync.Mutex
	used    int64
	clock   int64
	entries map[int]*spilled
	changed chan struct{} // closed and replaced whenever an entry is finished or given back
}

// spilled is one decompressed shard, or one that is being made.
type spilled struct {
	file *os.File
	size int64
	refs int
	last int64 // when it was last taken, by the spill's clock
	done bool
}

func newSpill(dir string, limit int64) *spill {
	return &spill{dir: dir, limit: limit, entries: map[int]*spilled{}, changed: make(chan struct{})}
}

// with calls use with the content of shard, which is size bytes and is written by fill if it isn't held.
func (s *spill) with(ctx context.Context, shard int, size int64, fill func(io.Writer) error, use func(io.ReaderAt) error) error {
	e, err := s.take(ctx, shard, size, fill)
	if err != nil {
		return err
	}
	defer func() {
		s.mu.Lock()
		e.refs--
		s.wake()
		s.mu.Unlock()
	}()
	return use(e.file)
}

func (s *spill) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *spill) take(ctx context.Context, shard int, size int64, fill func(io.Writer) error) (*spilled, error) {
	if size > s.limit {
		return nil, errkind.Errorf(errkind.Exhausted, "it has %d bytes when decompressed, more than the %d bytes of disk that decompressed shards may take; raise that limit or store it as plain .tar", size, s.limit)
	}
	s.mu.Lock()
	for {
		e := s.entries[shard]
		if e != nil && e.done {
			e.refs++
			s.clock++
			e.last = s.clock
			s.mu.Unlock()
			return e, nil
		}
		if e == nil && s.evict(size) {
			break
		}
		// Another reader makes it, or readers hold all there is room for. They hold it only while they
		// copy, and never wait for another shard meanwhile.
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for disk to decompress it: %w", ctx.Err())
		}
		s.mu.Lock()
	}
	e := &spilled{size: size, refs: 1}
	s.entries[shard] = e
	s.used += size
	s.mu.Unlock()

	file, err := s.fill(size, fill)

	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.wake()
	if err != nil {
		delete(s.entries, shard)
		s.used -= size
		return nil, err
	}
	s.clock++
	e.file, e.done, e.last = file, true, s.clock
	return e, nil
}

// evict makes room for size bytes, if what nobody reads is enough.
func (s *spill) evict(size int64) bool {
	for s.used+size > s.limit {
		victim := -1
		for shard, e := range s.entries {
			if e.done && e.refs == 0 && (victim < 0 || e.last < s.entries[victim].last) {
				victim = shard
			}
		}
		if victim < 0 {
			return false
		}
		e := s.entries[victim]
		delete(s.entries, victim)
		s.used -= e.size
		_ = e.file.Close() // was only read: nothing can be lost
	}
	return true
}

func (s *spill) fill(size int64, fill func(io.Writer) error) (file *os.File, err error) {
	f, err := os.CreateTemp(s.dir, "millrace-shard-*")
	if err != nil {
		return nil, errkind.Errorf(errkind.Exhausted, "making a file for a decompressed shard: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	if err := os.Remove(f.Name()); err != nil {
		return nil, errkind.Errorf(errkind.Internal, "unlinking %s: %w", f.Name(), err)
	}
	w := &exactWriter{w: f, left: size}
	if err := fill(w); err != nil {
		return nil, err
	}
	if w.left != 0 {
		return nil, errkind.Errorf(errkind.Conflict, "it has %d bytes less when decompressed than when it was indexed; run millrace index again", w.left)
	}
	return f, nil
}

// exactWriter refuses more bytes than are expected.
type exactWriter struct {
	w    io.Writer
	left int64
}

func (e *exactWriter) Write(p []byte) (int, error) {
	if int64(len(p)) > e.left {
		return 0, errkind.Errorf(errkind.Conflict, "it has more bytes when decompressed than when it was indexed; run millrace index again")
	}
	n, err := e.w.Write(p)
	e.left -= int64(n)
	if err != nil {
		return n, errkind.Errorf(errkind.Exhausted, "writing a decompressed shard: %w", err)
	}
	return n, nil
}

func (s *spill) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for shard, e := range s.entries {
		if e.file != nil {
			errs = append(errs, e.file.Close())
		}
		delete(s.entries, shard)
	}
	s.used = 0
	return errors.Join(errs...)
}

// held is the number of bytes of disk that are taken or reserved.
func (s *spill) held() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}
