package worker

import (
	"github.com/millrace/millrace/preprocess/op"
	"github.com/millrace/millrace/preprocess/plan"
)

// chunk is the memory of what the operators of a stage make of some rows. Several pieces of outputs may refer to it.
type chunk struct {
	mem  *arena
	refs int
}

func (c *chunk) release() {
	if c.refs--; c.refs == 0 {
		c.mem.release()
	}
}

// piece is some rows of a chunk.
type piece struct {
	chunk *chunk
	batch *op.Batch
	whole bool // no other piece has rows of the batch
}

// assembler cuts the rows of a stage into output partitions: of a fixed number of rows where all have the same size,
// else of as many rows as stay within the target. A row above the target is an output of its own.
type assembler struct {
	rows   int   // of each output, 0 where rows differ in size
	target int64 // bytes of an output
	// emit gets each output. It owns mem from then on.
	emit func(b *op.Batch, mem *arena) error

	pieces  []piece
	numRows int
	bytes   int64
}

func newAssembler(s *plan.Stage, target int64, emit func(*op.Batch, *arena) error) *assembler {
	return &assembler{rows: rowsPerOutput(s, target), target: target, emit: emit}
}

// rowsPerOutput is the number of rows of each output but the last, 0 where it depends on the rows.
func rowsPerOutput(s *plan.Stage, target int64) int {
	if s.RowBytes <= 0 {
		return 0
	}
	return int(max(1, target/s.RowBytes))
}

// add takes the rows of b, which lie in the memory of c.
func (a *assembler) add(b *op.Batch, c *chunk) error {
	from := 0
	for i := range b.NumRows {
		if a.full(b, i, i-from) {
			if err := a.append(b, c, from, i); err != nil {
				return err
			}
			if err := a.flush(); err != nil {
				return err
			}
			from = i
		}
		if a.rows == 0 {
			a.bytes += rowBytes(b, i)
		}
	}
	if err := a.append(b, c, from, b.NumRows); err != nil {
		return err
	}
	if a.rows > 0 && a.numRows == a.rows {
		return a.flush()
	}
	return nil
}

// full reports whether row i of b begins the next output; pending rows of b before it belong to this one.
func (a *assembler) full(b *op.Batch, i, pending int) bool {
	if a.rows > 0 {
		return a.numRows+pending == a.rows
	}
	return a.numRows+pending > 0 && a.bytes+rowBytes(b, i) > a.target
}

func (a *assembler) append(b *op.Batch, c *chunk, from, to int) error {
	if from == to {
		return nil
	}
	c.refs++
	a.pieces = append(a.pieces, piece{chunk: c, batch: cut(b, from, to), whole: from == 0 && to == b.NumRows})
	a.numRows += to - from
	return nil
}

// flush emits what was gathered. An output that is one batch of an operator keeps the memory it was made in.
func (a *assembler) flush() error {
	if a.numRows == 0 {
		return nil
	}
	first := a.pieces[0]
	mem := &arena{pool: first.chunk.mem.pool}
	var out *op.Batch
	if len(a.pieces) == 1 && first.whole {
		first.chunk.mem.moveTo(mem, first.batch)
		out = first.batch
	} else {
		batches := make([]*op.Batch, len(a.pieces))
		for i, p := range a.pieces {
			batches[i] = p.batch
		}
		out = concat(batches, mem)
	}
	err := a.emit(out, mem)
	a.drop()
	return err
}

// drop gives up what was gathered.
func (a *assembler) drop() {
	for _, p := range a.pieces {
		p.chunk.release()
	}
	clear(a.pieces)
	a.pieces, a.numRows, a.bytes = a.pieces[:0], 0, 0
}
