// Package tarscan finds the members of a tar archive by hopping from header to header.
//
// It reads ustar, PAX, GNU, star and V7 archives as GNU tar does, without their payload where it can
// seek, and holds no list of what it found. Damage is a [*Error] that says where.
package tarscan

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/millrace/millrace/internal/errkind"
)

// blockSize is the unit of the tar format.
const blockSize = 512

// maxMeta bounds the headers that hold names and records, as archive/tar does.
const maxMeta = 1 << 20

// Member is one entry of an archive.
type Member struct {
	// Name is the full path as the archive writes it.
	Name string
	// Regular tells plain files from directories, links, devices and members of unknown type.
	Regular bool
	// Header is the offset of the member's own header, Offset that of its data.
	Header, Offset int64
	// Size is the number of bytes of data.
	Size int64
}

// Error is damage in an archive. It has the kind BadData.
type Error struct {
	// Offset is where the damaged header or the missing bytes begin.
	Offset int64
	// Reason says what is wrong there.
	Reason string
}

// Error implements error.
func (e *Error) Error() string {
	return fmt.Sprintf("damaged tar at offset %d: %s", e.Offset, e.Reason)
}

func damaged(off int64, format string, args ...any) error {
	return errkind.With(errkind.BadData, &Error{Offset: off, Reason: fmt.Sprintf(format, args...)})
}

// Source is what a Scanner reads from.
type Source interface {
	// Window returns n bytes at off, fewer only where the archive ends. The bytes are valid until the
	// next call. Offsets never decrease. An off beyond the end is an [*EndError].
	Window(ctx context.Context, off int64, n int) ([]byte, error)
}

// EndError is the answer of a Source that was asked for bytes beyond the end.
type EndError struct {
	// Size is the size of the archive in bytes.
	Size int64
}

// Error implements error.
func (e *EndError) Error() string { return fmt.Sprintf("the archive ends at %d", e.Size) }

// Scanner walks the members of an archive in order. It is for one goroutine.
type Scanner struct {
	src    Source
	next   int64 // offset of the next header
	global records
	err    error
}

// New is a Scanner at the beginning of src.
func New(src Source) *Scanner {
	return &Scanner{src: src}
}

// Next is the next member whose header, data and padding are whole. It returns io.EOF after the last
// one: at two zero blocks, or where the archive ends at the boundary of a block. Errors are sticky.
func (s *Scanner) Next(ctx context.Context) (Member, error) {
	if s.err != nil {
		return Member{}, s.err
	}
	m, err := s.member(ctx)
	if err != nil {
		s.err = err
	}
	return m, err
}

// Pos is the offset up to which the archive was understood.
func (s *Scanner) Pos() int64 { return s.next }

func (s *Scanner) member(ctx context.Context) (Member, error) {
	var local records
	extended := int64(-1) // where the member's own extended header is
	for {
		at := s.next
		h, err := s.header(ctx)
		if errors.Is(err, io.EOF) && extended >= 0 {
			return Member{}, damaged(extended, "an extended header without the member it belongs to")
		}
		if err != nil {
			return Member{}, err
		}
		switch h.kind {
		case 'x', 'g', 'X', 'L', 'K':
			data, err := s.meta(ctx, at, h)
			if err != nil {
				return Member{}, err
			}
			target := &local
			if h.kind == 'g' {
				target = &s.global
			} else {
				extended = at
			}
			if err := target.add(h.kind, data); err != nil {
				return Member{}, damaged(at, "%v", err)
			}
		default:
			return s.finish(ctx, at, h, local)
		}
	}
}

