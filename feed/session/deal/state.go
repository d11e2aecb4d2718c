package deal

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/millrace/millrace/internal/errkind"
)

// State is the dealing of one job to the ranks of one host. The zero State is not usable. It is not safe for
// concurrent use.
type State struct {
	cfg        Config
	generation uint64
	start      Position
	epochs     map[uint64]*epoch
	seats      []*seat // by number
	last       uint64  // no epoch follows this one, if ended
	ended      bool
	marks      map[int]place // what was last told of a seat in the generation, also after it has left
	reach      map[int]place // what a seat that has left would have got next
	out        []Action
}

// New returns a State without ranks. Its errors are those of [Config.Validate].
func New(cfg Config) (*State, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &State{cfg: cfg, epochs: map[uint64]*epoch{}, marks: map[int]place{}, reach: map[int]place{}}
	if cfg.Epochs > 0 {
		s.last, s.ended = cfg.Epochs-1, true
	}
	return s, nil
}

// Config is what s was made from.
func (s *State) Config() Config { return s.cfg }

// Generation is the number of the generation under way; 0 before the first.
func (s *State) Generation() uint64 { return s.generation }

// Take gives the actions that have come up since the last call, in order.
func (s *State) Take() []Action {
	out := s.out
	s.out = nil
	return out
}

func (s *State) emit(a Action) { s.out = append(s.out, a) }

func (s *State) seat(id int) *seat {
	i, found := slices.BinarySearchFunc(s.seats, id, func(r *seat, id int) int { return cmp.Compare(r.id, id) })
	if !found {
		return nil
	}
	return s.seats[i]
}

// Join adds a rank that has no position yet. A rank that was there already begins anew.
func (s *State) Join(id int) error {
	if id < 0 || id >= s.cfg.NumSeats() {
		return errkind.Errorf(errkind.Invalid, "rank %d of %d: ranks count from 0 to %d", s.cfg.RankOf(id), s.cfg.World, s.cfg.World-1)
	}
	s.Leave(id)
	i, _ := slices.BinarySearchFunc(s.seats, id, func(r *seat, id int) int { return cmp.Compare(r.id, id) })
	s.seats = slices.Insert(s.seats, i, &seat{id: id})
	return nil
}

// Leave takes a rank out and drops all that was held for it.
func (s *State) Leave(id int) {
	r := s.seat(id)
	if r == nil {
		return
	}
	s.withdraw(r)
	s.seats = slices.DeleteFunc(s.seats, func(r *seat) bool { return r.id == id })
	s.forget()
}

// withdraw takes r out of the generation.
func (s *State) withdraw(r *seat) {
	if r.dealt {
		s.reach[r.id] = r.place(r.sent)
	}
	for _, b := range r.window {
		s.drop(b)
	}
	*r = seat{id: r.id}
}

// Stop takes ranks out of the generation, because what they asked for has failed; they may ask again.
func (s *State) Stop(ids ...int) {
	for _, id := range ids {
		if r := s.seat(id); r != nil {
			s.withdraw(r)
		}
	}
	s.forget()
}

// Ask says that a stream of a rank begins at a position. Where the rank is within its window there, it goes on; else
// it waits for a generation that begins at that position.
func (s *State) Ask(id int, pos Position) error {
	r := s.seat(id)
	if r == nil {
		return errkind.Errorf(errkind.Internal, "rank %d asked for a position without having joined", id)
	}
	r.moved = false
	if r.asked != nil && *r.asked == pos {
		return nil
	}
	if number, ok := s.find(r, pos); ok {
		s.resume(r, pos.Epoch, number)
		return nil
	}
	s.withdraw(r)
	s.forget()
	r.asked = &pos
	if s.generation > 0 && s.rejoins(id, pos) {
		if at := (place{epoch: pos.Epoch, step: pos.Step}); s.mark(id) != at {
			// It has consumed what lies before, and died before it could say so.
			s.marks[id] = at
			s.emit(Mark{Seat: id, Generation: s.generation, Epoch: pos.Epoch, Step: pos.Step})
		}
		s.emit(Reattach{})
		return nil
	}
	s.emit(Seek{Seat: id, Position: pos})
	return nil
}

// rejoins says whether a position is where a seat was in the generation under way: between what it has told to be
// consumed and what it was handed.
func (s *State) rejoins(id int, pos Position) bool {
	at, mark := place{epoch: pos.Epoch, step: pos.Step}, s.mark(id)
	if at != mark && (at.before(mark) || s.reach[id].before(at)) {
		return false
	}
	return s.holds(pos)
}

// mark is what was last told of a seat.
func (s *State) mark(id int) place {
	if mark, ok := s.marks[id]; ok {
		return mark
	}
	return place{epoch: s.start.Epoch, step: s.start.Step}
}

