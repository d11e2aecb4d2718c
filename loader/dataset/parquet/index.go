package parquet

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/apache/arrow-go/v18/parquet/metadata"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset/format"
)

// indexer finds the pages of a file.
type indexer struct {
	ahead *ahead
	meta  *metadata.FileMetaData
	data  int64
	pages int64
}

// run is the body of the index: for each column, for each row group, the dictionary (offset in the chunk, size),
// the number of pages, and each page (offset, size, rows since the one before).
func (i *indexer) run(ctx context.Context) ([]byte, error) {
	var body []byte
	for column, l := range leavesOf(i.meta.Schema) {
		for group := range i.meta.NumRowGroups() {
			c, err := i.chunk(ctx, group, column, l)
			if err != nil {
				return nil, errkind.With(errkind.Of(err), wrap(l, group, err))
			}
			i.data += c.size
			if i.pages += int64(len(c.pages)); i.pages > maxPages {
				return nil, errkind.Errorf(errkind.Exhausted, "it has more than %d pages; write it in several files", maxPages)
			}
			body = appendChunk(body, c)
		}
	}
	return body, nil
}

func appendChunk(b []byte, c chunk) []byte {
	put := func(v int64) { b = binary.AppendUvarint(b, uint64(v)) } //nolint:gosec // checked not to be negative
	put(c.dictionary.Off)
	put(c.dictionary.Len)
	put(int64(len(c.pages)))
	row := int64(0)
	for _, p := range c.pages {
		put(p.off - c.start)
		put(p.size)
		put(p.first - row)
		row = p.first
	}
	return b
}

// chunk finds the pages of a column chunk. The offset of the dictionary is that in the chunk.
func (i *indexer) chunk(ctx context.Context, group, column int, l leaf) (chunk, error) {
	c := chunk{group: group, column: column}
	m, err := i.meta.RowGroup(group).ColumnChunk(column)
	if err != nil {
		return c, format.Damaged("its metadata can't be read: %w", err)
	}
	if m.CryptoMetadata() != nil {
		return c, errkind.Errorf(errkind.Invalid, "it is encrypted, which is not supported")
	}
	if m.FilePath() != "" {
		return c, errkind.Errorf(errkind.Invalid, "it lies in another file, %q, which is not supported", m.FilePath())
	}
	if !supported(m.Compression()) {
		return c, errkind.Errorf(errkind.Invalid, "its compression %s is not supported; write it with zstd or snappy", m.Compression())
	}
	c.start, c.size = bounds(m)
	if c.start < 0 || c.size < 0 || c.start > i.ahead.o.Size()-c.size {
		return c, format.Damaged("it can't have %d bytes at offset %d", c.size, c.start)
	}
	rows := i.meta.RowGroup(group).NumRows()
	if rows == 0 {
		return c, nil
	}
	if at := m.GetOffsetIndexLocation(); at != nil && at.Length > 0 {
		ok, err := i.listed(ctx, &c, m, at, rows)
		if ok || err != nil {
			return c, err
		}
	}
	return c, i.hop(ctx, &c, l, rows)
}

// listed takes the pages from the file's own offset index, and is not ok where that can't be right.
func (i *indexer) listed(ctx context.Context, c *chunk, m *metadata.ColumnChunkMetaData, at *metadata.IndexLocation, rows int64) (ok bool, err error) {
	if at.Offset < 0 || at.Offset > i.ahead.o.Size()-int64(at.Length) || at.Length > maxFooter {
		return false, nil
	}
	b, err := i.ahead.get(ctx, at.Offset, int64(at.Length))
	if err != nil {
		return false, err
	}
	pages, err := readOffsetIndex(b)
	if err != nil || len(pages) == 0 || pages[0].first != 0 {
		return false, nil //nolint:nilerr // an index that can't be read is as none
	}
	end, row := c.start, int64(-1)
	for _, p := range pages {
		if p.off < end || p.size <= 0 || p.off+p.size > c.start+c.size || p.first <= row || p.first >= rows {
			return false, nil
		}
		end, row = p.off+p.size, p.first
	}
	c.pages = pages
	if m.HasDictionaryPage() || pages[0].off > c.start {
		c.dictionary = format.Range{Len: pages[0].off - c.start} // Whatever is there besides, the decoder steps over.
	}
	return true, nil
}

// hop goes from page header to page header.
func (i *indexer) hop(ctx context.Context, c *chunk, l leaf, rows int64) error {
	end := c.start + c.size
	row, seen := int64(0), false
	whole := false // rows of pages are not known: all pages are one
	for at := c.start; at < end; {
		h, err := i.header(ctx, at, end)
		if err != nil {
			return err
		}
		next := at + h.bytes + h.size
		if next > end {
			return format.Damaged("a page at offset %d reaches out of it", at)
		}
		switch {
		case h.dictionary && !seen && c.dictionary.Len == 0:
			c.dictionary = format.Range{Off: at - c.start, Len: next - at}
		case h.data:
			seen = true
			n := h.rows
			if n < 0 {
				n = h.values
				whole = whole || len(l.lists) > 0
			}
			if whole && len(c.pages) > 0 {
				c.pages[0].size = next - c.pages[0].off
				c.pages = c.pages[:1]
			} else if n > 0 && (row < rows || len(c.pages) == 0) {
				c.pages = append(c.pages, page{off: at, size: next - at, first: row})
				row += n
			}
		}
		at = next
		if row >= rows && !whole && seen {
			break
		}
	}
	if !whole && row != rows || len(c.pages) == 0 {
		return format.Damaged("its pages hold %d of %d rows", row, rows)
	}
	return nil
}

// header reads the page header at off.
func (i *indexer) header(ctx context.Context, off, end int64) (pageHeader, error) {
	const least, most = 256, 16 << 20
	for n := int64(least); ; n *= 4 {
		n = min(n, end-off)
		b, err := i.ahead.get(ctx, off, n)
		if err != nil {
			return pageHeader{}, err
		}
		h, short, err := readPageHeader(b)
		if err != nil || !short {
			return h, err
		}
		if n == end-off || n >= most {
			return h, format.Damaged("the page header at offset %d is cut", off)
		}
	}
}

// ahead reads small ranges in ascending order, and more than was asked for while that is of use.
type ahead struct {
	o     format.Object
	buf   []byte
	start int64
	size  int64
	hits  int64
}

func (a *ahead) get(ctx context.Context, off, n int64) ([]byte, error) {
	const least, most, dense = 4 << 10, 256 << 10, 4 << 10
	if off >= a.start && off+n <= a.start+int64(len(a.buf)) {
		a.hits++
		return a.buf[off-a.start:][:n], nil
	}
	if a.hits*dense >= int64(len(a.buf)) {
		a.size = min(max(a.size*2, least), most)
	} else {
		a.size = max(a.size/2, least)
	}
	a.hits = 1
	a.buf, a.start = make([]byte, min(max(n, a.size), a.o.Size()-off)), off
	if err := a.o.ReadAt(ctx, off, a.buf); err != nil {
		a.buf = nil
		return nil, err
	}
	return a.buf[:n], nil
}

func wrap(l leaf, group int, err error) error {
	return fmt.Errorf("column %q of row group %d: %w", l.column.Name, group, err)
}
