package deal_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/feed/session/deal"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/order"
	"github.com/millrace/millrace/preprocess/lineage"
)

// Every rank gets exactly the rows that the order deals to it, in order, once, with the right marks of ends, whatever
// the sizes and the arrival of partitions, through broken streams, over epochs; and it never holds more than its credit.
func TestEveryRankGetsItsRowsInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		w.run()
		w.check()
	})
}

// A generation from any position continues with the same global batches, cut from that row, and nothing of the earlier
// generation is handed over.
func TestSeekBeginsAnew(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		for range rapid.IntRange(0, 200).Draw(t, "moves before") {
			moves := w.moves()
			if len(moves) == 0 {
				break
			}
			moves[w.rng.IntN(len(moves))]()
			w.obey()
		}
		pos := deal.Position{Epoch: rapid.Uint64Range(0, uint64(len(w.rows)-1)).Draw(t, "epoch")}
		pos.Row = rapid.Int64Range(0, w.rows[pos.Epoch]).Draw(t, "row")
		pos.Step = 1000 // a step that no window holds
		clear(w.seeks)
		for _, r := range w.local {
			*w.streams[r] = stream{rank: r, resume: pos}
			w.finished[r] = false
		}
		w.run()
		w.check()
	})
}

// When the dispatcher comes back and a new generation begins at the slowest rank's mark, every stream goes on with the
// batch that it would have had next.
func TestStreamsGoOnInTheNextGeneration(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		for range 3 {
			for range w.rng.IntN(300) {
				if moves := w.moves(); len(moves) > 0 {
					moves[w.rng.IntN(len(moves))]()
					w.obey()
				}
			}
			w.loseDispatcher()
		}
		w.run()
		w.check()
	})
}

// loseDispatcher lets the connection break and come back, if the ranks are under way.
func (w *world) loseDispatcher() {
	if len(w.seeks) > 0 || w.gen == 0 || w.state.Generation() != w.gen {
		return
	}
	w.script = nil
	w.lost = true
	w.state.Resync()
	w.obey()
}

// What the dispatcher says against what is known is an error, not a change of the stream.
func TestContradictionsAreErrors(t *testing.T) {
	at := func(source uint64, first, rows int64) deal.Placement {
		return deal.Placement{ID: lineage.SourceID(0, source), FirstRow: first, NumRows: rows}
	}
	for name, event := range map[string]func(*deal.State) error{
		"overlapping partitions":    func(s *deal.State) error { return s.Placed(1, []deal.Placement{at(0, 0, 5), at(1, 3, 4)}) },
		"partition of another size": func(s *deal.State) error { return s.Placed(1, []deal.Placement{at(0, 0, 5), at(0, 0, 4)}) },
		"step at another row":       func(s *deal.State) error { return s.Sealed(1, deal.Position{Step: 1, Row: 3}, 4, "") },
		"step of other rows":        func(s *deal.State) error { return s.Sealed(1, deal.Position{Step: 1, Row: 4}, 3, "") },
		"step that is not there":    func(s *deal.State) error { return s.Sealed(1, deal.Position{Step: 9, Row: 36}, 4, "") },
		"epoch of other rows":       func(s *deal.State) error { return s.EpochEnd(1, 0, 11, 3, false) },
		"epoch of other steps":      func(s *deal.State) error { return s.EpochEnd(1, 0, 10, 2, false) },
	} {
		t.Run(name, func(t *testing.T) {
			s, err := deal.New(deal.Config{GlobalBatch: 4, World: 1, Accumulation: 1, Tail: order.TailPad, Rows: 10, Prefetch: 9})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Join(0); err != nil {
				t.Fatal(err)
			}
			if err := s.Ask(0, deal.Position{}); err != nil {
				t.Fatal(err)
			}
			s.Started(1, deal.Position{})
			if err := event(s); errkind.Of(err) != errkind.Internal {
				t.Errorf("got %v, want an internal error", err)
			}
		})
	}
}

