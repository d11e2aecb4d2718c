package session

import (
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/millrace/millrace/feed/batch"
	"github.com/millrace/millrace/feed/fetch"
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
	term       atomic.Uint64 // the highest that a dispatcher had
	leavePeer  func()        // goes on to another dispatcher, where there is one
	assembling chan struct{} // a place for each batch that may be put together at a time
}

func newDeps(cfg *Config) *deps {
	return &deps{
		sidecar: cfg.Sidecar, client: cfg.Client, queue: cfg.Queue, pool: cfg.Pool, metrics: cfg.Metrics, logger: cfg.Logger,
		budget: cfg.BudgetBytes, assembling: make(chan struct{}, runtime.GOMAXPROCS(0)), leavePeer: cfg.Leave,
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
	shared  map[share]*held // what peers share, by what it is
	members map[int]*member // by seat
	rings   map[int]*memory // by rank
	changed chan struct{}   // closed, and made anew, when anything has changed
	waiting string          // what the dispatcher says
	away    string          // why there is no stream to the dispatcher
	failed  error           // why the job is over
	leaving bool            // the last rank has left

	out      []*feedv1.AttachRequest
	outWake  chan struct{}
	reattach func() // ends the stream to the dispatcher, so that another one begins
	puts     sync.WaitGroup
	sharing  sync.Mutex // held while a ring is opened that peers share
}

// member is a seat that takes part: a rank, or one of the processes that share its batches.
type member struct {
	seat    int
	rank    int
	attempt uint64
	start   deal.Position
	metrics rankMetrics
	sent    atomic.Int64 // number of the next batch to be handed over
	stream  *Stream
	ring    *Ring // nil: its batches go in messages
	err     error // why its streams end, until it asks again
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
		held: map[*deal.Batch]*held{}, shared: map[share]*held{}, members: map[int]*member{}, rings: map[int]*memory{}, reattach: func() {},
	}, nil
}

// Description is what there is to know of the job.
func (j *Job) Description() Description { return j.description }

// join adds a seat, or begins it anew. It fails when the job is over.
func (j *Job) join(seat int, attempt uint64, start deal.Position) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed != nil {
		return j.failed
	}
	if err := j.state.Join(seat); err != nil {
		return err
	}
	j.shut(seat)
	rank := j.rankOf(seat)
	j.members[seat] = &member{seat: seat, rank: rank, attempt: attempt, start: start, metrics: j.metrics.rank(j.description.Name, rank)}
	j.apply()
	return nil
}

// leave takes a seat out. When it was the last one the job ends. If it comes back at once its peers go no further
// meanwhile, until it has joined or does not come after all ([Job.missed]).
func (j *Job) leave(seat int, comesBack bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.members[seat] == nil {
		return
	}
	j.shut(seat)
	delete(j.members, seat)
	if !comesBack || j.first(j.rankOf(seat)) == nil {
		j.state.Leave(seat)
	}
	j.send(leaveMessage(seat))
	j.leaving = len(j.members) == 0
	j.apply()
	if j.first(j.rankOf(seat)) == nil {
		j.metrics.forget(j.description.Name, j.rankOf(seat))
	}
}

// missed says that a seat which was to come back does not.
func (j *Job) missed(seat int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.members[seat] == nil {
		j.state.Leave(seat)
		j.apply()
	}
}

// shut lets the ring of a seat end, which is not needed any more. The job is locked.
func (j *Job) shut(seat int) {
	if m := j.members[seat]; m != nil && m.ring != nil {
		r := m.ring
		m.ring = nil
		j.puts.Go(r.Close) // which locks the job
	}
}

// rankOf is the rank of a seat.
func (j *Job) rankOf(seat int) int { return j.description.Dealing.RankOf(seat) }

// who names a seat for people.
func (j *Job) who(seat int) string {
	d := &j.description.Dealing
	if d.Peers <= 1 {
		return fmt.Sprintf("rank %d", seat)
	}
	return fmt.Sprintf("peer %d of rank %d", d.PeerOf(seat), d.RankOf(seat))
}

// seats are those of a rank that take part here, in order. The job is locked.
func (j *Job) seats(rank int) []*member {
	n := max(1, j.description.Dealing.Peers)
	var seats []*member
	for seat := rank * n; seat < (rank+1)*n; seat++ {
		if m := j.members[seat]; m != nil {
			seats = append(seats, m)
		}
	}
	return seats
}

// first is the first seat of a rank here, for what counts but once; nil where there is none. The job is locked.
func (j *Job) first(rank int) *member {
	n := max(1, j.description.Dealing.Peers)
	for seat := rank * n; seat < (rank+1)*n; seat++ {
		if m := j.members[seat]; m != nil {
			return m
		}
	}
	return nil
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
	for seat := range j.members {
		j.shut(seat)
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
	return m != nil && before != nil && m.GetSeat() == before.GetSeat() && m.GetGeneration() == before.GetGeneration()
}

// fetchGroup is slices of one batch that one worker holds.
type fetchGroup struct {
	batch  *deal.Batch
	worker deal.Placement
	slices []int
}

// apply does what the state has come to want. The job is locked.
func (j *Job) apply() {
	for actions := j.state.Take(); len(actions) > 0; actions = j.state.Take() {
		j.obey(actions)
	}
	for seat, m := range j.members {
		m.sent.Store(j.state.Sent(seat))
		m.metrics.fill.Set(float64(j.state.Filled(seat)))
	}
	for rank, r := range j.rings {
		r.due.Store(j.state.Due(rank))
	}
	j.broadcast()
}

// obey does what the state has asked for. The job is locked.
func (j *Job) obey(actions []deal.Action) {
	var groups []*fetchGroup
	for _, a := range actions {
		switch a := a.(type) {
		case deal.Fetch:
			if !j.wanted(a.Batch, a.Slice) {
				continue
			}
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
			if m := j.members[a.Seat]; m != nil {
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
}

// stop ends the streams of seats with an error; they may ask again. The job is locked.
func (j *Job) stop(err error, seats []int) {
	for _, seat := range seats {
		if m := j.members[seat]; m != nil {
			m.err = err
		}
	}
	j.state.Stop(seats...)
}
