package session

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/millrace/millrace/feed/batch"
	"github.com/millrace/millrace/feed/ring"
	"github.com/millrace/millrace/feed/session/deal"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/partition"
)

const (
	// ringAlign is what buffers in a slot are aligned to, bytes.
	ringAlign = 64
	// spareSlots are those that a ring has beyond the batches that are ready ahead: one that is put together, and one
	// that the trainer still holds when it asks for the next.
	spareSlots = 2
	// patience with a trainer that holds slots a batch waits for, before it is told who waits for what.
	patience = time.Second
)

// Ring is the shared memory in which a seat gets its batches, instead of in messages. It lasts until Close. Peers of a
// rank have the same memory.
type Ring struct {
	*memory
	member *member
	peer   int
}

// memory is what all peers of a rank on this host map.
type memory struct {
	job    *Job
	rank   int
	format *ring.Format
	slots  int
	peers  int // who may map it
	// readOnly memory cannot be written to by whom batches are handed over to.
	readOnly bool
	due      atomic.Int64 // number of the batch that is handed over next

	users []*Ring // by place among those who map it; guarded by the job

	making sync.Mutex // held while an arena is made
	arena  atomic.Pointer[ring.Arena]
	closed bool
	failed error // why there is no arena
}

// OpenRing begins a ring of a session; one that it had before is closed.
func (t *Table) OpenRing(name string, readOnly bool) (*Ring, error) {
	t.mu.Lock()
	s := t.sessions[name]
	t.mu.Unlock()
	if s == nil {
		return nil, errkind.Errorf(errkind.NotFound, "there is no session %q; it was closed, or its client was gone for too long: open the job again", name)
	}
	return s.job.openRing(s.seat, readOnly)
}

func (j *Job) openRing(seat int, readOnly bool) (*Ring, error) {
	if j.description.Dealing.Peers > 1 {
		j.sharing.Lock()
		defer j.sharing.Unlock()
		if r, err := j.joinRing(seat, nil); r != nil || err != nil {
			return r, err
		}
	}
	mem, err := j.newMemory(j.rankOf(seat), readOnly)
	if err != nil {
		return nil, err
	}
	r, err := j.joinRing(seat, mem)
	if err != nil {
		mem.close()
	}
	return r, err
}

func (j *Job) newMemory(rank int, readOnly bool) (*memory, error) {
	peers := 1
	if j.description.Dealing.Peers > 1 {
		peers, readOnly = ring.MaxPeers, true
	}
	mem := &memory{
		job: j, rank: rank, format: ring.NewFormat(j.description.Schema), slots: j.description.Dealing.Prefetch + spareSlots, peers: peers, readOnly: readOnly,
	}
	// Where all batches take the same room the memory is made ready at once, while the first samples are still read.
	if room, fixed := j.layout.Room(j.description.Dealing.BatchRows(), ringAlign); fixed {
		if err := mem.make(room + int64(mem.format.HeadBytes())); err != nil {
			return nil, err
		}
	}
	return mem, nil
}

// joinRing makes a seat one of those who map fresh memory or, where that is nil, the memory of its rank; nil without an
// error where there is none.
func (j *Job) joinRing(seat int, fresh *memory) (*Ring, error) {
	j.mu.Lock()
	m := j.members[seat]
	if m == nil || j.failed != nil {
		j.mu.Unlock()
		return nil, errkind.Errorf(errkind.NotFound, "%s of job %q has no open session here", j.who(seat), j.description.Name)
	}
	mem := fresh
	if mem == nil {
		mem = j.rings[m.rank]
	}
	if mem == nil {
		j.mu.Unlock()
		return nil, nil //nolint:nilnil // As said.
	}
	r := &Ring{memory: mem, member: m, peer: slices.Index(mem.users, nil)}
	if r.peer < 0 {
		if r.peer = len(mem.users); r.peer == mem.peers {
			j.mu.Unlock()
			return nil, errkind.Errorf(errkind.Exhausted, "rank %d of job %q: more than %d processes of a host are to share memory", m.rank, j.description.Name, mem.peers)
		}
		mem.users = append(mem.users, nil)
	}
	mem.users[r.peer] = r
	old := m.ring
	m.ring = r
	if fresh != nil {
		j.rings[m.rank] = mem
		j.renew(m.rank) // what was put together elsewhere
	}
	j.mu.Unlock()
	if old != nil {
		old.Close()
	}
	return r, nil
}

// renew has the batches of a rank that are not consumed made again. The job is locked.
func (j *Job) renew(rank int) {
	for _, m := range j.seats(rank) {
		j.state.Renew(m.seat)
	}
	j.apply()
}

// Job is the job of the ring.
func (r *Ring) Job() *Job { return r.job }

// Format is how batches lie in its slots.
func (r *Ring) Format() *ring.Format { return r.format }

// Peer is the place of the trainer among those who share the ring.
func (r *Ring) Peer() int { return r.peer }

// CountInline notes that a batch went through the socket, since no slot had room for it.
func (r *Ring) CountInline() { r.job.metrics.ringInline.Inc() }

