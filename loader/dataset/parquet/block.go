package parquet

import (
	"errors"
	"io"

	"github.com/apache/arrow-go/v18/parquet/file"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset/format"
)

// block is the values of some rows of one column.
type block struct {
	column int
	first  int64
	data   []byte
	ends   []int64 // of each row's value in data; the one before's, bitwise inverted, where it is null
}

// Values implements format.Block.
func (b *block) Values(row int64, fn func(column int, data []byte)) error {
	i := row - b.first
	if i < 0 || i >= int64(len(b.ends)) || b.ends[i] < 0 {
		return nil
	}
	start := int64(0)
	if i > 0 {
		if start = b.ends[i-1]; start < 0 {
			start = ^start
		}
	}
	fn(b.column, b.data[start:b.ends[i]:b.ends[i]])
	return nil
}

// MemoryBytes implements format.Block.
func (b *block) MemoryBytes() int64 { return int64(cap(b.data)) + int64(cap(b.ends))*8 + 64 }

// assembler makes rows of the values and levels of a column.
type assembler struct {
	leaf  leaf
	block *block
	limit int64

	open  int // lists that are open
	row   bool
	null  bool
	value int // of the batch
}

// rows decodes count rows of a column.
func rows(r file.ColumnChunkReader, l leaf, column int, first, count, limit int64) (*block, error) {
	br, err := readerOf(r, l)
	if err != nil {
		return nil, err
	}
	a := &assembler{leaf: l, limit: limit, block: &block{column: column, first: first, ends: make([]int64, 0, min(count, 1<<20))}}
	defs, reps := make([]int16, batchLevels), make([]int16, batchLevels)
	for {
		levels, values, err := br.read(defs, reps)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, format.Damaged("column %q: %w", l.column.Name, err)
		}
		if levels == 0 {
			break
		}
		a.value = 0
		for i := range levels {
			def, rep := l.descr.MaxDefinitionLevel(), int16(0)
			if l.descr.MaxDefinitionLevel() > 0 {
				def = defs[i]
			}
			if l.descr.MaxRepetitionLevel() > 0 {
				rep = reps[i]
			}
			if rep == 0 {
				a.end()
				// Pages end with rows; where nothing says where rows begin, more of them may follow.
				if int64(len(a.block.ends)) == count {
					return a.block, nil
				}
			}
			if err := a.level(br.text, def, rep, values); err != nil {
				return nil, err
			}
		}
	}
	a.end()
	if int64(len(a.block.ends)) != count {
		return nil, format.Damaged("column %q: %d rows from %d on should be %d", l.column.Name, len(a.block.ends), first, count)
	}
	return a.block, nil
}

// end finishes the row that is being made.
func (a *assembler) end() {
	if !a.row {
		return
	}
	a.closeTo(0)
	end := int64(len(a.block.data))
	if a.null {
		end = ^end
	}
	a.block.ends = append(a.block.ends, end)
	a.row, a.null = false, false
}

func (a *assembler) closeTo(depth int) {
	for ; a.open > depth; a.open-- {
		a.block.data = append(a.block.data, ']')
	}
}

// level takes the next pair of levels.
func (a *assembler) level(text printer, def, rep int16, values int) error {
	l := &a.leaf
	b := a.block
	if rep == 0 {
		a.row = true
	} else {
		if !a.row || int(rep) > a.open {
			return format.Damaged("column %q: its levels make no rows", l.column.Name)
		}
		a.closeTo(int(rep))
		b.data = append(b.data, ',')
	}
	for k := int(rep); k < len(l.lists); k++ {
		switch {
		case def >= l.lists[k]:
			b.data = append(b.data, '[')
			a.open++
			continue
		case def == l.lists[k]-1:
			b.data = append(b.data, "[]"...)
		case k == 0:
			a.null = true
		default:
			b.data = append(b.data, "null"...)
		}
		return nil
	}
	switch {
	case def == l.descr.MaxDefinitionLevel():
		if a.value >= values {
			return format.Damaged("column %q: it has fewer values than its levels say", l.column.Name)
		}
		b.data = text(b.data, a.value, len(l.lists) > 0)
		a.value++
	case len(l.lists) > 0:
		b.data = append(b.data, "null"...)
	default:
		a.null = true
	}
	if int64(len(b.data)) > a.limit {
		return errkind.Errorf(errkind.Exhausted, "column %q: rows %d to %d take more than %d bytes when decoded; ask for fewer samples at once", l.column.Name, b.first, b.first+int64(len(b.ends)), a.limit)
	}
	return nil
}
