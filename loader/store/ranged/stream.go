package ranged

import (
	"context"
	"io"

	"github.com/millrace/millrace/loader/store"
)

// streamChunk is what a stream asks for at a time: large enough that the pause between two requests does not count.
const streamChunk = 4 << 20

// Open reads an object from off to its end, all of one version.
func (r *Reader) Open(ctx context.Context, key string, off int64) (io.ReadCloser, error) {
	a, err := r.Attributes(ctx, key)
	if err != nil {
		return nil, err
	}
	if off < 0 || off > a.Size {
		return nil, store.ShortRead(r.opts.Name(a.Key), off, 0, a.Size)
	}
	ctx, cancel := context.WithCancel(ctx)
	return &stream{ctx: ctx, cancel: cancel, reader: r, object: a, off: off}, nil
}

// stream reads one chunk ahead of its caller.
type stream struct {
	ctx    context.Context //nolint:containedctx // io.Reader has no other way to be cancelled; ends with Close
	cancel context.CancelFunc
	reader *Reader
	object store.Attributes
	off    int64 // of the next chunk to ask for
	rest   []byte
	ahead  chan chunk // nil: nothing is being read
	err    error
}

type chunk struct {
	data []byte
	err  error
}

// Read implements io.Reader.
func (s *stream) Read(p []byte) (int, error) {
	for len(s.rest) == 0 {
		if s.err != nil {
			return 0, s.err
		}
		if s.ahead == nil {
			s.ask()
		}
		if s.ahead == nil {
			s.err = io.EOF
			continue
		}
		c := <-s.ahead
		s.ahead = nil
		if s.err = c.err; s.err == nil {
			s.rest = c.data
			s.ask()
		}
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// ask begins to read the next chunk, if there is one.
func (s *stream) ask() {
	n := min(streamChunk, s.object.Size-s.off)
	if n == 0 {
		return
	}
	buf := make([]byte, n)
	off := s.off
	s.off += n
	ahead := make(chan chunk, 1)
	s.ahead = ahead
	go func() {
		ahead <- chunk{buf, s.reader.ReadPinned(s.ctx, s.object.Key, s.object.Pin, off, buf)}
	}()
}

// Close implements io.Closer.
func (s *stream) Close() error {
	s.cancel()
	if s.ahead != nil {
		<-s.ahead
		s.ahead = nil
	}
	s.rest, s.err = nil, io.ErrClosedPipe
	return nil
}