// holds says whether a position lies in the generation, as it is cut.
func (s *State) holds(pos Position) bool {
	if pos.Epoch < s.start.Epoch || (pos.Epoch == s.start.Epoch && pos.Step < s.start.Step) {
		return false
	}
	e := s.epoch(pos.Epoch)
	return e.firstRow(pos.Step) == pos.Row && (e.rows < 0 || pos.Step <= e.numSteps())
}

// find is the number of the batch of r at which a stream from pos goes on without a new generation.
func (s *State) find(r *seat, pos Position) (int64, bool) {
	if !r.dealt {
		return 0, false
	}
	for number := r.base; number <= r.sent; number++ {
		at := r.place(number)
		if at.part != 0 {
			continue
		}
		e := s.epoch(at.epoch)
		if at.epoch == pos.Epoch && at.step == pos.Step && e.firstRow(at.step) == pos.Row {
			return number, true
		}
		if at.step == 0 && s.ends(pos, at.epoch) {
			return number, true
		}
	}
	return 0, false
}

// ends says whether pos is the end of an epoch and nothing lies between it and the beginning of epoch number.
func (s *State) ends(pos Position, number uint64) bool {
	if pos.Epoch >= number {
		return false
	}
	for i := pos.Epoch; i < number; i++ {
		e := s.epochs[i]
		if e == nil || e.rows < 0 || pos.Step != e.numSteps() || pos.Row != e.firstRow(pos.Step) {
			return false
		}
		pos = Position{Epoch: i + 1}
	}
	return true
}

// resume makes number the next batch of r: all before it is consumed, all from it on is not.
func (s *State) resume(r *seat, epoch uint64, number int64) {
	r.streamEpoch, r.streamFirst = epoch, number
	if number < r.consumed {
		r.consumed = number
	}
	spoiled := slices.ContainsFunc(r.window[number-r.base:], func(b *Batch) bool { return b.spoiled })
	r.sent = number
	s.consume(r, number)
	if spoiled {
		// All of them: those behind would keep what those before them need.
		for number := r.sent; number < r.planned(); number++ {
			s.drop(r.at(number))
		}
	}
	for number := s.limit(r); number < r.planned(); number++ {
		s.drop(r.at(number))
	}
	s.fill(r)
}

// Started begins a generation: ranks that asked for its position are granted it, and all placements are void. The
// generation under way can begin again after a Resync; then ranks that came back to where they were are granted that.
func (s *State) Started(generation uint64, pos Position) {
	switch {
	case generation < s.generation:
		return
	case generation == s.generation:
		for _, r := range s.seats {
			if r.asked != nil && s.rejoins(r.id, *r.asked) {
				s.begin(r, *r.asked)
				s.fill(r)
			}
		}
		return
	}
	fresh := s.generation == 0
	from := map[*seat]int64{} // the row of the first batch that is not consumed
	for _, r := range s.seats {
		if at := r.place(r.base); r.dealt {
			from[r] = s.epoch(at.epoch).firstRow(at.step)
		}
	}
	rows := map[uint64]int64{}
	for number, e := range s.epochs {
		rows[number] = e.rows
	}
	s.generation, s.start = generation, pos
	clear(s.epochs)
	clear(s.marks)
	clear(s.reach)
	// The rows of an epoch are the same in every generation.
	for number, n := range rows {
		s.epoch(number).rows = n
	}
	for _, r := range s.seats {
		switch {
		case r.asked != nil && grants(pos, *r.asked):
			epoch := r.asked.Epoch
			s.begin(r, pos)
			r.streamEpoch = epoch
		case r.asked != nil && fresh && s.holds(*r.asked):
			// The generation was under way when this process began.
			s.begin(r, *r.asked)
		case r.dealt:
			s.carryOver(r, from[r])
		}
	}
	for _, r := range s.seats {
		s.fill(r)
	}
}

// grants says whether a generation that begins at pos is what was asked for: the end of an epoch is the beginning of
// the next.
func grants(pos, asked Position) bool {
	return pos == asked || (pos.Epoch == asked.Epoch+1 && pos.Step == 0 && pos.Row == 0 && asked.Step > 0)
}

// begin puts r at a position of the generation.
func (s *State) begin(r *seat, pos Position) {
	s.withdraw(r)
	r.streamEpoch = pos.Epoch
	r.next = place{epoch: pos.Epoch, step: pos.Step}
	if peers := s.peersOf(r); len(peers) > 0 {
		number, ok := s.number(peers[0], r.next)
		r.base, r.consumed, r.sent, r.streamFirst = number, number, number, number
		r.moved = !ok
	}
	r.dealt = true
	s.marks[r.id] = r.next
	delete(s.reach, r.id)
	s.advance(r)
}

