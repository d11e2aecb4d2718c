package jsonl

import (
	"bytes"

	"github.com/millrace/millrace/loader/dataset/format"
)

// maxDepth bounds the nesting of a value.
const maxDepth = 1000

// members calls fn for each member of a JSON object, with its key in quotes and its value as they are written. It
// checks only what it needs to find them: values must be checked by who uses them.
func members(line []byte, fn func(key, value []byte) error) error {
	s := scanner{b: line}
	if !s.take('{') {
		return format.Damaged("it is no JSON object: %q", clip(line))
	}
	if s.take('}') {
		return s.end()
	}
	for {
		s.space()
		key, ok := s.text()
		if !ok || !s.take(':') {
			return s.bad()
		}
		s.space()
		value, ok := s.value()
		if !ok {
			return s.bad()
		}
		if err := fn(key, value); err != nil {
			return err
		}
		if s.take('}') {
			return s.end()
		}
		if !s.take(',') {
			return s.bad()
		}
	}
}

// scanner goes over the bytes of one line.
type scanner struct {
	b  []byte
	at int
}

func (s *scanner) bad() error {
	return format.Damaged("it is no JSON object: byte %d, before %q, is wrong", s.at, clip(s.b[min(s.at, len(s.b)):]))
}

// end checks that nothing follows.
func (s *scanner) end() error {
	s.space()
	if s.at != len(s.b) {
		return s.bad()
	}
	return nil
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }

func (s *scanner) space() {
	for s.at < len(s.b) && isSpace(s.b[s.at]) {
		s.at++
	}
}

// take steps over c, and space before it, if it is next.
func (s *scanner) take(c byte) bool {
	s.space()
	if s.at < len(s.b) && s.b[s.at] == c {
		s.at++
		return true
	}
	return false
}

// text steps over a string.
func (s *scanner) text() ([]byte, bool) {
	if s.at >= len(s.b) || s.b[s.at] != '"' {
		return nil, false
	}
	start := s.at
	s.at++
	for {
		i := bytes.IndexByte(s.b[s.at:], '"')
		if i < 0 {
			return nil, false
		}
		s.at += i + 1
		slashes := 0
		for s.b[s.at-2-slashes] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return s.b[start:s.at], true
		}
	}
}

// value steps over any value, counting brackets.
func (s *scanner) value() ([]byte, bool) {
	start, depth := s.at, 0
	for s.at < len(s.b) {
		switch c := s.b[s.at]; c {
		case '"':
			if _, ok := s.text(); !ok {
				return nil, false
			}
		case '{', '[':
			s.at++
			if depth++; depth > maxDepth {
				return nil, false
			}
			continue
		case '}', ']':
			if depth == 0 {
				return s.b[start:s.at], s.at > start
			}
			s.at++
			depth--
		case ',', ' ', '\t', '\r', '\n', ':':
			if depth == 0 {
				return s.b[start:s.at], s.at > start
			}
			s.at++
			continue
		default:
			s.at++
			continue
		}
		if depth == 0 {
			return s.b[start:s.at], true
		}
	}
	return s.b[start:s.at], depth == 0 && s.at > start
}
