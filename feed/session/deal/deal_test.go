package deal_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/feed/session/deal"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/order"
	"github.com/millrace/millrace/preprocess/lineage"
)

// row is one row of a batch, as a trainer sees it.
type row struct {
	epoch uint64
	row   int64
	valid bool
}

// handed is one batch that a stream received.
type handed struct {
	epoch    uint64
	step     int64
	part     int
	last     bool
	lastPart bool
	next     int64
	cursor   string
	rows     []row
}

// world simulates a dispatcher, its workers and the streams of the ranks of one host around a State.
type world struct {
	t      *rapid.T
	rng    *rand.Rand // of the schedule, so that every move is as likely as another
	cfg    deal.Config
	state  *deal.State
	rows   []int64 // of each epoch
	script []func()
	gen    uint64
	start  deal.Position // from which the streams have to be whole

	lost bool // the dispatcher has come back and gathers where the ranks are

	seeks    map[int]deal.Position
	asked    map[*deal.Batch]map[int]bool // slices in flight
	pending  []*deal.Batch                // to be assembled
	held     map[int][]*deal.Batch
	mark     map[int]deal.Mark
	streams  map[int]*stream
	local    []int
	finished map[int]bool
}

type stream struct {
	rank   int
	asked  deal.Position
	got    []handed // of the whole run, as it stands after rewinds
	in     int64    // batches of this stream
	acked  int64
	open   bool
	resume deal.Position
}

func newWorld(t *rapid.T) *world {
	ranks := rapid.IntRange(1, 8).Draw(t, "world")
	acc := rapid.IntRange(1, 3).Draw(t, "accumulation")
	cfg := deal.Config{
		GlobalBatch:  int64(ranks*acc) * rapid.Int64Range(1, 4).Draw(t, "batch rows"),
		World:        ranks,
		Accumulation: acc,
		Tail:         rapid.SampledFrom([]order.Tail{order.TailPad, order.TailDrop, order.TailShort}).Draw(t, "tail"),
		Rows:         -1,
		Epochs:       rapid.Uint64Range(1, 3).Draw(t, "epochs"),
		Prefetch:     rapid.IntRange(1, 4).Draw(t, "prefetch"),
	}
	w := &world{
		t: t, rng: rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "schedule"), 0)), seeks: map[int]deal.Position{}, asked: map[*deal.Batch]map[int]bool{}, held: map[int][]*deal.Batch{},
		mark: map[int]deal.Mark{}, streams: map[int]*stream{}, finished: map[int]bool{},
	}
	known := rapid.Bool().Draw(t, "rows known")
	n := rapid.Int64Range(1, 60).Draw(t, "rows")
	for range cfg.Epochs {
		w.rows = append(w.rows, n)
		if !known {
			n = rapid.Int64Range(0, 60).Draw(t, "rows")
		}
	}
	if known {
		cfg.Rows = n
		if n < cfg.GlobalBatch && cfg.Tail == order.TailDrop {
			cfg.Tail = order.TailPad
		}
	} else if rapid.Bool().Draw(t, "end told by the dispatcher") {
		cfg.Epochs = 0
	}
	w.cfg = cfg
	state, err := deal.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w.state = state
	for r := range ranks {
		if r == 0 || rapid.Bool().Draw(t, "rank is local") {
			w.local = append(w.local, r)
			w.streams[r] = &stream{rank: r}
			if err := state.Join(r); err != nil {
				t.Fatal(err)
			}
		}
	}
	return w
}

func (w *world) batching(start deal.Position, epoch uint64) order.Batching {
	b := order.Batching{GlobalBatch: w.cfg.GlobalBatch, Tail: w.cfg.Tail}
	if epoch == start.Epoch {
		b.OriginStep, b.OriginRow = start.Step, start.Row
	}
	return b
}

// want is everything that a rank has to get from the start of the generation on.
func (w *world) want(rank int) []handed {
	var out []handed
	for e := w.start.Epoch; e < uint64(len(w.rows)); e++ {
		b, rows := w.batching(w.start, e), w.rows[e]
		steps := b.NumSteps(rows)
		for step := b.OriginStep; step < steps; step++ {
			first, _, _ := b.Step(rows, step)
			for part := range w.cfg.Accumulation {
				h := handed{epoch: e, step: step, part: part, lastPart: part == w.cfg.Accumulation-1, next: first + w.cfg.GlobalBatch}
				h.last = h.lastPart && step+1 == steps
				if h.last {
					h.next = 0
				}
				if h.lastPart {
					h.cursor = fmt.Sprintf("after %d/%d", e, step)
				}
				for _, s := range b.RankRows(rows, step, part*w.cfg.World+rank, w.cfg.World*w.cfg.Accumulation) {
					for i := range s.NumRows {
						h.rows = append(h.rows, row{e, s.First + i, s.Valid})
					}
				}
				out = append(out, h)
			}
		}
	}
	return out
}

