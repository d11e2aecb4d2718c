package session

import (
	"fmt"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/millrace/millrace/feed/batch"
	"github.com/millrace/millrace/feed/fetch"
	"github.com/millrace/millrace/feed/ring"
	"github.com/millrace/millrace/feed/session/deal"
	"github.com/millrace/millrace/preprocess/partition"
)

// share says which batch it is that peers share.
type share struct {
	rank       int
	generation uint64
	epoch      uint64
	step       int64
	part       int
}

// held is what is held of one batch, for all seats that want it.
type held struct {
	users   []*deal.Batch
	slices  []*slot
	begun   bool // it is being put together, or is
	record  arrow.RecordBatch
	place   *ring.Slot    // where the record lies; nil: in no ring
	gone    chan struct{} // closed when the batch is not wanted any more
	charged int64         // bytes that count against the budget
}

// slot is one slice of a batch.
type slot struct {
	place   deal.Placement
	row     int64 // of the stream, its first
	pending *fetch.Pending
	index   int // within the request
	record  arrow.RecordBatch
}

// of is what is held of b, made where nothing is yet: the same for all peers that want it. The job is locked.
func (j *Job) of(b *deal.Batch) *held {
	if h := j.held[b]; h != nil {
		return h
	}
	var h *held
	key := share{rank: b.Rank, generation: b.Generation, epoch: b.Epoch, step: b.Step, part: b.Part}
	if j.description.Dealing.Peers > 1 {
		h = j.shared[key]
	}
	if h == nil {
		h = &held{gone: make(chan struct{})}
		if j.description.Dealing.Peers > 1 {
			j.shared[key] = h
		}
	}
	h.users = append(h.users, b)
	j.held[b] = h
	return h
}

// wanted says whether slice i of b is to be fetched: a peer may have asked for it before. The job is locked.
func (j *Job) wanted(b *deal.Batch, i int) bool {
	if j.members[b.Seat] == nil || j.failed != nil {
		return false
	}
	h, slice := j.of(b), &b.Slices[i]
	k := h.find(slice.Row(), i)
	if k < 0 {
		h.slices = append(h.slices, &slot{place: slice.Place, row: slice.Row()})
		return true
	}
	s := h.slices[k]
	again := len(h.users) == 1 || s.place.Attempt != slice.Place.Attempt || s.place.Worker != slice.Place.Worker || s.place.Address != slice.Place.Address
	switch {
	case h.record != nil || s.record != nil:
		j.state.Fetched(b, i)
		return false
	case h.begun:
		return false // who has all slices is told at the end
	case again:
		h.slices[k] = &slot{place: slice.Place, row: slice.Row()}
		if s.pending != nil {
			s.pending.Forget(s.index)
		}
		return true
	}
	return false
}

// find is the index of the slice that begins at a row, which is likely to be at; -1 where there is none.
func (h *held) find(row int64, at int) int {
	if at < len(h.slices) && h.slices[at].row == row {
		return at
	}
	return slices.IndexFunc(h.slices, func(s *slot) bool { return s.row == row })
}

// fetch asks for the slices of g. The job is locked.
func (j *Job) fetch(g *fetchGroup) {
	m, h := j.members[g.batch.Seat], j.held[g.batch]
	if m == nil || h == nil || j.failed != nil {
		return
	}
	req := fetch.Request{
		Job: j.description.Name, Worker: g.worker.Worker, Address: g.worker.Address,
		Ahead: func() int64 { return g.batch.Number - m.sent.Load() },
	}
	slots := make([]*slot, 0, len(g.slices))
	for _, i := range g.slices {
		s := &g.batch.Slices[i]
		slots = append(slots, h.slices[h.find(s.Row(), i)])
		req.Slices = append(req.Slices, partition.Slice{ID: s.Place.ID, Attempt: s.Place.Attempt, First: s.First, Rows: s.NumRows})
		req.Bytes = append(req.Bytes, s.Bytes())
	}
	bytes := req.Bytes
	req.Arrived = func(k int, rec arrow.RecordBatch) { j.arrived(h, slots[k], bytes[k], rec) }
	pending := j.queue.Submit(req)
	for k, s := range slots {
		s.pending, s.index = pending, k
	}
}

