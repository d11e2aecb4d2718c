// Package mds reads shards of MosaicML Streaming's MDS format, plain or compressed as a whole.
//
// A shard describes itself: the number of samples and their offsets as u32, a JSON document with names, encodings and sizes of
// columns, the samples. Each sample begins with the sizes (u32) of its columns that have no fixed one. All numbers are little
// endian. The format is that of mosaicml-streaming 0.13 (streaming/base/format/mds).
package mds

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset/format"
)

// version of the index.
const version = 1

const (
	// maxConfig bounds the description of columns.
	maxConfig = 16 << 20
	// maxColumns bounds their number.
	maxColumns = 10_000
)

// Format is MDS.
type Format struct{}

// Name implements format.Format.
func (Format) Name() string { return "mds" }

// Suffixes implements format.Format.
func (Format) Suffixes() []string { return []string{".mds"} }

// Compressible implements format.Format.
func (Format) Compressible() bool { return true }

// config is the part of a shard's description that reading needs.
type config struct {
	Version   int      `json:"version"`
	Format    string   `json:"format"`
	Names     []string `json:"column_names"`
	Encodings []string `json:"column_encodings"`
	Sizes     []*int64 `json:"column_sizes"`
}

func parseConfig(text []byte) (*config, error) {
	c := &config{}
	if err := json.Unmarshal(text, c); err != nil {
		return nil, format.Damaged("its description of columns can't be read: %w", err)
	}
	if c.Format != "mds" || c.Version != 2 {
		return nil, format.Damaged("it has format %q, version %d; this program reads mds, version 2", c.Format, c.Version)
	}
	if len(c.Names) != len(c.Encodings) || len(c.Names) != len(c.Sizes) || len(c.Names) > maxColumns {
		return nil, format.Damaged("its description has %d names, %d encodings and %d sizes of columns", len(c.Names), len(c.Encodings), len(c.Sizes))
	}
	for i, size := range c.Sizes {
		if size != nil && (*size < 0 || *size > 1<<32) {
			return nil, format.Damaged("column %q can't have %d bytes", c.Names[i], *size)
		}
	}
	return c, nil
}

// Index implements format.Format. A shard is read to its end, so that one that was cut off is found out; where index.json beside
// it has hashes of its content, these are verified.
func (Format) Index(ctx context.Context, o format.Object, tolerate func(error) error) (_ format.Indexed, err error) {
	body, err := o.Open(ctx)
	if err != nil {
		return format.Indexed{}, err
	}
	defer func() { err = errors.Join(err, body.Close()) }()
	content, err := checkedBy(ctx, o, body)
	if err != nil {
		return format.Indexed{}, err
	}
	offsets, text, err := header(content)
	if err != nil {
		return format.Indexed{}, err
	}
	c, err := parseConfig(text)
	if err != nil {
		return format.Indexed{}, err
	}
	x := &format.RecordIndex{}
	for i, name := range c.Names {
		e, err := encodingNamed(c.Encodings[i])
		if err != nil {
			return format.Indexed{}, errkind.Errorf(errkind.Of(err), "column %q: %w", name, err)
		}
		x.Column(name, e.kind)
	}
	at := int64(offsets[0])
	for i, begin := range offsets[:len(offsets)-1] {
		n := int64(offsets[i+1]) - int64(begin)
		got, err := io.CopyN(io.Discard, content, max(n, 0))
		at += got
		if n < 0 || errors.Is(err, io.EOF) {
			err = format.Damaged("sample %d is cut off: the shard ends after %d bytes, its samples at %d", i, at, offsets[len(offsets)-1])
		}
		if err == nil {
			err = x.Add(int64(begin), n)
		}
		if err != nil {
			if err = tolerate(err); err != nil {
				return format.Indexed{}, err
			}
			return x.Seal(version, text, at), nil
		}
	}
	if err := content.verify(); err != nil {
		if err = tolerate(err); err != nil {
			return format.Indexed{}, err
		}
	}
	return x.Seal(version, text, at), nil
}

// header reads what comes before the samples: their offsets, and the description of columns.
func header(r io.Reader) (offsets []uint32, text []byte, err error) {
	cut := func(err error) error {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return format.Damaged("it ends within its header, or is no MDS shard")
		}
		return err
	}
	var count [4]byte
	if _, err := io.ReadFull(r, count[:]); err != nil {
		return nil, nil, cut(err)
	}
	n := int64(binary.LittleEndian.Uint32(count[:])) + 1
	raw, err := take(r, 4*n)
	if err != nil {
		return nil, nil, cut(err)
	}
	for ; len(raw) > 0; raw = raw[4:] {
		offsets = append(offsets, binary.LittleEndian.Uint32(raw))
	}
	size := int64(offsets[0]) - 4*(n+1)
	if size < 0 || size > maxConfig {
		return nil, nil, format.Damaged("its samples can't begin at offset %d; it is damaged, or no MDS shard", offsets[0])
	}
	if text, err = take(r, size); err != nil {
		return nil, nil, cut(err)
	}
	return offsets, text, nil
}

// take reads n bytes, for which room is made as they come.
func take(r io.Reader, n int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, n))
	if err == nil && int64(len(b)) < n {
		err = io.ErrUnexpectedEOF
	}
	return b, err
}

// Open implements format.Format.
func (Format) Open(raw []byte) (format.Shard, error) {
	r, err := format.OpenRecords(raw, version)
	if err != nil {
		return nil, err
	}
	c, err := parseConfig(r.Head)
	if err != nil {
		return nil, err
	}
	s := &shard{Records: r, config: c, places: make([]int, len(c.Names)), encodings: make([]encoding, len(c.Names))}
	for i, name := range c.Names {
		s.places[i] = -1
		for at, column := range r.Columns() {
			if column.Name == name {
				s.places[i] = at
			}
		}
		if s.encodings[i], err = encodingNamed(c.Encodings[i]); err != nil || s.places[i] < 0 {
			return nil, format.Damaged("its columns are not those of its description")
		}
	}
	return s, nil
}

type shard struct {
	format.Records

	config    *config
	places    []int // of the columns of config among Columns
	encodings []encoding
}

// Decode implements format.Shard.
func (s *shard) Decode(_ context.Context, _ format.Unit, wanted []bool, parts [][]byte, _ int64) (format.Block, error) {
	f := &format.Fields{Data: make([][]byte, len(wanted))}
	f.Err = s.decode(f.Data, wanted, parts[0])
	return f, nil
}

func (s *shard) decode(out [][]byte, wanted []bool, sample []byte) error {
	sizes, values := sample, sample
	for _, size := range s.config.Sizes {
		if size == nil {
			if len(values) < 4 {
				return format.Damaged("the sample is cut off")
			}
			values = values[4:]
		}
	}
	for i, fixed := range s.config.Sizes {
		var n int64
		if fixed != nil {
			n = *fixed
		} else {
			n, sizes = int64(binary.LittleEndian.Uint32(sizes)), sizes[4:]
		}
		if n > int64(len(values)) {
			return format.Damaged("column %q has %d bytes, %d are left of the sample", s.config.Names[i], n, len(values))
		}
		value := values[:n:n]
		values = values[n:]
		if !wanted[s.places[i]] {
			continue
		}
		data, err := s.encodings[i].decode(value)
		if err != nil {
			return errkind.Errorf(errkind.Of(err), "column %q: %w", s.config.Names[i], err)
		}
		out[s.places[i]] = data
	}
	if len(values) > 0 {
		return format.Damaged("%d bytes are left after the last column", len(values))
	}
	return nil
}
