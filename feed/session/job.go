package session

import (
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/millrace/millrace/feed/batch"
	"github.com/millrace/millrace/feed/fetch"
	"github.com/millrace/millrace/feed/ring"
	"github.com/millrace/millrace/feed/session/deal"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/partition"
	feedv1 "github.com/millrace/millrace/proto/millrace/feed/v1"
)

// maxTicketSlices bounds the slices that are asked for at a time.
const maxTicketSlices = 256

// deps is what all jobs of a sidecar share.
type deps struct {
	sidecar    string
	client     feedv1.FeedServiceClient
	queue      *fetch.Queue
	pool       *partition.Pool
	metrics    *Metrics
	logger     *slog.Logger
	budget     int64
	assembling chan struct{} // a place for each batch that may be put together at a time
}

func newDeps(cfg *Config) *deps {
	return &deps{
		sidecar: cfg.Sidecar, client: cfg.Client, queue: cfg.Queue, pool: cfg.Pool, metrics: cfg.Metrics, logger: cfg.Logger,
		budget: cfg.BudgetBytes, assembling: make(chan struct{}, runtime.GOMAXPROCS(0)),
	}
}

// Job is one job's part in this sidecar.
type Job struct {
	*deps

	description Description
	layout      *batch.Layout
	batchBytes  int64         // what a batch of a rank takes at least
	done        chan struct{} // closed when nothing of it is left

	mu      sync.Mutex
	state   *deal.State
	held    map[*deal.Batch]*held
	members map[int]*member
	changed chan struct{} // closed, and made anew, when anything has changed
	waiting string        // what the dispatcher says
	away    string        // why there is no stream to the dispatcher
	failed  error         // why the job is over
	leaving bool          // the last rank has left

	out      []*feedv1.AttachRequest
	outWake  chan struct{}
	reattach func() // ends the stream to the dispatcher, so that another one begins
	puts     sync.WaitGroup
}

// member is a rank that takes part.
type member struct {
	rank    int
	attempt uint64
	start   deal.Position
	metrics rankMetrics
	sent    atomic.Int64 // number of the next batch to be handed over
	stream  *Stream
	ring    *Ring // nil: its batches go in messages
	err     error // why its streams end, until it asks again
}

// held is what is held of one batch.
type held struct {
	slices  []*slot
	record  arrow.RecordBatch
	place   *ring.Slot    // where the record lies; nil: in no ring
	gone    chan struct{} // closed when the batch is not wanted any more
	charged int64         // bytes that count against the budget
}

// slot is one slice of a batch.
type slot struct {
	pending *fetch.Pending
	index   int // within the request
	record  arrow.RecordBatch
}

func newJob(d *deps, description Description, layout *batch.Layout) (*Job, error) {
	state, err := deal.New(description.Dealing)
	if err != nil {
		return nil, err
	}
	return &Job{
		deps: d, description: description, layout: layout, state: state,
		batchBytes: description.Dealing.BatchRows() * layout.RowBytes(),
		done:       make(chan struct{}), changed: make(chan struct{}), outWake: make(chan struct{}, 1),
		held: map[*deal.Batch]*held{}, members: map[int]*member{}, reattach: func() {},
	}, nil
}

// Description is what there is to know of the job.
func (j *Job) Description() Description { return j.description }

// join adds a rank, or begins it anew. It fails when the job is over.
func (j *Job) join(rank int, attempt uint64, start deal.Position) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed != nil {
		return j.failed
	}
	if err := j.state.Join(rank); err != nil {
		return err
	}
	j.shut(rank)
	j.members[rank] = &member{rank: rank, attempt: attempt, start: start, metrics: j.metrics.rank(j.description.Name, rank)}
	j.apply()
	return nil
}

// leave takes a rank out. When it was the last one the job ends.
func (j *Job) leave(rank int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.members[rank] == nil {
		return
	}
	j.shut(rank)
	delete(j.members, rank)
	j.state.Leave(rank)
	j.send(leaveMessage(rank))
	j.leaving = len(j.members) == 0
	j.apply()
	j.metrics.forget(j.description.Name, rank)
}

// shut lets the ring of a rank end, which is not needed any more. The job is locked.
func (j *Job) shut(rank int) {
	if m := j.members[rank]; m != nil && m.ring != nil {
		r := m.ring
		m.ring = nil
		j.puts.Go(r.Close) // which locks the job
	}
}

// over says whether nothing more will come of the job.
func (j *Job) over() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.leaving || j.failed != nil
}

// fail ends the job for all its ranks.
func (j *Job) fail(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed == nil {
		j.failed = err
	}
	j.apply()
}

// end gives up all that is held, after the job is over.
func (j *Job) end() {
	j.mu.Lock()
	if j.failed == nil {
		j.failed = errkind.Errorf(errkind.Unavailable, "the sidecar of job %q is stopping", j.description.Name)
	}
	for b := range j.held {
		j.drop(b)
	}
	for rank := range j.members {
		j.shut(rank)
	}
	j.broadcast()
	j.mu.Unlock()
	j.puts.Wait()
	close(j.done)
}

// broadcast wakes whoever waits for a change. The job is locked.
func (j *Job) broadcast() {
	close(j.changed)
	j.changed = make(chan struct{})
}

// send queues a message for the dispatcher. The job is locked.
func (j *Job) send(m *feedv1.AttachRequest) {
	if n := len(j.out); n > 0 && supersedes(m.GetConsumed(), j.out[n-1].GetConsumed()) {
		j.out[n-1] = m
		return // whoever sends was woken for the one before
	}
	j.out = append(j.out, m)
	select {
	case j.outWake <- struct{}{}:
	default:
	}
}