// generate writes what a dispatcher sends after a generation began at pos: placements far ahead of the ranks, in any
// order where rows are known, sealed batches once their rows are placed, ends of epochs.
func (w *world) generate(pos deal.Position) {
	w.gen++
	gen := w.gen
	w.script = []func(){func() { w.state.Started(gen, pos) }}
	for e := pos.Epoch; e < uint64(len(w.rows)); e++ {
		b, rows := w.batching(pos, e), w.rows[e]
		var places []deal.Placement
		for at, source := b.OriginRow-min(b.OriginRow, 2), uint64(0); at < rows; source++ {
			n := min(rows-at, w.rng.Int64N(10))
			places = append(places, deal.Placement{
				ID: lineage.SourceID(e, source), FirstRow: at, NumRows: n, Bytes: 100 * n, Worker: "w", Address: "local:w",
			})
			at += n
		}
		if w.cfg.Rows >= 0 {
			places = w.shuffled(places)
		}
		placed := map[int64]bool{}
		step := b.OriginStep
		for _, p := range places {
			w.script = append(w.script, func() { w.must(w.state.Placed(gen, []deal.Placement{p})) })
			if w.rng.IntN(5) == 0 {
				p.Attempt, p.Worker = 1, "other"
				w.script = append(w.script, func() { w.must(w.state.Placed(gen, []deal.Placement{p})) })
			}
			for i := range p.NumRows {
				placed[p.FirstRow+i] = true
			}
			for ; step < b.NumSteps(rows); step++ {
				first, _, valid := b.Step(rows, step)
				whole := true
				for i := range valid {
					whole = whole && placed[first+i]
				}
				if !whole {
					break
				}
				at := deal.Position{Epoch: e, Step: step, Row: first}
				w.script = append(w.script, func() {
					w.must(w.state.Sealed(gen, at, valid, fmt.Sprintf("after %d/%d", at.Epoch, at.Step)))
				})
			}
		}
		w.script = append(w.script, func() {
			w.must(w.state.EpochEnd(gen, e, rows, b.NumSteps(rows), e+1 == uint64(len(w.rows))))
		})
	}
}

func (w *world) shuffled(places []deal.Placement) []deal.Placement {
	w.rng.Shuffle(len(places), func(i, j int) { places[i], places[j] = places[j], places[i] })
	return places
}

func (w *world) must(err error) {
	if err != nil {
		w.t.Fatal(err)
	}
}

// obey carries out the actions of the state.
func (w *world) obey() {
	for _, a := range w.state.Take() {
		switch a := a.(type) {
		case deal.Fetch:
			if w.asked[a.Batch] == nil {
				w.asked[a.Batch] = map[int]bool{}
			}
			w.asked[a.Batch][a.Slice] = true
			if !slices.Contains(w.held[a.Batch.Rank], a.Batch) {
				w.held[a.Batch.Rank] = append(w.held[a.Batch.Rank], a.Batch)
			}
			if n := len(w.held[a.Batch.Rank]); n > w.cfg.Prefetch+1 {
				w.t.Fatalf("rank %d holds %d batches; its credit is %d", a.Batch.Rank, n, w.cfg.Prefetch+1)
			}
		case deal.Assemble:
			w.pending = append(w.pending, a.Batch)
		case deal.Drop:
			delete(w.asked, a.Batch)
			other := func(b *deal.Batch) bool { return b == a.Batch }
			w.held[a.Batch.Rank] = slices.DeleteFunc(w.held[a.Batch.Rank], other)
			w.pending = slices.DeleteFunc(w.pending, other)
		case deal.Seek:
			w.seeks[a.Rank] = a.Position
			w.meet()
		case deal.Mark:
			before := w.mark[a.Rank]
			if before.Generation == a.Generation && (a.Epoch < before.Epoch || (a.Epoch == before.Epoch && a.Step <= before.Step)) {
				w.t.Fatalf("mark went back from %+v to %+v", before, a)
			}
			w.mark[a.Rank] = a
		}
	}
}

// meet begins a generation once all ranks have asked for the same position.
func (w *world) meet() {
	if len(w.seeks) < len(w.local) {
		return
	}
	pos := w.seeks[w.local[0]]
	for _, p := range w.seeks {
		if p != pos && !w.lost {
			w.t.Fatalf("ranks seek different positions: %v", w.seeks)
		}
		if p.Epoch < pos.Epoch || (p.Epoch == pos.Epoch && p.Step < pos.Step) {
			pos = p
		}
	}
	clear(w.seeks)
	if !w.lost {
		w.start = pos
	}
	w.lost = false
	w.generate(pos)
}

