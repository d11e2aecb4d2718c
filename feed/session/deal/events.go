package deal

import (
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/order"
)

// Placed gives partitions their places. A partition that comes again, from another attempt or worker, takes the place
// of the first where its rows are still to be fetched. Places that contradict others are an error of kind Internal.
func (s *State) Placed(generation uint64, places []Placement) error {
	if generation != s.generation {
		return nil
	}
	for _, p := range places {
		if err := s.place(p); err != nil {
			return err
		}
	}
	return nil
}

func (s *State) place(p Placement) error {
	if p.NumRows == 0 || s.passed(p.ID.Epoch, p.end()) {
		return nil
	}
	replaced, err := s.epoch(p.ID.Epoch).place(p)
	if err != nil {
		return err
	}
	for _, r := range s.seats {
		for _, b := range r.window {
			if b.Epoch != p.ID.Epoch {
				continue
			}
			if replaced {
				s.replace(b, p)
			} else {
				s.bind(b, p)
			}
			s.check(b)
		}
	}
	return nil
}

// passed says whether no rank needs rows of an epoch below end.
func (s *State) passed(number uint64, end int64) bool {
	for _, r := range s.seats {
		if !r.dealt {
			continue
		}
		at := r.place(r.base)
		if number > at.epoch || (number == at.epoch && end > s.epoch(number).firstRow(at.step)) {
			return false
		}
	}
	return true
}

// replace lets slices of b that are still to be fetched come from p.
func (s *State) replace(b *Batch, p Placement) {
	for i := range b.Slices {
		slice := &b.Slices[i]
		if slice.fetched || slice.Place.FirstRow != p.FirstRow {
			continue
		}
		slice.Place = p
		if b.state == stateFetching {
			s.emit(Fetch{Batch: b, Slice: i})
		}
	}
}

// Sealed allows the hand-over of a global batch of numRows rows of the stream. A batch that is not where it should be
// is an error of kind Internal.
func (s *State) Sealed(generation uint64, pos Position, numRows int64, cursor string) error {
	if generation != s.generation || s.passed(pos.Epoch, pos.Row+max(1, numRows)) {
		return nil
	}
	e := s.epoch(pos.Epoch)
	first, _, valid := e.batching.Step(e.rows, pos.Step)
	wrong := valid == 0 || first != pos.Row
	if e.rows >= 0 {
		wrong = wrong || valid != numRows
	} else {
		wrong = wrong || numRows > valid
	}
	if wrong {
		return errkind.Errorf(errkind.Internal, "step %d of epoch %d was sealed with %d rows from row %d on; here it has %d from row %d on",
			pos.Step, pos.Epoch, numRows, pos.Row, valid, first)
	}
	e.forgotten = min(e.forgotten, pos.Step)
	e.sealed[pos.Step] = sealed{numRows: numRows, cursor: cursor}
	e.maxSealed = max(e.maxSealed, pos.Step)
	return nil
}

// EpochEnd tells the rows and steps of an epoch, and whether it is the last one. Figures that contradict those known
// are an error of kind Internal.
func (s *State) EpochEnd(generation, number uint64, rows, steps int64, last bool) error {
	if generation != s.generation {
		return nil
	}
	e := s.epoch(number)
	known := e.rows
	if known >= 0 && known != rows {
		return errkind.Errorf(errkind.Internal, "epoch %d ended with %d rows; it was to have %d", number, rows, known)
	}
	if n := e.batching.NumSteps(rows); rows < 0 || n != steps {
		return errkind.Errorf(errkind.Internal, "epoch %d ended with %d rows in %d steps; here these are %d steps", number, rows, steps, n)
	}
	e.rows = rows
	if last {
		s.last, s.ended = number, true
	}
	for _, r := range s.seats {
		if r.dealt {
			s.settle(r, number)
			s.fill(r)
		}
	}
	s.forget()
	return nil
}

// settle plans anew what was planned for r while the rows of an epoch were unknown and has come out otherwise.
func (s *State) settle(r *seat, number uint64) {
	e := s.epoch(number)
	for i, b := range r.window {
		gone := s.ended && b.Epoch > s.last
		if b.Epoch == number {
			segments := s.segments(e, r.id, b.Step, b.Part)
			gone = gone || !sameSegments(segments, b.segments)
		}
		if !gone {
			continue
		}
		r.next = place{b.Epoch, b.Step, b.Part}
		for _, b := range r.window[i:] {
			s.drop(b)
		}
		clear(r.window[i:])
		r.window = r.window[:i]
		break
	}
	s.advance(r)
}

// Fetched says that the data of a slice of b has arrived. It must be one that was asked for since b was last dropped.
func (s *State) Fetched(b *Batch, slice int) {
	if b.state != stateFetching || b.Slices[slice].fetched {
		return
	}
	b.Slices[slice].fetched = true
	b.unfetched--
	s.check(b)
}

// Assembled says that the record batch of b is there.
func (s *State) Assembled(b *Batch) {
	if b.state == stateAssembling {
		b.state = stateReady
	}
}

// Verdict is what a stream should do next.
type Verdict uint8

const (
	// Wait says that the next event is to be waited for.
	Wait Verdict = iota + 1
	// Ready says that the batch is to be handed over.
	Ready
	// End says that the stream has carried the rest of its epoch.
	End
	// Moved says that a generation has begun at another position; the rank has to ask for it.
	Moved
)