// Stream begins a stream of the seat at a position, whose batches lie in the ring where they fit.
func (r *Ring) Stream(pos deal.Position) (*Stream, error) {
	r.job.mu.Lock()
	current := r.member.ring == r
	r.job.mu.Unlock()
	if !current {
		return nil, errkind.Errorf(errkind.Conflict, "another ring of %s of job %q has begun", r.job.who(r.member.seat), r.job.description.Name)
	}
	return r.job.Stream(r.member.seat, pos)
}

// Close ends the ring. What was handed over in it stays as it is for whoever has mapped it alone; those who copy what
// they share do that again.
func (r *Ring) Close() {
	j := r.job
	j.mu.Lock()
	if r.users[r.peer] != r {
		j.mu.Unlock()
		return
	}
	r.users[r.peer] = nil
	if r.member.ring == r {
		r.member.ring = nil
	}
	last := !slices.ContainsFunc(r.users, func(u *Ring) bool { return u != nil })
	if last && j.rings[r.rank] == r.memory {
		delete(j.rings, r.rank)
		defer func() {
			j.mu.Lock()
			defer j.mu.Unlock()
			j.renew(r.rank)
		}()
	}
	j.mu.Unlock()
	if last {
		r.close()
	} else if a := r.arena.Load(); a != nil {
		a.Leave(r.peer)
	}
}

// close gives the memory up.
func (r *memory) close() {
	r.making.Lock()
	defer r.making.Unlock()
	r.closed = true
	r.retire()
}

// retire gives the arena up. Arenas are being made by nobody else.
func (r *memory) retire() {
	if a := r.arena.Swap(nil); a != nil {
		a.Retire()
		r.job.queue.Add(-a.Bytes())
		r.job.metrics.ringBytes.Sub(float64(a.Bytes()))
	}
}

// make replaces the arena by one for batches of need bytes.
func (r *memory) make(need int64) error {
	bytes := need * int64(r.slots)
	freed := int64(0)
	if a := r.arena.Load(); a != nil {
		freed = a.Bytes()
	}
	if r.job.queue.Used()-freed+bytes > r.job.budget {
		return errkind.Errorf(errkind.Exhausted, "job %q: %d slots of %.1f MB do not fit in the budget of the sidecar",
			r.job.description.Name, r.slots, float64(need)/1e6)
	}
	arena, err := ring.NewArena(r.slots, int(need), r.peers, r.readOnly)
	if err != nil {
		return err
	}
	r.retire()
	r.arena.Store(arena)
	r.job.queue.Add(arena.Bytes())
	r.job.metrics.ringBytes.Add(float64(arena.Bytes()))
	return nil
}

// arenaFor is an arena whose slots have need bytes; nil where there is none.
func (r *memory) arenaFor(need int64) *ring.Arena {
	r.making.Lock()
	defer r.making.Unlock()
	if r.closed {
		return nil
	}
	if a := r.arena.Load(); a != nil && need <= int64(a.SlotBytes()) {
		return a
	}
	if r.failed == nil {
		r.failed = r.make(need + need/4) // the next ones may be larger
		if r.failed != nil {
			r.job.logger.Warn("batches go through the socket: their memory cannot be shared", "job", r.job.description.Name, "error", r.failed)
		}
	}
	if a := r.arena.Load(); a != nil && need <= int64(a.SlotBytes()) {
		return a
	}
	return nil
}

// slotFor waits for a slot for a batch; nil where it goes without.
func (r *memory) slotFor(b *deal.Batch, pieces []batch.Piece, gone <-chan struct{}) *ring.Slot {
	need := int64(r.format.HeadBytes()) + r.job.layout.Slack(ringAlign) + b.NumRows
	for _, p := range pieces {
		part := p.Record.NewSlice(p.First, p.First+p.NumRows)
		need += partition.DataBytes(part)
		part.Release()
	}
	arena := r.arenaFor(need)
	if arena == nil {
		return nil
	}
	s := arena.Acquire(b.Number, r.due.Load, gone)
	if s != nil {
		s.Reserve(r.format.HeadBytes())
	}
	return s
}

// waits says that a batch waits for the trainer to give slots back; empty where none does.
func (r *memory) waits() string {
	a := r.arena.Load()
	if a == nil {
		return ""
	}
	if _, since := a.Lent(); since.IsZero() || time.Since(since) < patience {
		return ""
	}
	return a.Waits()
}

// kick says that another batch is handed over next.
func (r *memory) kick() {
	if a := r.arena.Load(); a != nil {
		a.Kick()
	}
}

// put puts a batch together, in a slot if its rank has a ring. The record is nil without an error when nobody wants it
// any more.
func (j *Job) put(r *memory, b *deal.Batch, pieces []batch.Piece, gone <-chan struct{}) (rec arrow.RecordBatch, s *ring.Slot, err error) {
	pool := batch.Pool(j.pool)
	if r != nil {
		// Whoever waits for a slot must not keep others from being put together.
		if s = r.slotFor(b, pieces, gone); s != nil {
			pool = s.Within(j.pool)
			defer s.Done()
		}
	}
	select {
	case <-gone:
		return nil, nil, nil
	case j.assembling <- struct{}{}:
	}
	rec, err = j.layout.Assemble(pool, pieces)
	<-j.assembling
	if s != nil && (err != nil || !s.Holds(rec)) {
		s = nil
	}
	return rec, s, err
}
