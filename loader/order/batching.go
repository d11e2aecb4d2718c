package order

import "github.com/millrace/millrace/internal/errkind"

// maxGlobalBatch bounds a global batch, so that row arithmetic stays within 63 bits.
const maxGlobalBatch = 1 << 40

// Batching deals the rows of an epoch's stream to global batches, and each of these to the ranks. Step s is the next
// GlobalBatch rows of the stream; world size does not enter into it.
//
// Methods take the number of rows of the epoch, or -1 while it is not known yet (a recipe that drops or adds rows).
// Every step is then answered as a full one: the caller has to know that its rows exist.
type Batching struct {
	// GlobalBatch is the number of rows of a step.
	GlobalBatch int64
	// Tail says what becomes of rows that do not fill the last step.
	Tail Tail
	// OriginStep and OriginRow are where steps are counted and cut from: 0 and 0 for a job that began with this
	// batch size, else the cursor's step and rows. Earlier steps are not answered.
	OriginStep, OriginRow int64
}

// Segment is a run of rows of the stream that a rank gets in this order.
type Segment struct {
	First, NumRows int64
	// Valid is false for padding: rows that repeat others of the same batch and do not count.
	Valid bool
}

// Validate says what is wrong with b, as an error of kind Invalid.
func (b Batching) Validate() error {
	switch {
	case b.GlobalBatch < 1 || b.GlobalBatch > maxGlobalBatch:
		return errkind.Errorf(errkind.Invalid, "global batch of %d rows is not within 1 to %d", b.GlobalBatch, int64(maxGlobalBatch))
	case b.Tail == TailInvalid || b.Tail > TailShort:
		return errkind.Errorf(errkind.Invalid, "batching has no valid tail (%d); choose pad, drop or short", b.Tail)
	case b.OriginStep < 0 || b.OriginRow < 0 || b.OriginStep > maxSamples || b.OriginRow > maxSamples:
		return errkind.Errorf(errkind.Invalid, "batching from step %d, row %d: both must be within 0 to %d", b.OriginStep, b.OriginRow, int64(maxSamples))
	}
	return nil
}

// CheckWorld says, as an error of kind Invalid, when the global batch cannot be dealt to world ranks in equal parts.
func (b Batching) CheckWorld(world int) error {
	if world < 1 {
		return errkind.Errorf(errkind.Invalid, "world size is %d; it must be at least 1", world)
	}
	w := int64(world)
	if b.GlobalBatch%w == 0 {
		return nil
	}
	if b.GlobalBatch < w {
		return errkind.Errorf(errkind.Invalid, "global batch of %d rows is too small for %d ranks; make it %d or another multiple of %d",
			b.GlobalBatch, world, w, world)
	}
	down := b.GlobalBatch / w * w
	return errkind.Errorf(errkind.Invalid, "global batch of %d rows cannot be cut into %d equal parts; make it %d or %d, or use %d ranks",
		b.GlobalBatch, world, down, down+w, nearestDivisor(b.GlobalBatch, w))
}

// nearestDivisor is the largest divisor of n below limit.
func nearestDivisor(n, limit int64) int64 {
	for d := limit - 1; d > 1; d-- {
		if n%d == 0 {
			return d
		}
	}
	return 1
}

// NumSteps is the number of steps of an epoch of rows rows in all, the OriginStep steps already taken included; -1
// while rows is unknown.
func (b Batching) NumSteps(rows int64) int64 {
	if rows < 0 {
		return -1
	}
	left := max(0, rows-b.OriginRow)
	steps := left / b.GlobalBatch
	if b.Tail != TailDrop && left%b.GlobalBatch != 0 {
		steps++
	}
	return b.OriginStep + steps
}

// Step is the global batch of a step: numRows rows of which the first valid ones are those of the stream from first
// on. A pad step repeats them cyclically up to numRows; a short step has numRows = valid (ranks that then have none get one
// padded row each besides). All are 0 for a step that there is not.
func (b Batching) Step(rows, step int64) (first, numRows, valid int64) {
	if step < b.OriginStep || (rows >= 0 && step >= b.NumSteps(rows)) {
		return 0, 0, 0
	}
	first = b.OriginRow + (step-b.OriginStep)*b.GlobalBatch
	if rows < 0 || rows-first >= b.GlobalBatch {
		return first, b.GlobalBatch, b.GlobalBatch
	}
	valid = rows - first
	if b.Tail == TailShort {
		return first, valid, valid
	}
	return first, b.GlobalBatch, valid
}

// StepOfRow is the step that a row of the stream belongs to, were all steps full; -1 for a row before OriginRow.
// Under drop it can be one more than there are.
func (b Batching) StepOfRow(row int64) int64 {
	if row < b.OriginRow {
		return -1
	}
	return b.OriginStep + (row-b.OriginRow)/b.GlobalBatch
}

// RankRows is what rank of world gets of a step, in order; world is one that CheckWorld accepts. Every rank gets at
// least one row, valid or not, of every step; nil is returned only for a step or rank that there is not.
func (b Batching) RankRows(rows, step int64, rank, world int) []Segment {
	first, numRows, valid := b.Step(rows, step)
	if numRows == 0 || rank < 0 || rank >= world {
		return nil
	}
	r, w := int64(rank), int64(world)
	if numRows < b.GlobalBatch {
		return shortRows(first, numRows, r, w)
	}
	each := numRows / w
	return cyclicRows(first, valid, r*each, (r+1)*each)
}

// shortRows deals rest rows from first on in parts of floor or ceil of rest/world, the larger ones first.
func shortRows(first, rest, rank, world int64) []Segment {
	each, larger := rest/world, rest%world
	n := each
	if rank < larger {
		n++
	}
	if n == 0 {
		return []Segment{{First: first + rank%rest, NumRows: 1}}
	}
	return []Segment{{First: first + rank*each + min(rank, larger), NumRows: n, Valid: true}}
}

// cyclicRows is rows from..to-1 of a batch whose row i is row i%valid of those from first on, valid once only.
func cyclicRows(first, valid, from, to int64) []Segment {
	var segments []Segment
	for from < to {
		offset := from % valid
		n := min(to-from, valid-offset)
		segments = append(segments, Segment{First: first + offset, NumRows: n, Valid: from < valid})
		from += n
	}
	return segments
}