// Next hands the next batch over to the stream of a rank, of which at most credit batches may be unconsumed.
func (s *State) Next(id, credit int) (*Batch, Verdict) {
	r := s.seat(id)
	switch {
	case r == nil || r.moved:
		return nil, Moved
	case r.asked != nil || !r.dealt:
		return nil, Wait
	case r.place(r.sent).epoch > r.streamEpoch || (r.done && r.sent == r.planned()):
		return nil, End
	case r.sent == r.planned() || r.sent-r.consumed >= int64(credit) || r.sent-s.slowest(r) > int64(s.cfg.Prefetch):
		return nil, Wait
	}
	b := r.at(r.sent)
	e := s.epoch(b.Epoch)
	if b.state != stateReady || !e.allows(b) {
		return nil, Wait
	}
	b.Last = b.LastPart && e.rows >= 0 && b.Step+1 == e.numSteps()
	b.NextRow = 0
	if !b.Last {
		b.NextRow = e.firstRow(b.Step) + s.cfg.GlobalBatch
	}
	b.Cursor = ""
	if b.LastPart {
		b.Cursor = e.sealed[b.Step].cursor
	}
	if b.Last && s.cfg.Rows < 0 {
		b.Cursor = nextEpoch(b.Cursor)
	}
	r.sent++
	return b, Ready
}

// nextEpoch is the beginning of the epoch after that of a cursor. The dispatcher wrote the cursor of the last batch before
// it knew that no rows, or too few for a batch, would follow; a state is to go on with batches, not with an end.
func nextEpoch(text string) string {
	c, err := order.ParseCursor(text)
	if err != nil {
		return text
	}
	c.Epoch++
	c.Step, c.Rows, c.Partition, c.RowInPartition = 0, 0, 0, 0
	return c.String()
}

// slowest is the number of the first batch that a peer of r has not consumed, which r does not run away from: so each
// batch is held by all peers at once. A lone seat waits for nobody.
// One that has come back and not asked yet holds the others where it was.
func (s *State) slowest(r *seat) int64 {
	least := r.sent
	if s.cfg.peers() == 1 {
		return least
	}
	for _, p := range s.seats {
		if p == r || p.moved || s.cfg.RankOf(p.id) != s.cfg.RankOf(r.id) {
			continue
		}
		mark, told := s.marks[p.id]
		switch {
		case p.dealt:
			least = min(least, p.consumed)
		case told && (p.asked == nil || s.rejoins(p.id, *p.asked)):
			if number, ok := s.number(r, mark); ok {
				least = min(least, number)
			}
		}
	}
	return least
}

// peersOf is the seats of the rank of r that take part in the generation, but for r.
func (s *State) peersOf(r *seat) []*seat {
	if s.cfg.peers() == 1 {
		return nil
	}
	var peers []*seat
	for _, p := range s.seats {
		if p != r && p.dealt && !p.moved && s.cfg.RankOf(p.id) == s.cfg.RankOf(r.id) {
			peers = append(peers, p)
		}
	}
	return peers
}

// Spoil says that the data of a batch of Next may be changed by whoever has got it, so that it is made again if its rank
// asks for it again.
func (*State) Spoil(b *Batch) { b.spoiled = true }

// Renew has all batches of a rank made again that are not consumed.
func (s *State) Renew(id int) {
	r := s.seat(id)
	if r == nil || !r.dealt {
		return
	}
	for _, b := range r.window {
		s.drop(b)
	}
	s.fill(r)
}

// Filled is how many batches of a rank are ready and not handed over.
func (s *State) Filled(id int) int {
	r := s.seat(id)
	if r == nil || !r.dealt {
		return 0
	}
	n := 0
	for number := r.sent; number < r.planned() && r.at(number).state == stateReady; number++ {
		n++
	}
	return n
}

// Consumed says that a rank has consumed the first count batches of its stream. Lower counts than before, and batches
// that were not handed over, are ignored.
func (s *State) Consumed(id int, count int64) {
	r := s.seat(id)
	if r == nil || !r.dealt || count < 0 {
		return
	}
	s.consume(r, min(r.sent, r.streamFirst+min(count, r.sent-r.streamFirst)))
	s.fill(r)
}

// consume moves the consumed mark of r up to number.
func (s *State) consume(r *seat, number int64) {
	var mark *Mark
	for ; r.consumed < number; r.consumed++ {
		b := r.at(r.consumed)
		s.drop(b)
		if b.LastPart {
			mark = &Mark{Seat: r.id, Generation: s.generation, Epoch: b.Epoch, Step: b.Step + 1}
			r.cursor = b.Cursor
		}
	}
	if mark == nil {
		return
	}
	s.emit(*mark)
	s.marks[r.id] = place{epoch: mark.Epoch, step: mark.Step}
	r.forget()
	r.cursorAt = r.place(r.base)
	s.forget()
}

// Sent is the number of the next batch of a rank to be handed over.
func (s *State) Sent(id int) int64 {
	if r := s.seat(id); r != nil {
		return r.sent
	}
	return 0
}

// Due is the number of the batch of a rank that is handed over next, to the seat of it here that has least.
func (s *State) Due(rank int) int64 {
	least := int64(-1)
	for seat := rank * s.cfg.peers(); seat < (rank+1)*s.cfg.peers(); seat++ {
		if r := s.seat(seat); r != nil && r.dealt && (least < 0 || r.sent < least) {
			least = r.sent
		}
	}
	return max(0, least)
}

// Unconsumed is how many batches of a rank are handed over and not consumed.
func (s *State) Unconsumed(id int) int64 {
	if r := s.seat(id); r != nil {
		return r.sent - r.consumed
	}
	return 0
}
