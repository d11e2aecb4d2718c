// Package jsonl reads files of JSON objects, one a line, plain or compressed as a whole.
//
// A line is a sample, its members are the fields. Lines that are no object are errors of their samples alone.
package jsonl

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strconv"

	"github.com/millrace/millrace/loader/dataset/format"
)

// version of the index.
const version = 1

// maxLine bounds a line, and with it the memory of indexing. maxColumns bounds the members of all lines together.
const (
	maxLine    = 64 << 20
	maxColumns = 10_000
)

// Format is JSON lines.
type Format struct{}

// Name implements format.Format.
func (Format) Name() string { return "jsonl" }

// Suffixes implements format.Format.
func (Format) Suffixes() []string { return []string{".jsonl", ".ndjson"} }

// Compressible implements format.Format.
func (Format) Compressible() bool { return true }

// Index implements format.Format.
func (Format) Index(ctx context.Context, o format.Object, tolerate func(error) error) (format.Indexed, error) {
	return format.IndexRecords(ctx, o, version, func(r *bufio.Reader) format.Cutter { return &lines{r: r} }, add, tolerate)
}

// add appends a line that is not blank.
func add(x *format.RecordIndex, line []byte, at int64) error {
	start := 0
	if at == 0 && bytes.HasPrefix(line, []byte("\xef\xbb\xbf")) {
		start = 3 // a byte order mark
	}
	for start < len(line) && isSpace(line[start]) {
		start++
	}
	end := len(line)
	for end > start && isSpace(line[end-1]) {
		end--
	}
	if start == end {
		return nil
	}
	line = line[start:end]
	// What can't be read is found again, and reported, when the sample is.
	_ = members(line, func(key, value []byte) error {
		if t, ok := typeOf(value); ok && len(x.Columns) < maxColumns {
			name, err := text(key)
			if err != nil {
				return err
			}
			x.Column(string(name), t)
		}
		return nil
	})
	return x.Add(at+int64(start), int64(len(line)))
}

// lines cuts a stream into lines.
type lines struct {
	r    *bufio.Reader
	pos  int64
	long []byte
}

// Pos implements format.Cutter.
func (l *lines) Pos() int64 { return l.pos }

// Next implements format.Cutter: the next line, valid until the next call, and where it begins.
func (l *lines) Next() (line []byte, at int64, err error) {
	at = l.pos
	l.long = l.long[:0]
	for {
		part, err := l.r.ReadSlice('\n')
		l.pos += int64(len(part))
		if err == nil && len(l.long) == 0 {
			return part, at, nil
		}
		l.long = append(l.long, part...)
		switch {
		case len(l.long) > maxLine:
			return nil, at, format.Damaged("the line at offset %d has more than %d bytes", at, maxLine)
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && len(l.long) > 0, err == nil:
			return l.long, at, nil
		}
		return nil, at, err
	}
}

// Open implements format.Format.
func (Format) Open(raw []byte) (format.Shard, error) {
	r, err := format.OpenRecords(raw, version)
	if err != nil {
		return nil, err
	}
	s := &shard{Records: r, places: map[string]int{}}
	for i, c := range r.Columns() {
		s.places[c.Name] = i
	}
	return s, nil
}

type shard struct {
	format.Records
	places map[string]int
}

// Decode implements format.Shard.
func (s *shard) Decode(_ context.Context, _ format.Unit, wanted []bool, parts [][]byte, _ int64) (format.Block, error) {
	f := &format.Fields{Data: make([][]byte, len(wanted))}
	f.Err = members(parts[0], func(key, value []byte) error {
		name, err := text(key)
		if err != nil {
			return err
		}
		i, ok := s.places[string(name)]
		if !ok || !wanted[i] {
			return nil
		}
		f.Data[i], err = decode(value, s.Columns()[i].Type)
		return err
	})
	return f, nil
}

// typeOf is the type of a value; null has none.
func typeOf(value []byte) (t format.Type, ok bool) {
	switch value[0] {
	case '"':
		return format.Text, true
	case 't', 'f':
		return format.Int64, true
	case 'n':
		return 0, false
	case '[', '{':
		return format.JSON, true
	}
	if _, err := strconv.ParseInt(string(value), 10, 64); err != nil {
		return format.Float64, true
	}
	return format.Int64, true
}

// decode is a value as a column of type t has it, nil for null.
func decode(value []byte, t format.Type) ([]byte, error) {
	if !json.Valid(value) {
		return nil, format.Damaged("it is no JSON near %q", clip(value))
	}
	switch {
	case value[0] == 'n':
		return nil, nil
	case t == format.JSON:
		return value, nil
	case value[0] == '"':
		return text(value)
	case value[0] == 't':
		return []byte("1"), nil
	case value[0] == 'f':
		return []byte("0"), nil
	}
	return value, nil
}

// text is what a JSON string spells. It is never nil.
func text(quoted []byte) ([]byte, error) {
	inner := quoted[1 : len(quoted)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return inner, nil
	}
	var s string
	if err := json.Unmarshal(quoted, &s); err != nil {
		return nil, format.Damaged("it is no JSON near %q", clip(quoted))
	}
	return []byte(s), nil
}

func clip(b []byte) []byte { return b[:min(len(b), 40)] }