func (w *world) moves() []func() {
	var out []func()
	if len(w.script) > 0 {
		out = append(out, func() {
			f := w.script[0]
			w.script = w.script[1:]
			f()
		})
	}
	for _, r := range w.local {
		for _, b := range w.held[r] {
			for i := range b.Slices {
				if w.asked[b][i] {
					out = append(out, func() {
						delete(w.asked[b], i)
						w.state.Fetched(b, i)
					})
				}
			}
		}
		out = append(out, w.streamMoves(w.streams[r])...)
	}
	for _, b := range w.pending[:min(1, len(w.pending))] {
		out = append(out, func() {
			w.pending = w.pending[1:]
			w.state.Assembled(b)
		})
	}
	return out
}

func (w *world) streamMoves(s *stream) []func() {
	if w.finished[s.rank] {
		return nil
	}
	if !s.open {
		return []func(){func() {
			s.open, s.in, s.acked, s.asked = true, 0, 0, s.resume
			w.must(w.state.Ask(s.rank, s.resume))
		}}
	}
	out := []func(){func() { w.receive(s) }}
	if s.acked < s.in {
		out = append(out, func() {
			s.acked += 1 + w.rng.Int64N(s.in-s.acked)
			w.state.Consumed(s.rank, s.acked)
		})
	}
	return append(out, func() {
		if w.rng.IntN(30) == 0 {
			s.open = false
			w.rewind(s)
		}
	})
}

// rewind takes back the parts of a global batch that was not received whole: the trainer gets them again.
func (w *world) rewind(s *stream) {
	for len(s.got) > 0 && !s.got[len(s.got)-1].lastPart {
		s.got = s.got[:len(s.got)-1]
	}
}

func (w *world) receive(s *stream) {
	b, verdict := w.state.Next(s.rank, w.cfg.Prefetch)
	switch verdict {
	case deal.Moved:
		w.t.Fatalf("stream of rank %d has moved", s.rank)
	case deal.End:
		s.open = false
		s.resume = deal.Position{Epoch: s.asked.Epoch + 1}
		w.finished[s.rank] = s.resume.Epoch >= uint64(len(w.rows))
	case deal.Ready:
		h := handed{epoch: b.Epoch, step: b.Step, part: b.Part, last: b.Last, lastPart: b.LastPart, next: b.NextRow, cursor: b.Cursor}
		for _, p := range b.Pieces {
			slice := b.Slices[p.Slice]
			for i := range p.NumRows {
				if p.First+i >= slice.NumRows {
					w.t.Fatalf("piece %+v lies outside its slice", p)
				}
				h.rows = append(h.rows, row{b.Epoch, slice.Place.FirstRow + slice.First + p.First + i, p.Valid})
			}
		}
		if int64(len(h.rows)) != b.NumRows {
			w.t.Fatalf("batch of %d rows says %d", len(h.rows), b.NumRows)
		}
		s.got = append(s.got, h)
		s.in++
		if b.LastPart {
			s.resume = deal.Position{Epoch: b.Epoch, Step: b.Step + 1, Row: b.NextRow}
			if b.Last {
				s.resume = deal.Position{Epoch: b.Epoch + 1}
			}
		}
	}
}

// run plays until every rank has got all there is.
func (w *world) run() {
	for range 100000 {
		done := true
		for _, r := range w.local {
			done = done && w.finished[r]
		}
		if done {
			return
		}
		moves := w.moves()
		moves[w.rng.IntN(len(moves))]()
		w.obey()
	}
	for _, r := range w.local {
		w.t.Logf("rank %d: %s", r, w.state.Waits(r))
	}
	w.t.Fatal("no progress")
}

func (w *world) check() {
	for _, r := range w.local {
		if diff := cmp.Diff(w.want(r), w.streams[r].got, cmp.AllowUnexported(handed{}, row{})); diff != "" {
			w.t.Fatalf("rank %d (-want +got):\n%s", r, diff)
		}
	}
}

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
// that has been said again; at any other position it waits for a generation of its own.
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
	want := []deal.Action{deal.Seek{Rank: 0, Position: back}, deal.Seek{Rank: 1, Position: deal.Position{Step: 2, Row: 4}}}
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

	if err := errors.Join(s.Join(0), s.Ask(0, deal.Position{Step: 2, Row: 4})); err != nil {
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
