package ledger

import (
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/lineage"
)

// place hands out the placements of s that are known, then moves on.
func (l *Ledger) place(e *epoch, s *source, eff *Effects) {
	if s.base < 0 {
		return
	}
	for ; s.placed < len(s.outputs) && (s.done || s.follows(s.outputs[s.placed].ID)); s.placed++ {
		o := s.outputs[s.placed]
		eff.Placed = append(eff.Placed, Placement{Output: *o, FirstRow: s.rowOf(s.placed)})
	}
	eff.Freed = e.freeConsumed(eff.Freed)
	l.advance(e, eff)
}

// follows says whether id is known to be the next output in order, and moves on past it if so.
func (s *source) follows(id lineage.ID) bool {
	for s.next != id {
		if !s.carry() {
			return false
		}
	}
	s.next.Path[s.next.Depth-1]++
	return true
}

// carry moves next on to the first output of the next input of some stage, if all outputs of the present one are placed.
func (s *source) carry() bool {
	for depth := int(s.next.Depth) - 1; depth > 0; depth-- {
		input := s.next
		input.Depth = uint8(depth) //nolint:gosec // Smaller than another depth.
		clear(input.Path[depth:])
		if n, done := s.inputs[input]; done && s.next.Path[depth] == uint32(n) { //nolint:gosec // Counts are small.
			clear(s.next.Path[depth:])
			s.next.Path[depth-1]++
			return true
		}
		if s.next.Path[depth] != 0 {
			return false
		}
	}
	return false
}

// advance moves the contiguous part of e forward and seals what it covers.
func (l *Ledger) advance(e *epoch, eff *Effects) {
	for !e.ended {
		if e.next == l.cfg.NumPartitions {
			e.rows = e.nextBase
			l.seal(e, e.rows, eff)
			l.end(e, eff)
			return
		}
		s := e.sources[e.next]
		if s == nil {
			return
		}
		if s.base < 0 {
			s.base = e.nextBase
			l.place(e, s, eff) // comes back here with the base set
			return
		}
		l.seal(e, s.base+s.placedRows(), eff)
		if !s.done {
			if s.failed != nil && l.isOldest(e) {
				eff.Failed = s.failed
			}
			return
		}
		if s.failed = l.countBad(e, s, eff); s.failed != nil {
			if l.isOldest(e) {
				eff.Failed = s.failed
			}
			return
		}
		e.nextBase += s.rows()
		e.next++
	}
}

// countBad counts the bad samples of a source partition, in stream order, and says when there are too many. What was sealed
// before depends on the data alone, so every run ends at the same batch.
func (l *Ledger) countBad(e *epoch, s *source, eff *Effects) error {
	if s.failed != nil {
		return s.failed // it was counted before
	}
	at := int64(0)
	for _, b := range s.bad {
		if b.Index > at {
			e.badRun = 0
		}
		at = b.Index + 1
		e.bad++
		e.badRun++
		eff.Bad = append(eff.Bad, b)
		if e.badRun > l.cfg.MaxBad {
			return errkind.Errorf(errkind.BadData,
				"%d bad samples in a row, and max_bad allows %d; the last is: %s. If the data is meant to be like this, raise max_bad", e.badRun, l.cfg.MaxBad, b.Text)
		}
		if e.bad > l.cfg.MaxBadPerEpoch {
			return errkind.Errorf(errkind.BadData,
				"%d bad samples in epoch %d, and max_bad_fraction allows %d; the last is: %s. If the data is meant to be like this, raise max_bad_fraction",
				e.bad, e.number, l.cfg.MaxBadPerEpoch, b.Text)
		}
	}
	if at < l.cfg.Samples(e.next) {
		e.badRun = 0
	}
	return nil
}

// isOldest says whether everything before e is sealed.
func (l *Ledger) isOldest(e *epoch) bool {
	for _, earlier := range l.epochs {
		if earlier == e {
			return true
		}
		if !earlier.ended {
			return false
		}
	}
	return false
}

// seal emits the batches of e that end at or before the contiguous row.
func (l *Ledger) seal(e *epoch, contiguous int64, eff *Effects) {
	complete := e.rows >= 0 && contiguous >= e.rows
	for {
		first, rows, valid := e.batching.Step(e.rows, e.nextStep)
		if rows == 0 || first+valid > contiguous || (valid < e.batching.GlobalBatch && !complete) {
			return
		}
		end := Position{Epoch: e.number, Step: e.nextStep + 1, Row: first + valid}
		end.Partition, end.RowInPartition = l.find(e, first+valid)
		begin := Position{Epoch: e.number, Step: e.nextStep, Row: first}
		begin.Partition, begin.RowInPartition = l.find(e, first)
		sealed := Sealed{Begin: begin, End: end, Rows: valid}
		eff.Sealed, l.sealed = append(eff.Sealed, sealed), append(l.sealed, sealed)
		e.nextStep++
	}
}

// find says in which source partition the stream row lies, looking back from the contiguous end where it can't be
// computed.
func (l *Ledger) find(e *epoch, row int64) (partition, within int64) {
	if l.cfg.KeepsRows {
		each := l.cfg.Samples(0)
		return row / each, row % each
	}
	p, base := e.next, e.nextBase
	if s := e.sources[p]; s != nil && s.done && row >= base+s.rows() {
		return p + 1, row - base - s.rows()
	}
	for row < base && p > e.first {
		p--
		base = e.sources[p].base
	}
	return p, row - base
}

func (l *Ledger) end(e *epoch, eff *Effects) {
	e.ended = true
	eff.Ended = append(eff.Ended, EpochEnd{Epoch: e.number, Rows: e.rows, Steps: e.batching.NumSteps(e.rows)})
	// What the next epoch already knows may now be the oldest failure.
	if i := int(e.number - l.epochs[0].number); i+1 < len(l.epochs) { //nolint:gosec // At most maxEpochsAhead.
		l.advance(l.epochs[i+1], eff)
	}
}