// supersedes says whether a mark says all that an earlier one said.
func supersedes(m, before *feedv1.Consumed) bool {
	return m != nil && before != nil && m.GetRank() == before.GetRank() && m.GetGeneration() == before.GetGeneration()
}

// fetchGroup is slices of one batch that one worker holds.
type fetchGroup struct {
	batch  *deal.Batch
	worker deal.Placement
	slices []int
}

// apply does what the state has come to want. The job is locked.
func (j *Job) apply() {
	var groups []*fetchGroup
	for _, a := range j.state.Take() {
		switch a := a.(type) {
		case deal.Fetch:
			place := a.Batch.Slices[a.Slice].Place
			n := len(groups)
			if n == 0 || groups[n-1].batch != a.Batch || groups[n-1].worker.Address != place.Address || len(groups[n-1].slices) == maxTicketSlices {
				groups = append(groups, &fetchGroup{batch: a.Batch, worker: place})
				n++
			}
			groups[n-1].slices = append(groups[n-1].slices, a.Slice)
		case deal.Assemble:
			j.assemble(a.Batch)
		case deal.Drop:
			j.drop(a.Batch)
			for _, g := range groups {
				if g.batch == a.Batch {
					g.slices = nil
				}
			}
		case deal.Seek:
			if m := j.members[a.Rank]; m != nil {
				j.send(seekMessage(a, m.attempt))
			}
		case deal.Reattach:
			j.reattach()
		case deal.Mark:
			j.send(markMessage(a))
		}
	}
	for _, g := range groups {
		if len(g.slices) > 0 {
			j.fetch(g)
		}
	}
	for rank, m := range j.members {
		m.sent.Store(j.state.Sent(rank))
		m.metrics.fill.Set(float64(j.state.Filled(rank)))
	}
	j.broadcast()
}

// fetch asks for the slices of g. The job is locked.
func (j *Job) fetch(g *fetchGroup) {
	m := j.members[g.batch.Rank]
	if m == nil || j.failed != nil {
		return
	}
	h := j.held[g.batch]
	if h == nil {
		h = &held{gone: make(chan struct{})}
		j.held[g.batch] = h
	}
	for len(h.slices) < len(g.batch.Slices) {
		h.slices = append(h.slices, &slot{})
	}
	req := fetch.Request{
		Job: j.description.Name, Worker: g.worker.Worker, Address: g.worker.Address,
		Ahead: func() int64 { return g.batch.Number - m.sent.Load() },
	}
	for _, i := range g.slices {
		s := &g.batch.Slices[i]
		req.Slices = append(req.Slices, partition.Slice{ID: s.Place.ID, Attempt: s.Place.Attempt, First: s.First, Rows: s.NumRows})
		req.Bytes = append(req.Bytes, s.Bytes())
	}
	indices, bytes := g.slices, req.Bytes
	slots := make([]*slot, len(indices))
	req.Arrived = func(k int, rec arrow.RecordBatch) { j.arrived(g.batch, indices[k], slots[k], bytes[k], rec) }
	for k, i := range indices {
		if old := h.slices[i]; old.pending != nil {
			old.pending.Forget(old.index)
		}
		slots[k] = &slot{index: k}
		h.slices[i] = slots[k]
	}
	pending := j.queue.Submit(req)
	for _, s := range slots {
		s.pending = pending
	}
}

// arrived takes a slice in, unless it is not wanted any more.
func (j *Job) arrived(b *deal.Batch, i int, s *slot, bytes int64, rec arrow.RecordBatch) {
	j.mu.Lock()
	defer j.mu.Unlock()
	h := j.held[b]
	if h == nil || h.slices[i] != s {
		j.queue.Add(-bytes)
		return
	}
	rec.Retain()
	s.record = rec
	h.charged += bytes
	j.state.Fetched(b, i)
	j.apply()
}

// assemble begins to put b together. The job is locked.
func (j *Job) assemble(b *deal.Batch) {
	h := j.held[b]
	pieces := make([]batch.Piece, len(b.Pieces))
	for i, p := range b.Pieces {
		rec := h.slices[p.Slice].record
		rec.Retain()
		pieces[i] = batch.Piece{Record: rec, First: p.First, NumRows: p.NumRows, Valid: p.Valid}
	}
	var r *Ring
	if m := j.members[b.Rank]; m != nil {
		r = m.ring
	}
	j.puts.Go(func() {
		rec, place, err := j.put(r, b, pieces, h.gone)
		for i := range pieces {
			pieces[i].Record.Release()
		}
		j.assembled(b, h, rec, place, err)
	})
}

func (j *Job) assembled(b *deal.Batch, h *held, rec arrow.RecordBatch, place *ring.Slot, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case j.held[b] != h:
		if rec != nil {
			rec.Release()
		}
		return
	case err != nil:
		j.stop(fmt.Errorf("job %q: batch of rank %d, epoch %d, step %d: %w", j.description.Name, b.Rank, b.Epoch, b.Step, err), []int{b.Rank})
	default:
		h.free()
		h.record, h.place = rec, place
		bytes := int64(0) // a ring counts as a whole
		if place == nil {
			bytes = partition.DataBytes(rec)
		}
		j.queue.Add(bytes - h.charged)
		h.charged = bytes
		j.state.Assembled(b)
	}
	j.apply()
}

// stop ends the streams of ranks with an error; they may ask again. The job is locked.
func (j *Job) stop(err error, ranks []int) {
	for _, rank := range ranks {
		if m := j.members[rank]; m != nil {
			m.err = err
		}
	}
	j.state.Stop(ranks...)
}

// drop gives up all that is held of b. The job is locked.
func (j *Job) drop(b *deal.Batch) {
	h := j.held[b]
	if h == nil {
		return
	}
	delete(j.held, b)
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