// number is the number that a place in the generation has for a peer. It is not known where epochs whose rows nobody
// could know beforehand lie between.
func (s *State) number(p *seat, at place) (int64, bool) {
	from, parts := p.place(p.base), int64(s.cfg.Accumulation)
	steps := at.step - from.step
	for e := min(at.epoch, from.epoch); e < max(at.epoch, from.epoch); e++ {
		epoch := s.epochs[e]
		if epoch == nil && s.cfg.Rows >= 0 {
			epoch = s.epoch(e)
		}
		if epoch == nil || epoch.rows < 0 {
			return 0, false
		}
		n := epoch.numSteps()
		if at.epoch > from.epoch {
			steps += n
		} else {
			steps -= n
		}
	}
	return p.base + steps*parts + int64(at.part-from.part), true
}

// carryOver takes r into a new generation that it did not ask for (the dispatcher was away), so that its stream goes
// on with the batch it would have had next: what is not consumed is planned again, with the numbers it had. from is
// the row at which the first of it began. Where the new generation does not hold that, the stream has moved.
func (s *State) carryOver(r *seat, from int64) {
	first, target, old := r.place(r.base), r.place(r.sent), *r
	s.begin(r, s.start)
	e := s.epoch(first.epoch)
	reached := first.epoch > s.start.Epoch || (first.epoch == s.start.Epoch && first.step >= s.start.Step)
	if !reached || e.firstRow(first.step) != from {
		r.moved = true
		return
	}
	r.base, r.consumed, r.sent = old.base, old.consumed, old.sent
	r.cursor, r.cursorAt = old.cursor, old.cursorAt
	r.streamEpoch, r.streamFirst = old.streamEpoch, old.streamFirst
	r.next = first
	s.advance(r)
	for r.planned() < r.sent && !r.done {
		s.plan(r)
	}
	if r.planned() != r.sent || r.next != target {
		s.begin(r, s.start)
		r.moved = true
	}
}

// Resync asks the dispatcher for every rank's position again, after the connection to it was lost.
func (s *State) Resync() {
	for _, r := range s.seats {
		switch {
		case r.asked != nil:
			s.emit(Seek{Seat: r.id, Position: *r.asked})
		case r.dealt:
			at := r.place(r.base)
			seek := Seek{
				Seat: r.id, Position: Position{Epoch: at.epoch, Step: at.step, Row: s.epoch(at.epoch).firstRow(at.step)}, Generation: s.generation,
			}
			if r.cursorAt == at {
				seek.Cursor = r.cursor
			}
			s.emit(seek)
		}
	}
}

// epoch is the entry of an epoch of the generation, made when it is not there.
func (s *State) epoch(number uint64) *epoch {
	e := s.epochs[number]
	if e == nil {
		at := Position{Epoch: number}
		if number == s.start.Epoch {
			at = s.start
		}
		e = &epoch{batching: s.cfg.batching(at), rows: s.cfg.Rows, sealed: map[int64]sealed{}, maxSealed: -1}
		s.epochs[number] = e
	}
	return e
}

// forget drops what every rank has consumed.
func (s *State) forget() {
	var low place
	var streams uint64 // the earliest epoch that a stream carries: a rank may ask for its end
	found := false
	for _, r := range s.seats {
		if !r.dealt {
			continue
		}
		at := r.place(r.base)
		if !found || at.epoch < low.epoch || (at.epoch == low.epoch && at.step < low.step) {
			low = at
		}
		if !found || r.streamEpoch < streams {
			streams = r.streamEpoch
		}
		found = true
	}
	if !found {
		clear(s.epochs)
		return
	}
	for number, e := range s.epochs {
		switch {
		case number < low.epoch && number < streams:
			delete(s.epochs, number)
		case number < low.epoch:
			e.places, e.sealed = nil, map[int64]sealed{}
		case number == low.epoch:
			e.forget(low.step)
		}
	}
}

// Waits says what a rank waits for, as far as it can be seen from here; empty when it waits for nothing.
func (s *State) Waits(id int) string {
	r := s.seat(id)
	switch {
	case r == nil:
		return ""
	case r.asked != nil:
		return fmt.Sprintf("rank %d waits for every rank to ask for epoch %d, step %d", id, r.asked.Epoch, r.asked.Step)
	case !r.dealt || r.sent >= r.planned():
		return ""
	}
	b := r.at(r.sent)
	what := fmt.Sprintf("rank %d waits for step %d of epoch %d: ", id, b.Step, b.Epoch)
	switch {
	case len(b.need) > 0:
		return what + fmt.Sprintf("rows %d to %d are not made yet", b.need[0].from, b.need[0].to-1)
	case b.state == stateFetching:
		for i := range b.Slices {
			if !b.Slices[i].fetched {
				return what + fmt.Sprintf("partition %s is fetched from worker %s", b.Slices[i].Place.ID, b.Slices[i].Place.Worker)
			}
		}
	case b.state == stateAssembling:
		return what + "its batch is put together"
	}
	e := s.epoch(b.Epoch)
	if _, ok := e.sealed[b.Step]; !ok {
		return what + "the global batch is not sealed yet"
	}
	if !e.allows(b) {
		return what + "it is not known yet whether the epoch ends with it"
	}
	return ""
}