// finish applies the extended headers to h and steps over its data.
func (s *Scanner) finish(ctx context.Context, at int64, h header, local records) (Member, error) {
	all := s.global.overlaid(local)
	if all.sparse || h.kind == 'S' {
		return Member{}, damaged(at, "%q is a sparse file; pack it again without --sparse", all.name(h.name))
	}
	m := Member{Name: all.name(h.name), Header: at, Offset: at + blockSize, Size: h.size, Regular: h.regular()}
	if all.hasSize {
		m.Size = all.size
	}
	if h.headerOnly() {
		m.Size = 0
	}
	end := m.Offset + m.Size
	if end < 0 || end > end+blockSize {
		return Member{}, damaged(at, "%q has an impossible size of %d bytes", m.Name, m.Size)
	}
	if err := s.advance(ctx, m); err != nil {
		return Member{}, err
	}
	return m, nil
}

// advance goes behind m's padding, and so proves that all of m is there.
func (s *Scanner) advance(ctx context.Context, m Member) error {
	end := m.Offset + m.Size
	next := roundUp(end)
	_, err := s.src.Window(ctx, next, 0)
	if short, ok := errors.AsType[*EndError](err); ok {
		if short.Size < end {
			return damaged(short.Size, "cut in the data of %q: %d of %d bytes are there", m.Name, max(0, short.Size-m.Offset), m.Size)
		}
		return damaged(short.Size, "cut in the padding behind %q", m.Name)
	}
	if err != nil {
		return err
	}
	s.next = next
	return nil
}

// header reads the header at s.next and steps behind it, or finds the end of the archive.
func (s *Scanner) header(ctx context.Context) (header, error) {
	b, err := s.src.Window(ctx, s.next, blockSize)
	if err != nil {
		return header{}, err
	}
	switch {
	case len(b) == 0 && s.next == 0:
		return header{}, damaged(0, "the file is empty; even an archive without members has two blocks of zeros")
	case len(b) == 0:
		return header{}, io.EOF
	case len(b) < blockSize:
		return header{}, damaged(s.next, "cut in a header: %d of %d bytes are there", len(b), blockSize)
	case isZero(b):
		return header{}, s.end(ctx)
	}
	h, err := parseHeader(b)
	if err != nil {
		return header{}, damaged(s.next, "%v%s", err, foreign(s.next, b))
	}
	s.next += blockSize
	return h, nil
}

// end decides whether the zero block at s.next ends the archive.
func (s *Scanner) end(ctx context.Context) error {
	b, err := s.src.Window(ctx, s.next+blockSize, blockSize)
	if err != nil {
		return err
	}
	if !isZero(b) {
		return damaged(s.next, "a single block of zeros between members")
	}
	return io.EOF
}

// meta reads the data of an extended header.
func (s *Scanner) meta(ctx context.Context, at int64, h header) (string, error) {
	if h.size > maxMeta {
		return "", damaged(at, "an extended header of %d bytes, more than %d", h.size, maxMeta)
	}
	b, err := s.src.Window(ctx, s.next, int(h.size))
	if err != nil {
		return "", err
	}
	if int64(len(b)) < h.size {
		return "", damaged(at, "cut in an extended header: %d of %d bytes are there", len(b), h.size)
	}
	data := string(b)
	return data, s.advance(ctx, Member{Name: h.name, Offset: s.next, Size: h.size})
}

// foreign adds what the first bytes of an archive look like, if they are no tar at all.
func foreign(off int64, b []byte) string {
	if off != 0 {
		return ""
	}
	for _, f := range []struct{ magic, name string }{
		{"\x1f\x8b", "gzip data: name it .tar.gz"},
		{"\x28\xb5\x2f\xfd", "zstd data: name it .tar.zst"},
		{"PK\x03\x04", "a zip file"},
		{"BZh", "bzip2 data"},
		{"\xfd7zXZ", "xz data"},
		{"PAR1", "a Parquet file"},
		{"<", "markup, such as an error page saved as a file"},
	} {
		if len(b) >= len(f.magic) && string(b[:len(f.magic)]) == f.magic {
			return " (it looks like " + f.name + ")"
		}
	}
	return ""
}

func roundUp(n int64) int64 { return (n + blockSize - 1) &^ (blockSize - 1) }

func isZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
