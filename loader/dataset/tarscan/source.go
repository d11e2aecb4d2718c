package tarscan

import (
	"context"
	"errors"
	"io"

	"github.com/millrace/millrace/internal/errkind"
)

// Read-ahead of a ranged source. Small members share one request; between large ones only the headers
// are fetched.
const (
	minAhead = 4 << 10
	maxAhead = 256 << 10
	// dense is how many bytes of read-ahead one header may cost for the next request to grow.
	dense = 2 << 10
)

// Ranged is a Source over ranges of an archive of size bytes.
func Ranged(size int64, read func(ctx context.Context, off int64, dst []byte) error) Source {
	return &ranged{size: size, read: read, ahead: minAhead}
}

// Read-ahead of a far source, each request of which takes as long as reading about far bytes: where headers lie closer
// than that, all is read, in large ranges; else one small range a header.
const (
	far      = 512 << 10
	farFirst = 256 << 10
	farAhead = 2 << 20
	farHop   = 8 << 10
)

// Far is Ranged for archives of which a request is dear, as over a network.
func Far(size int64, read func(ctx context.Context, off int64, dst []byte) error) Source {
	return &ranged{size: size, read: read, ahead: farFirst, far: true}
}

type ranged struct {
	far bool

	size  int64
	read  func(ctx context.Context, off int64, dst []byte) error
	buf   []byte
	start int64 // offset of buf
	ahead int
	hits  int // headers served from buf
}

func (r *ranged) Window(ctx context.Context, off int64, n int) ([]byte, error) {
	if off > r.size {
		return nil, &EndError{Size: r.size}
	}
	n = int(min(int64(n), r.size-off))
	if n == 0 {
		return nil, nil
	}
	if off < r.start || off+int64(n) > r.start+int64(len(r.buf)) {
		if err := r.fill(ctx, off, n); err != nil {
			return nil, err
		}
	}
	r.hits++
	return r.buf[off-r.start:][:n], nil
}

func (r *ranged) fill(ctx context.Context, off int64, n int) error {
	switch {
	case r.far && r.hits == 0:
		if r.size <= farAhead {
			r.ahead = farAhead // One request for all of it.
		}
	case r.far:
		// What was passed since the last request, for each of the headers found in it.
		if r.ahead = farHop; (off-r.start)/int64(r.hits) < far {
			r.ahead = farAhead
		}
	case r.hits*dense >= len(r.buf):
		r.ahead = min(r.ahead*2, maxAhead)
	default:
		r.ahead = max(r.ahead/2, minAhead)
	}
	want := int(min(int64(max(n, r.ahead)), r.size-off))
	if cap(r.buf) < want {
		r.buf = make([]byte, want)
	}
	r.buf, r.start, r.hits = r.buf[:want], off, 0
	if err := r.read(ctx, off, r.buf); err != nil {
		r.buf = r.buf[:0]
		return err
	}
	return nil
}

// Stream is a Source over a stream, such as a compressed archive. It is read once, from its beginning.
// An error of the kind BadData is damage at the place that was reached; others are returned as they are.
func Stream(r io.Reader) Source {
	return &stream{r: r}
}

type stream struct {
	r   io.Reader
	pos int64 // offset in r
	buf []byte
	at  int64 // offset of buf, which ends at pos
}

func (s *stream) Window(ctx context.Context, off int64, n int) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if off < s.at {
		return nil, errkind.Errorf(errkind.Internal, "a stream at offset %d was asked for offset %d", s.at, off)
	}
	s.buf = s.buf[min(off-s.at, int64(len(s.buf))):]
	if skip := off - s.pos; skip > 0 {
		done, err := io.CopyN(io.Discard, s.r, skip)
		s.pos += done
		if errors.Is(err, io.EOF) {
			return nil, &EndError{Size: s.pos}
		}
		if err != nil {
			return nil, s.failed(err)
		}
	}
	s.at = off
	if missing := n - len(s.buf); missing > 0 {
		if err := s.extend(missing); err != nil {
			return nil, s.failed(err)
		}
	}
	return s.buf[:min(n, len(s.buf))], nil
}

// extend reads n more bytes, fewer at the end of the stream.
func (s *stream) extend(n int) error {
	have := len(s.buf)
	s.buf = append(make([]byte, 0, have+n), s.buf...)
	for len(s.buf) < have+n {
		got, err := s.r.Read(s.buf[len(s.buf) : have+n])
		s.buf = s.buf[:len(s.buf)+got]
		s.pos += int64(got)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *stream) failed(err error) error {
	if errkind.Of(err) == errkind.BadData {
		return damaged(s.pos, "%v", err)
	}
	return err
}