// arrived takes a slice in, unless it is not wanted any more.
func (j *Job) arrived(h *held, s *slot, bytes int64, rec arrow.RecordBatch) {
	j.mu.Lock()
	defer j.mu.Unlock()
	k := slices.Index(h.slices, s)
	if len(h.users) == 0 || k < 0 || h.begun {
		j.queue.Add(-bytes)
		return
	}
	rec.Retain()
	s.record = rec
	h.charged += bytes
	for _, b := range h.users {
		if i := sliceAt(b, s.row, k); i >= 0 {
			j.state.Fetched(b, i)
		}
	}
	j.apply()
}

// sliceAt is the index of the slice of b that begins at a row, which is likely to be at; -1 where it has none yet.
func sliceAt(b *deal.Batch, row int64, at int) int {
	if at < len(b.Slices) && b.Slices[at].Row() == row {
		return at
	}
	return slices.IndexFunc(b.Slices, func(s deal.Slice) bool { return s.Row() == row })
}

// assemble begins to put b together, unless that was begun for a peer. The job is locked.
func (j *Job) assemble(b *deal.Batch) {
	h := j.held[b]
	if h.record != nil {
		j.state.Assembled(b)
	}
	if h.begun {
		return
	}
	h.begun = true
	pieces := make([]batch.Piece, len(b.Pieces))
	for i, p := range b.Pieces {
		rec := h.slices[h.find(b.Slices[p.Slice].Row(), p.Slice)].record
		rec.Retain()
		pieces[i] = batch.Piece{Record: rec, First: p.First, NumRows: p.NumRows, Valid: p.Valid}
	}
	var r *memory
	if m := j.members[b.Seat]; m != nil {
		r = j.rings[m.rank]
	}
	j.puts.Go(func() {
		rec, place, err := j.put(r, b, pieces, h.gone)
		for i := range pieces {
			pieces[i].Record.Release()
		}
		j.assembled(h, rec, place, err)
	})
}

func (j *Job) assembled(h *held, rec arrow.RecordBatch, place *ring.Slot, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case len(h.users) == 0:
		if rec != nil {
			rec.Release()
		}
		return
	case err != nil:
		b := h.users[0]
		seats := make([]int, len(h.users))
		for i, u := range h.users {
			seats[i] = u.Seat
		}
		j.stop(fmt.Errorf("job %q: batch of rank %d, epoch %d, step %d: %w", j.description.Name, b.Rank, b.Epoch, b.Step, err), seats)
	default:
		h.free()
		h.record, h.place = rec, place
		bytes := int64(0) // a ring counts as a whole
		if place == nil {
			bytes = partition.DataBytes(rec)
		}
		j.queue.Add(bytes - h.charged)
		h.charged = bytes
		for _, b := range h.users {
			for i := range b.Slices {
				j.state.Fetched(b, i)
			}
			j.state.Assembled(b)
		}
	}
	j.apply()
}

// drop gives up all that is held of b, unless a peer wants it too. The job is locked.
func (j *Job) drop(b *deal.Batch) {
	h := j.held[b]
	if h == nil {
		return
	}
	delete(j.held, b)
	h.users = slices.DeleteFunc(h.users, func(u *deal.Batch) bool { return u == b })
	if len(h.users) > 0 {
		return
	}
	if key := (share{rank: b.Rank, generation: b.Generation, epoch: b.Epoch, step: b.Step, part: b.Part}); j.shared[key] == h {
		delete(j.shared, key)
	}
	close(h.gone)
	for _, s := range h.slices {
		if s.pending != nil && s.record == nil {
			s.pending.Forget(s.index)
		}
	}
	h.free()
	if h.record != nil {
		h.record.Release()
	}
	j.queue.Add(-h.charged)
}

// free releases the slices.
func (h *held) free() {
	for _, s := range h.slices {
		if s.record != nil {
			s.record.Release()
			s.record = nil
		}
	}
}