// A rank that leaves and comes back to where it was takes part in the generation under way again, once what was said of
// that has been said again, or to where it had come since it last said so; at any other position it waits for a generation of its own.
func TestRankComesBackToWhereItWas(t *testing.T) {
	s, err := deal.New(deal.Config{GlobalBatch: 2, World: 2, Accumulation: 1, Tail: order.TailPad, Rows: 6, Prefetch: 1})
	if err != nil {
		t.Fatal(err)
	}
	say := func(generation uint64) {
		t.Helper()
		s.Started(generation, deal.Position{})
		err := s.Placed(1, []deal.Placement{{ID: lineage.SourceID(0, 0), NumRows: 6}})
		for step := range int64(3) {
			err = errors.Join(err, s.Sealed(1, deal.Position{Step: step, Row: 2 * step}, 2, ""))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	next := func(id int) *deal.Batch {
		t.Helper()
		for _, a := range s.Take() {
			if a, ok := a.(deal.Fetch); ok {
				s.Fetched(a.Batch, a.Slice)
			}
		}
		for _, a := range s.Take() {
			if a, ok := a.(deal.Assemble); ok {
				s.Assembled(a.Batch)
			}
		}
		b, verdict := s.Next(id, 1)
		if verdict != deal.Ready {
			t.Fatalf("rank %d has no batch: %s", id, s.Waits(id))
		}
		return b
	}
	for id := range 2 {
		if err := errors.Join(s.Join(id), s.Ask(id, deal.Position{})); err != nil {
			t.Fatal(err)
		}
	}
	say(1)
	next(0)
	s.Consumed(0, 1)
	next(1)
	s.Consumed(1, 1)
	if b := next(1); b.Step != 1 {
		t.Fatalf("rank 1 got step %d", b.Step)
	}
	s.Consumed(1, 2)
	s.Take()

	back := deal.Position{Step: 1, Row: 2}
	if err := errors.Join(s.Join(0), s.Ask(0, back)); err != nil {
		t.Fatal(err)
	}
	if got := s.Take(); got[len(got)-1] != deal.Action(deal.Reattach{}) {
		t.Fatalf("coming back asks for %v", got)
	}
	s.Resync()
	want := []deal.Action{deal.Seek{Seat: 0, Position: back}, deal.Seek{Seat: 1, Position: deal.Position{Step: 2, Row: 4}, Generation: 1}}
	if diff := cmp.Diff(want, s.Take()); diff != "" {
		t.Fatalf("seeks (-want +got):\n%s", diff)
	}
	say(1)
	if b := next(0); b.Step != 1 || b.Pieces[0].First != 0 || b.Slices[0].First != 2 {
		t.Errorf("rank 0 got %+v", b)
	}
	if b := next(1); b.Step != 2 {
		t.Errorf("rank 1 got step %d", b.Step)
	}

	// It was handed step 1 and died before it could say that it was done with it.
	if err := errors.Join(s.Join(0), s.Ask(0, deal.Position{Step: 2, Row: 4})); err != nil {
		t.Fatal(err)
	}
	got := s.Take()
	if diff := cmp.Diff([]deal.Action{deal.Mark{Seat: 0, Generation: 1, Step: 2}, deal.Reattach{}}, got[len(got)-2:]); diff != "" {
		t.Errorf("coming back with a later state (-want +got):\n%s", diff)
	}
	say(1)
	if b := next(0); b.Step != 2 {
		t.Errorf("rank 0 got step %d", b.Step)
	}

	// What it was never handed it can't have done with.
	if err := errors.Join(s.Join(1), s.Join(0), s.Ask(0, deal.Position{Epoch: 1, Step: 1, Row: 2})); err != nil {
		t.Fatal(err)
	}
	for _, a := range s.Take() {
		if _, ok := a.(deal.Reattach); ok {
			t.Error("another position asks for the generation under way")
		}
	}
	say(1)
	if _, verdict := s.Next(0, 1); verdict != deal.Wait {
		t.Errorf("a rank elsewhere was granted the generation under way: verdict %d", verdict)
	}
}

// Settings that cannot be dealt are refused.
func TestConfigIsChecked(t *testing.T) {
	good := deal.Config{GlobalBatch: 12, World: 2, Accumulation: 3, Tail: order.TailDrop, Rows: -1, Prefetch: 2}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	if n := good.BatchRows(); n != 2 {
		t.Errorf("batch of %d rows, want 2", n)
	}
	for name, change := range map[string]func(*deal.Config){
		"world":        func(c *deal.Config) { c.World = 0 },
		"accumulation": func(c *deal.Config) { c.Accumulation = 0 },
		"prefetch":     func(c *deal.Config) { c.Prefetch = 0 },
		"rows":         func(c *deal.Config) { c.Rows = -2 },
		"tail":         func(c *deal.Config) { c.Tail = order.TailInvalid },
		"batch":        func(c *deal.Config) { c.GlobalBatch = 16 },
		"no step":      func(c *deal.Config) { c.Rows = 11 },
		"no batch":     func(c *deal.Config) { c.GlobalBatch = 0 },
	} {
		c := good
		change(&c)
		if err := c.Validate(); errkind.Of(err) != errkind.Invalid {
			t.Errorf("%s: got %v, want an error of kind invalid", name, err)
		}
	}
}
