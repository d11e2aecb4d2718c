package ledger

import (
	"slices"

	"github.com/millrace/millrace/preprocess/lineage"
)

// Live is everything that is placed and not freed, and every sealed batch that is not consumed: what a sidecar that
// joins late must be told.
func (l *Ledger) Live() Effects {
	eff := Effects{Sealed: slices.Clone(l.sealed)}
	for _, e := range l.epochs {
		for _, p := range sortedKeys(e.sources) {
			s := e.sources[p]
			for i := s.freed; i < s.placed; i++ {
				eff.Placed = append(eff.Placed, Placement{Output: *s.outputs[i], FirstRow: s.rowOf(i)})
			}
		}
		if e.ended {
			eff.Ended = append(eff.Ended, EpochEnd{Epoch: e.number, Rows: e.rows, Steps: e.batching.NumSteps(e.rows)})
		}
	}
	return eff
}

// Records are the reports of a source partition's outputs, in order; none when they came to nothing yet or are needed no
// more.
func (l *Ledger) Records(source lineage.ID) []Output {
	i := slices.IndexFunc(l.epochs, func(e *epoch) bool { return e.number == source.Epoch })
	if i < 0 {
		return nil
	}
	s := l.epochs[i].sources[int64(source.Source)] //nolint:gosec // Those above are not there.
	if s == nil {
		return nil
	}
	out := make([]Output, len(s.outputs))
	for k, o := range s.outputs {
		out[k] = *o
	}
	return out
}

// Awaited is the source partition that the next global batch waits for.
func (l *Ledger) Awaited() lineage.ID {
	for _, e := range l.epochs {
		if !e.ended {
			return lineage.SourceID(e.number, uint64(e.next)) //nolint:gosec // Never negative.
		}
	}
	if n := len(l.epochs); n > 0 {
		return lineage.SourceID(l.epochs[n-1].number+1, 0)
	}
	return lineage.SourceID(l.cfg.Start.Epoch, uint64(l.cfg.Start.Partition)) //nolint:gosec // Never negative.
}

// NumSealed is the number of sealed batches that are not consumed by every rank.
func (l *Ledger) NumSealed() int { return len(l.sealed) }

// HeldBytes is the size of all outputs that are recorded and not freed.
func (l *Ledger) HeldBytes() int64 {
	var total int64
	for _, e := range l.epochs {
		for _, s := range e.sources {
			for _, o := range s.outputs[s.freed:] {
				total += o.Bytes
			}
		}
	}
	return total
}

// Find is the position of a sealed batch's beginning or end, if the ledger remembers it.
func (l *Ledger) Find(number uint64, step, row int64) (Position, bool) {
	same := func(p Position) bool { return p.Epoch == number && p.Step == step && p.Row == row }
	for _, s := range l.sealed {
		if same(s.Begin) {
			return s.Begin, true
		}
		if same(s.End) {
			return s.End, true
		}
	}
	if same(l.cfg.Start) {
		return l.cfg.Start, true
	}
	return Position{}, false
}

// Passed says whether the first rows of a source partition are consumed by every rank, or lie before the start.
func (l *Ledger) Passed(source lineage.ID, rows int64) bool {
	e, s, _ := l.locate(source)
	switch {
	case e == nil:
		return true
	case s.base < 0:
		return false
	}
	return s.base+rows <= e.consumed
}
