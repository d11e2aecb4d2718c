package tarscan

import (
	"bytes"
	"errors"
	"math"
	"strconv"
	"strings"
)

// header is what one 512-byte block says.
type header struct {
	name string
	kind byte
	size int64
}

// regular: '7' (contiguous) is stored like any file. A V7 file whose name ends in a slash is a directory.
func (h header) regular() bool {
	return h.kind == '0' || h.kind == '7' || h.kind == 0 && !strings.HasSuffix(h.name, "/")
}

// headerOnly: links, devices, directories and pipes have no data, whatever their size field says.
func (h header) headerOnly() bool {
	switch h.kind {
	case '1', '2', '3', '4', '5', '6':
		return true
	}
	return h.kind == 0 && strings.HasSuffix(h.name, "/")
}

// Fields of a header block.
const (
	nameEnd       = 100
	sizeStart     = 124
	sizeEnd       = 136
	checksumStart = 148
	checksumEnd   = 156
	kindAt        = 156
	magicStart    = 257
	prefixStart   = 345
	prefixEnd     = 500
	starPrefixEnd = 476
	trailerStart  = 508
)

func parseHeader(b []byte) (header, error) {
	want, err := parseOctal(b[checksumStart:checksumEnd])
	if err != nil {
		return header{}, errors.New("this is no tar header")
	}
	if unsigned, signed := checksums(b); want != unsigned && want != signed {
		return header{}, errors.New("the checksum of a header is wrong")
	}
	size, err := parseNumeric(b[sizeStart:sizeEnd])
	if err != nil || size < 0 {
		return header{}, errors.New("a header has a size that is no number")
	}
	h := header{name: text(b[:nameEnd]), kind: b[kindAt], size: size}
	if string(b[magicStart:magicStart+6]) == "ustar\x00" {
		end := prefixEnd
		if string(b[trailerStart:blockSize]) == "tar\x00" {
			end = starPrefixEnd
		}
		if prefix := text(b[prefixStart:end]); prefix != "" {
			h.name = prefix + "/" + h.name
		}
	}
	return h, nil
}

// checksums are the sum of the block with its checksum field blank, of unsigned bytes and, as some
// historic programs wrote it, of signed ones.
func checksums(b []byte) (unsigned, signed int64) {
	for i, c := range b[:blockSize] {
		if i >= checksumStart && i < checksumEnd {
			c = ' '
		}
		unsigned += int64(c)
		signed += int64(int8(c))
	}
	return unsigned, signed
}

func text(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

func parseOctal(b []byte) (int64, error) {
	s := strings.Trim(string(b), " \x00")
	if s == "" {
		return 0, nil
	}
	return strconv.ParseInt(text([]byte(s)), 8, 64)
}

// parseNumeric reads octal text or, when the first bit is set, GNU's big-endian two's complement.
func parseNumeric(b []byte) (int64, error) {
	if b[0]&0x80 == 0 {
		return parseOctal(b)
	}
	var fill byte
	if b[0]&0x40 != 0 {
		fill = 0xff
	}
	var v uint64
	for i, c := range b {
		c ^= fill
		if i == 0 {
			c &= 0x7f
		}
		if v>>56 != 0 {
			return 0, errors.New("too large")
		}
		v = v<<8 | uint64(c)
	}
	if v > math.MaxInt64 {
		return 0, errors.New("too large")
	}
	if fill != 0 {
		return ^int64(v), nil
	}
	return int64(v), nil
}

// records are what extended headers say about the member that follows, or about all.
type records struct {
	path, longName string
	size           int64
	hasSize        bool
	noPath, noSize bool // an empty value takes back what a global header said
	sparse         bool
}

// name prefers GNU's long name over the PAX path, and that over the header's own.
func (r records) name(own string) string {
	switch {
	case r.longName != "":
		return r.longName
	case r.path != "":
		return r.path
	}
	return own
}

// overlaid is r with all that over says in its place.
func (r records) overlaid(over records) records {
	if over.noPath {
		r.path = ""
	}
	if over.noSize {
		r.hasSize = false
	}
	if over.path != "" {
		r.path = over.path
	}
	if over.hasSize {
		r.size, r.hasSize = over.size, true
	}
	r.longName = over.longName
	r.sparse = r.sparse || over.sparse
	return r
}

func (r *records) add(kind byte, data string) error {
	switch kind {
	case 'L':
		r.longName = text([]byte(data))
		return nil
	case 'K':
		return nil // The target of a link: links are skipped.
	}
	for data != "" {
		key, value, rest, err := cutRecord(data)
		if err != nil {
			return err
		}
		if err := r.set(key, value); err != nil {
			return err
		}
		data = rest
	}
	return nil
}

func (r *records) set(key, value string) error {
	switch {
	case key == "path":
		if strings.IndexByte(value, 0) >= 0 {
			return errors.New("a PAX path with a zero byte")
		}
		r.path, r.noPath = value, value == ""
	case key == "size":
		r.noSize, r.hasSize = value == "", value != ""
		if r.hasSize {
			size, err := strconv.ParseInt(value, 10, 64)
			if err != nil || size < 0 {
				return errors.New("a PAX size that is no number")
			}
			r.size = size
		}
	case strings.HasPrefix(key, "GNU.sparse."):
		r.sparse = true
	}
	return nil
}

// cutRecord takes one "length key=value\n" off s.
func cutRecord(s string) (key, value, rest string, err error) {
	bad := errors.New("a PAX record that can't be read")
	digits, _, ok := strings.Cut(s, " ")
	if !ok {
		return "", "", "", bad
	}
	n, err := strconv.ParseUint(digits, 10, 31)
	if err != nil || n > uint64(len(s)) || n < uint64(len(digits))+2 || s[n-1] != '\n' {
		return "", "", "", bad
	}
	key, value, ok = strings.Cut(s[len(digits)+1:n-1], "=")
	if !ok || key == "" {
		return "", "", "", bad
	}
	return key, value, s[n:], nil
}
