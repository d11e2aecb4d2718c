package deal

import (
	"cmp"
	"maps"
	"slices"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/order"
)

// epoch is what the dispatcher has told of one epoch of the generation.
type epoch struct {
	batching  order.Batching
	rows      int64 // -1 while unknown
	places    []Placement
	sealed    map[int64]sealed // by step
	maxSealed int64
	forgotten int64 // steps before it have been dropped
}

// sealed is a global batch that will not change.
type sealed struct {
	numRows int64
	cursor  string
}

func (e *epoch) numSteps() int64 { return e.batching.NumSteps(e.rows) }

// firstRow is the stream row at which a step begins, the end of the epoch for the step after its last one.
func (e *epoch) firstRow(step int64) int64 {
	row := e.batching.OriginRow + (step-e.batching.OriginStep)*e.batching.GlobalBatch
	if e.rows >= 0 {
		row = min(row, e.rows)
	}
	return row
}

// allows says whether b may be handed over: it is sealed, it is dealt as it will remain (a partial global batch is
// dealt otherwise than a full one), and where it ends its global batch it is known whether that ends the epoch.
func (e *epoch) allows(b *Batch) bool {
	v, ok := e.sealed[b.Step]
	switch {
	case !ok:
		return false
	case e.rows >= 0 || e.maxSealed > b.Step:
		return true
	}
	return !b.LastPart && v.numRows == e.batching.GlobalBatch
}

func byRow(p Placement, row int64) int { return cmp.Compare(p.FirstRow, row) }

// place adds p in its order. replaced is true where a partition of these rows was known already.
func (e *epoch) place(p Placement) (replaced bool, err error) {
	i, found := slices.BinarySearchFunc(e.places, p.FirstRow, byRow)
	if found {
		if e.places[i].NumRows != p.NumRows || e.places[i].ID != p.ID {
			return false, errkind.Errorf(errkind.Internal, "partition %s of %d rows was placed at row %d of epoch %d, where %s of %d rows is",
				p.ID, p.NumRows, p.FirstRow, p.ID.Epoch, e.places[i].ID, e.places[i].NumRows)
		}
		e.places[i] = p
		return true, nil
	}
	if (i > 0 && e.places[i-1].end() > p.FirstRow) || (i < len(e.places) && e.places[i].FirstRow < p.end()) {
		return false, errkind.Errorf(errkind.Internal, "partition %s was placed at rows %d to %d of epoch %d, of which some belong to another",
			p.ID, p.FirstRow, p.end()-1, p.ID.Epoch)
	}
	e.places = slices.Insert(e.places, i, p)
	return false, nil
}

// each calls f for every known partition that holds rows of from..to-1, in order.
func (e *epoch) each(from, to int64, f func(Placement)) {
	i, found := slices.BinarySearchFunc(e.places, from, byRow)
	if !found && i > 0 {
		i--
	}
	for ; i < len(e.places) && e.places[i].FirstRow < to; i++ {
		f(e.places[i])
	}
}

// forget drops what lies before a step.
func (e *epoch) forget(step int64) {
	row := e.firstRow(step)
	gone := 0
	for gone < len(e.places) && e.places[gone].end() <= row {
		gone++
	}
	clear(e.places[:gone])
	e.places = e.places[gone:]
	if step-e.forgotten > int64(len(e.sealed)) {
		maps.DeleteFunc(e.sealed, func(s int64, _ sealed) bool { return s < step })
	}
	for ; e.forgotten < step && len(e.sealed) > 0; e.forgotten++ {
		delete(e.sealed, e.forgotten)
	}
	e.forgotten = max(e.forgotten, step)
}
