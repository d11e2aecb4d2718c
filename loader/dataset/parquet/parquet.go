// Package parquet reads Parquet files by the pages of the columns that are wanted.
//
// A row is a sample, a leaf of the schema is a field. Where the pages lie comes from the file's own offset index or,
// where it has none, from hopping over page headers once.
package parquet

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"sort"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/metadata"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset/format"
)

// version of the index.
const version = 1

const (
	magic          = "PAR1"
	encryptedMagic = "PARE"
	tailBytes      = 64 << 10
	maxFooter      = 256 << 20
	maxColumns     = 10_000
	maxPages       = 16 << 20
)

// Format is Parquet.
type Format struct{}

// Name implements format.Format.
func (Format) Name() string { return "parquet" }

// Suffixes implements format.Format.
func (Format) Suffixes() []string { return []string{".parquet", ".parq"} }

// Compressible implements format.Format.
func (Format) Compressible() bool { return false }

// Index implements format.Format. It reads footers and page headers, no pages.
func (Format) Index(ctx context.Context, o format.Object, _ func(error) error) (x format.Indexed, err error) {
	defer format.Guard("reading the footer", &err)
	footer, err := readFooter(ctx, o)
	if err != nil {
		return x, err
	}
	meta, err := parse(footer)
	if err != nil {
		return x, err
	}
	i := &indexer{ahead: &ahead{o: o}, meta: meta}
	body, err := i.run(ctx)
	if err != nil {
		return x, err
	}
	x = format.Indexed{Raw: format.Seal(version, footer, body), Samples: meta.NumRows, DataBytes: i.data, Content: o.Size()}
	return x, nil
}

// readFooter is the file's own metadata.
func readFooter(ctx context.Context, o format.Object) ([]byte, error) {
	const trailer = 8
	if o.Size() < trailer+int64(len(magic)) {
		return nil, format.Damaged("it has %d bytes and is no Parquet file", o.Size())
	}
	tail := make([]byte, min(o.Size(), tailBytes))
	if err := o.ReadAt(ctx, o.Size()-int64(len(tail)), tail); err != nil {
		return nil, err
	}
	switch end := tail[len(tail)-trailer:]; string(end[4:]) {
	case magic:
	case encryptedMagic:
		return nil, errkind.Errorf(errkind.Invalid, "it is encrypted, which is not supported")
	default:
		return nil, format.Damaged("it does not end as a Parquet file does; it is cut, or none")
	}
	size := int64(binary.LittleEndian.Uint32(tail[len(tail)-trailer:]))
	if size > maxFooter || size > o.Size()-trailer-int64(len(magic)) {
		return nil, format.Damaged("its footer can't have %d bytes", size)
	}
	if size+trailer <= int64(len(tail)) {
		return bytes.Clone(tail[int64(len(tail))-trailer-size : len(tail)-trailer]), nil
	}
	footer := make([]byte, size)
	if err := o.ReadAt(ctx, o.Size()-trailer-size, footer); err != nil {
		return nil, err
	}
	return footer, nil
}

func parse(footer []byte) (*metadata.FileMetaData, error) {
	meta, err := metadata.NewFileMetaData(footer, nil)
	if err != nil {
		return nil, format.Damaged("its footer can't be read: %w", err)
	}
	if meta.NumColumns() > maxColumns {
		return nil, format.Damaged("it has %d columns, more than %d", meta.NumColumns(), maxColumns)
	}
	rows := int64(0)
	for i := range meta.NumRowGroups() {
		g := meta.RowGroup(i)
		if g.NumRows() < 0 || g.NumRows() > meta.NumRows-rows || g.NumColumns() != meta.NumColumns() {
			return nil, format.Damaged("row group %d does not fit the file's footer", i)
		}
		rows += g.NumRows()
	}
	if rows != meta.NumRows {
		return nil, format.Damaged("its footer states %d rows, its row groups %d", meta.NumRows, rows)
	}
	return meta, nil
}

// chunk is one column of one row group: where its pages are.
type chunk struct {
	group, column int
	start, size   int64 // of all its bytes
	dictionary    format.Range
	pages         []page
	base          int64 // the number of its first page among all of the file
}

// bounds are the bytes of a column chunk.
func bounds(c *metadata.ColumnChunkMetaData) (start, size int64) {
	start = c.DataPageOffset()
	if c.HasDictionaryPage() && c.DictionaryPageOffset() > 0 && start > c.DictionaryPageOffset() {
		start = c.DictionaryPageOffset()
	}
	return start, c.TotalCompressedSize()
}

// shard is an opened index.
type shard struct {
	meta   *metadata.FileMetaData
	leaves []leaf
	names  []format.Column
	starts []int64 // the first row of each row group, and the number of rows
	chunks []chunk // by column, then by row group
	memory int64
}

// Open implements format.Format.
func (Format) Open(raw []byte) (out format.Shard, err error) {
	defer format.Guard("reading the index", &err)
	footer, body, err := format.Unseal(raw, version)
	if err != nil {
		return nil, err
	}
	meta, err := parse(footer)
	if err != nil {
		return nil, err
	}
	s := &shard{meta: meta, leaves: leavesOf(meta.Schema), memory: int64(len(footer))*6 + int64(len(body))*4, starts: []int64{0}}
	for i := range meta.NumRowGroups() {
		s.starts = append(s.starts, s.starts[i]+meta.RowGroup(i).NumRows())
	}
	for i := range s.leaves {
		s.names = append(s.names, s.leaves[i].column)
	}
	r := &format.Reader{Rest: body}
	for column := range s.leaves {
		for group := range meta.NumRowGroups() {
			c, err := s.chunk(r, group, column)
			if err != nil {
				return nil, err
			}
			s.chunks = append(s.chunks, c)
		}
	}
	if r.Bad || len(r.Rest) > 0 {
		return nil, format.Damaged("its pages do not fit its size")
	}
	base := int64(0)
	for i := range s.chunks {
		s.chunks[i].base = base
		base += int64(len(s.chunks[i].pages))
	}
	return s, nil
}

