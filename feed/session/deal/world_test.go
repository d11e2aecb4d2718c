package deal_test

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/feed/session/deal"
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
		Peers:        rapid.SampledFrom([]int{0, 1, 1, 2, 3}).Draw(t, "peers"),
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
	for r := range cfg.NumSeats() {
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
				for _, s := range b.RankRows(rows, step, part*w.cfg.World+w.cfg.RankOf(rank), w.cfg.World*w.cfg.Accumulation) {
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
			if !slices.Contains(w.held[a.Batch.Seat], a.Batch) {
				w.held[a.Batch.Seat] = append(w.held[a.Batch.Seat], a.Batch)
			}
			if n := len(w.held[a.Batch.Seat]); n > w.cfg.Prefetch+1 {
				w.t.Fatalf("rank %d holds %d batches; its credit is %d", a.Batch.Seat, n, w.cfg.Prefetch+1)
			}
		case deal.Assemble:
			w.pending = append(w.pending, a.Batch)
		case deal.Drop:
			delete(w.asked, a.Batch)
			other := func(b *deal.Batch) bool { return b == a.Batch }
			w.held[a.Batch.Seat] = slices.DeleteFunc(w.held[a.Batch.Seat], other)
			w.pending = slices.DeleteFunc(w.pending, other)
		case deal.Seek:
			w.seeks[a.Seat] = a.Position
			w.meet()
		case deal.Mark:
			before := w.mark[a.Seat]
			if before.Generation == a.Generation && (a.Epoch < before.Epoch || (a.Epoch == before.Epoch && a.Step <= before.Step)) {
				w.t.Fatalf("mark went back from %+v to %+v", before, a)
			}
			w.mark[a.Seat] = a
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
		w.state.Consumed(s.rank, s.in) // as trainers do before they hear of the end
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
		w.checkPeers(b)
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

// checkPeers says that every peer which has not got a batch yet holds the same one, so that it is put together but once.
func (w *world) checkPeers(b *deal.Batch) {
	for _, seat := range w.local {
		peer := w.streams[seat]
		if seat == b.Seat || w.cfg.RankOf(seat) != b.Rank || !peer.open || w.state.Sent(seat) > b.Number || w.lost || len(w.seeks) > 0 {
			continue
		}
		same := func(o *deal.Batch) bool {
			return o.Number == b.Number && o.Epoch == b.Epoch && o.Step == b.Step && o.Part == b.Part
		}
		if w.state.Dealt(seat) && !slices.ContainsFunc(w.held[seat], same) {
			w.t.Fatalf("seat %d gets batch %d, which seat %d does not hold", b.Seat, b.Number, seat)
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
