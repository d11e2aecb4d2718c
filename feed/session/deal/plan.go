package deal

import (
	"cmp"
	"slices"

	"github.com/millrace/millrace/loader/order"
)

// segments is what a seat gets of a part of a step.
func (s *State) segments(e *epoch, seat int, step int64, part int) []order.Segment {
	return e.batching.RankRows(e.rows, step, part*s.cfg.World+s.cfg.RankOf(seat), s.cfg.World*s.cfg.Accumulation)
}

// sameSegments says whether two batches have the same rows. Where the rows of the epoch were unknown a batch was
// planned as a full one.
func sameSegments(a, b []order.Segment) bool { return len(a) > 0 && slices.Equal(a, b) }

// fill plans batches for r as far as its credit goes and asks for the slices of those that are to be handed over.
func (s *State) fill(r *seat) {
	for r.dealt && !r.done && r.planned() < s.limit(r) {
		s.plan(r)
	}
	for number := r.sent; number < min(r.planned(), s.limit(r)); number++ {
		if b := r.at(number); b.state == stateIdle {
			s.fetch(b)
		}
	}
}

// limit is the number below which r may hold batches.
func (s *State) limit(r *seat) int64 { return r.consumed + int64(s.cfg.Prefetch) + 1 }

// plan adds the next batch to the window of r.
func (s *State) plan(r *seat) {
	at := r.next
	e := s.epoch(at.epoch)
	b := &Batch{
		Seat: r.id, Rank: s.cfg.RankOf(r.id), Number: r.planned(), Generation: s.generation, Epoch: at.epoch, Step: at.step, Part: at.part,
		LastPart: at.part == s.cfg.Accumulation-1,
		segments: s.segments(e, r.id, at.step, at.part),
	}
	for _, v := range b.segments {
		b.NumRows += v.NumRows
		if v.Valid {
			b.NumValid += v.NumRows
		}
	}
	b.need = union(b.segments)
	for _, v := range b.need {
		e.each(v.from, v.to, func(p Placement) { s.bind(b, p) })
	}
	r.window = append(r.window, b)
	if r.next.part++; b.LastPart {
		r.next.part = 0
		r.next.step++
	}
	s.advance(r)
}

// advance moves the place of the next batch of r on to the epoch that has it.
func (s *State) advance(r *seat) {
	for {
		r.done = s.ended && r.next.epoch > s.last
		if r.done {
			return
		}
		e := s.epoch(r.next.epoch)
		if e.rows < 0 || r.next.step < e.numSteps() {
			return
		}
		r.next = place{epoch: r.next.epoch + 1}
	}
}

// bind makes slices of the rows of p that b still needs.
func (s *State) bind(b *Batch, p Placement) {
	rest, taken := cut(b.need, p.FirstRow, p.end())
	b.need = rest
	for _, v := range taken {
		b.Slices = append(b.Slices, Slice{Place: p, First: v.from - p.FirstRow, NumRows: v.to - v.from})
		if b.state == stateFetching {
			b.unfetched++
			s.emit(Fetch{Batch: b, Slice: len(b.Slices) - 1})
		}
	}
}

// fetch asks for all slices of b that are placed.
func (s *State) fetch(b *Batch) {
	b.state = stateFetching
	b.unfetched = len(b.Slices)
	for i := range b.Slices {
		b.Slices[i].fetched = false
		s.emit(Fetch{Batch: b, Slice: i})
	}
}

// drop lets go of the data of b.
func (s *State) drop(b *Batch) {
	if b.state == stateIdle {
		return
	}
	b.state, b.spoiled = stateIdle, false
	s.emit(Drop{Batch: b})
}

// check has b assembled once all its slices are there.
func (s *State) check(b *Batch) {
	if b.state != stateFetching || len(b.need) > 0 || b.unfetched > 0 {
		return
	}
	b.state = stateAssembling
	if b.Pieces == nil {
		b.Pieces = pieces(b)
	}
	s.emit(Assemble{Batch: b})
}

// pieces cuts the segments of b at the borders of its slices.
func pieces(b *Batch) []Piece {
	ordered := make([]int, len(b.Slices))
	for i := range ordered {
		ordered[i] = i
	}
	slices.SortFunc(ordered, func(i, j int) int { return cmp.Compare(b.Slices[i].streamRow(), b.Slices[j].streamRow()) })
	out := make([]Piece, 0, len(b.segments)+len(b.Slices))
	for _, v := range b.segments {
		i, _ := slices.BinarySearchFunc(ordered, v.First, func(i int, row int64) int {
			if b.Slices[i].streamRow()+b.Slices[i].NumRows <= row {
				return -1
			}
			return 1
		})
		for row, end := v.First, v.First+v.NumRows; row < end; i++ {
			slice := &b.Slices[ordered[i]]
			first := row - slice.streamRow()
			n := min(end-row, slice.NumRows-first)
			out = append(out, Piece{Slice: ordered[i], First: first, NumRows: n, Valid: v.Valid})
			row += n
		}
	}
	return out
}