// chunk takes the pages of a column chunk off r and checks them.
func (s *shard) chunk(r *format.Reader, group, column int) (chunk, error) {
	g := s.meta.RowGroup(group)
	m, err := g.ColumnChunk(column)
	if err != nil {
		return chunk{}, format.Damaged("column %d of row group %d: %w", column, group, err)
	}
	c := chunk{group: group, column: column}
	c.start, c.size = bounds(m)
	at := func() format.Range {
		off := r.Int(c.size)
		return format.Range{Off: c.start + off, Len: r.Int(c.size - off)}
	}
	c.dictionary = at()
	row := int64(0)
	n := r.Int(maxPages)
	for i := range n {
		where := at()
		row += r.Int(g.NumRows() - row)
		if r.Bad || i == 0 && row != 0 || i > 0 && row <= c.pages[i-1].first || row >= g.NumRows() {
			return chunk{}, format.Damaged("page %d of column %d of row group %d lies outside", i, column, group)
		}
		c.pages = append(c.pages, page{off: where.Off, size: where.Len, first: row})
	}
	if r.Bad || n == 0 && g.NumRows() > 0 {
		return chunk{}, format.Damaged("column %d of row group %d has no pages", column, group)
	}
	return c, nil
}

// NumSamples implements format.Shard.
func (s *shard) NumSamples() int64 { return s.meta.NumRows }

// MemoryBytes implements format.Shard.
func (s *shard) MemoryBytes() int64 { return s.memory }

// Columns implements format.Shard.
func (s *shard) Columns() []format.Column { return s.names }

// Units implements format.Shard: pages, by column and then by row.
func (s *shard) Units(rows []int64, wanted []bool) ([]format.Unit, error) {
	var units []format.Unit
	groups := s.meta.NumRowGroups()
	for column, want := range wanted {
		if !want {
			continue
		}
		end := int64(-1) // behind the last unit
		for _, row := range rows {
			if row < end {
				continue
			}
			group := sort.Search(groups, func(i int) bool { return s.starts[i+1] > row })
			c := &s.chunks[column*groups+group]
			local := row - s.starts[group]
			i, found := slices.BinarySearchFunc(c.pages, local, func(p page, row int64) int { return cmp.Compare(p.first, row) })
			if !found {
				i--
			}
			u := s.unit(c, i)
			units = append(units, u)
			end = u.First + u.Count
		}
	}
	return units, nil
}

func (s *shard) unit(c *chunk, i int) format.Unit {
	p := c.pages[i]
	end := s.starts[c.group+1]
	if i+1 < len(c.pages) {
		end = s.starts[c.group] + c.pages[i+1].first
	}
	u := format.Unit{ID: c.base + int64(i), First: s.starts[c.group] + p.first}
	u.Count = end - u.First
	if c.dictionary.Len > 0 {
		u.Ranges = append(u.Ranges, c.dictionary)
	}
	u.Ranges = append(u.Ranges, format.Range{Off: p.off, Len: p.size})
	return u
}

// Decode implements format.Shard.
func (s *shard) Decode(_ context.Context, u format.Unit, _ []bool, parts [][]byte, limit int64) (out format.Block, err error) {
	i := sort.Search(len(s.chunks), func(i int) bool { return s.chunks[i].base+int64(len(s.chunks[i].pages)) > u.ID })
	if i == len(s.chunks) {
		return nil, errkind.Errorf(errkind.Internal, "there is no page %d", u.ID)
	}
	c := &s.chunks[i]
	l := s.leaves[c.column]
	defer format.Guard(fmt.Sprintf("column %q", l.column.Name), &err)
	props := parquet.NewReaderProperties(memory.DefaultAllocator)
	props.BufferedStreamEnabled = true // else it would ask for the whole column chunk
	props.MaxUncompressedPageSize = min(limit, parquet.DefaultMaxUncompressedPageSize)
	r, err := file.NewParquetReader(&window{start: c.start, parts: parts}, file.WithMetadata(s.meta), file.WithReadProps(props))
	if err != nil {
		return nil, format.Damaged("column %q: %w", l.column.Name, err)
	}
	column, err := r.RowGroup(c.group).Column(c.column)
	if err != nil {
		return nil, format.Damaged("column %q: %w", l.column.Name, err)
	}
	b, err := rows(column, l, c.column, u.First, u.Count, limit)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// window is a file of which only a dictionary and some pages are there, joined, from start on.
type window struct {
	start int64
	parts [][]byte
	at    int64
}

// ReadAt implements io.ReaderAt.
func (w *window) ReadAt(p []byte, off int64) (n int, err error) {
	off -= w.start
	if off < 0 {
		return 0, io.ErrUnexpectedEOF
	}
	for _, part := range w.parts {
		if off < int64(len(part)) && n < len(p) {
			n += copy(p[n:], part[off:])
			off = 0
			continue
		}
		off = max(0, off-int64(len(part)))
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// Seek implements io.Seeker.
func (w *window) Seek(off int64, whence int) (int64, error) {
	switch whence {
	case io.SeekStart:
		w.at = off
	case io.SeekCurrent:
		w.at += off
	default:
		return 0, errkind.Errorf(errkind.Internal, "the end of a part of a file is not known")
	}
	return w.at, nil
}

func supported(c compress.Compression) bool {
	_, err := compress.GetCodec(c)
	return err == nil
}
