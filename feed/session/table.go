package session

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/feed/session/deal"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/grpcerr"
	feedv1 "github.com/millrace/millrace/proto/millrace/feed/v1"
)

// Connection stands for one connection of a client, by its identity.
type Connection struct{ ended atomic.Bool }

// NewConnection makes a Connection that is no other.
func NewConnection() *Connection { return new(Connection) }

// Table is the sessions of a sidecar, by name. It is safe for concurrent use.
type Table struct {
	cfg    Config
	deps   *deps
	starts chan *Job
	over   chan struct{} // closed when Run has ended

	mu       sync.Mutex
	opening  map[string]chan struct{} // jobs of which a session is being opened; closed when it is
	sessions map[string]*session
	jobs     map[string]*Job
	left     map[string]time.Time // when a rank last left a job
}

// session is the membership of one seat.
type session struct {
	name string
	job  *Job
	seat int
	conn *Connection
	gone time.Time // since when there is no connection
}

// NewTable makes a Table whose jobs do nothing before [Table.Run]. Its errors are those of [Config.Validate].
func NewTable(cfg Config) (*Table, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Table{
		cfg: cfg, deps: newDeps(&cfg), starts: make(chan *Job), over: make(chan struct{}),
		opening: map[string]chan struct{}{}, sessions: map[string]*session{}, jobs: map[string]*Job{}, left: map[string]time.Time{},
	}, nil
}

// Metrics are the figures of the table.
func (t *Table) Metrics() *Metrics { return t.cfg.Metrics }

// Run keeps the streams to the dispatcher until ctx ends; then all sessions end.
func (t *Table) Run(ctx context.Context) {
	var jobs sync.WaitGroup
	defer close(t.over)
	defer jobs.Wait()
	tick := time.NewTicker(max(t.cfg.GoneTimeout/4, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case j := <-t.starts:
			jobs.Go(func() { j.run(ctx) })
		case now := <-tick.C:
			t.closeGone(now.Add(-t.cfg.GoneTimeout))
		case <-ctx.Done():
			return
		}
	}
}

// rejoinPatience is how long a rank that has just left may find the dispatcher not aware of it yet.
const rejoinPatience = 2 * time.Second

// Open opens a session for a rank, or for one of its peers. One that it had before is replaced.
func (t *Table) Open(ctx context.Context, req OpenRequest, conn *Connection) (_ Opened, err error) {
	if err := req.validate(); err != nil {
		return Opened{}, err
	}
	opened, err := t.begin(ctx, req.Job)
	if err != nil {
		return Opened{}, err
	}
	defer opened()
	defer func() {
		if err != nil {
			t.missed(&req)
		}
	}()
	if err := t.makeWay(ctx, &req); err != nil {
		return Opened{}, err
	}
	resp, err := t.openJob(ctx, &req)
	if err != nil {
		return Opened{}, err
	}
	j, err := t.job(ctx, &req, resp)
	if err != nil {
		return Opened{}, err
	}
	start := positionFromWire(resp.GetStart())
	if err := j.join(req.seat(), req.Attempt, start); err != nil {
		return Opened{}, err
	}
	if err := t.fits(j, req.seat()); err != nil {
		t.turnAway(j, req.seat())
		return Opened{}, err
	}
	s := &session{name: newName(), job: j, seat: req.seat()}
	t.mu.Lock()
	defer t.mu.Unlock()
	s.use(conn)
	if old := t.find(req.Job, req.seat()); old != nil {
		delete(t.sessions, old.name)
	}
	t.sessions[s.name] = s
	t.cfg.Metrics.sessions.Set(float64(len(t.sessions)))
	return Opened{Session: s.name, Job: j.description, Start: start}, nil
}

// begin waits until no other session of the job is being opened: the dispatcher may be reading a data set for the first
// time, and what it answers decides whether the job here goes on or begins anew.
func (t *Table) begin(ctx context.Context, job string) (done func(), err error) {
	for {
		t.mu.Lock()
		other := t.opening[job]
		if other == nil {
			mine := make(chan struct{})
			t.opening[job] = mine
			t.mu.Unlock()
			return func() {
				t.mu.Lock()
				delete(t.opening, job)
				t.mu.Unlock()
				close(mine)
			}, nil
		}
		t.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, errkind.With(errkind.Canceled, ctx.Err())
		}
	}
}

func newName() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return "s-" + hex.EncodeToString(b[:])
}

// use makes conn the session's connection, if it has not ended meanwhile. The table is locked.
func (s *session) use(conn *Connection) {
	s.conn = conn
	if conn == nil || conn.ended.Load() {
		s.conn, s.gone = nil, time.Now()
	}
}

// find is the session of a seat. The table is locked.
func (t *Table) find(job string, seat int) *session {
	for _, s := range t.sessions {
		if s.seat == seat && s.job.description.Name == job {
			return s
		}
	}
	return nil
}

// makeWay closes what a rank that comes again has left behind: its session, if that has lost its connection, and the job
// if that is over but for its last words to the dispatcher.
func (t *Table) makeWay(ctx context.Context, req *OpenRequest) error {
	t.mu.Lock()
	old := t.find(req.Job, req.seat())
	stale := old != nil && old.conn == nil
	t.mu.Unlock()
	if stale {
		t.closeSession(old.name, true)
	}
	t.mu.Lock()
	j := t.jobs[req.Job]
	t.mu.Unlock()
	if j == nil || !j.over() {
		return nil
	}
	return t.await(ctx, j)
}

// missed tells the job that the seat of a request does not take part.
func (t *Table) missed(req *OpenRequest) {
	t.mu.Lock()
	j := t.jobs[req.Job]
	t.mu.Unlock()
	if j != nil && j.description.Dealing.Peers == max(1, req.Peers) {
		j.missed(req.seat())
	}
}

// await waits until nothing is left of a job that is over.
func (t *Table) await(ctx context.Context, j *Job) error {
	select {
	case <-j.done:
	case <-t.over:
	case <-ctx.Done():
		return errkind.With(errkind.Canceled, ctx.Err())
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.jobs[j.description.Name] == j {
		delete(t.jobs, j.description.Name)
	}
	return nil
}

// openJob asks the dispatcher. It may not have heard yet of a rank that has left; so its no is not final at once.
func (t *Table) openJob(ctx context.Context, req *OpenRequest) (*feedv1.OpenJobResponse, error) {
	pause := 10 * time.Millisecond
	for {
		resp, err := t.deps.client.OpenJob(ctx, req.toWire())
		if err == nil {
			return resp, nil
		}
		err = grpcerr.FromStatus(err)
		if errkind.Of(err) != errkind.Conflict || !t.leftLately(req.Job) {
			if errkind.Of(err) == errkind.Unavailable {
				return nil, errkind.Errorf(errkind.Unavailable, "the dispatcher cannot be reached: %w; is it running?", err)
			}
			return nil, err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, err
		}
		pause *= 2
	}
}

func (t *Table) leftLately(job string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	when, ok := t.left[job]
	return ok && time.Since(when) < rejoinPatience
}

// job is the job of an answer of the dispatcher, begun where it is not there.
func (t *Table) job(ctx context.Context, req *OpenRequest, resp *feedv1.OpenJobResponse) (*Job, error) {
	description, layout, err := describe(req, resp)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	old := t.jobs[req.Job]
	t.mu.Unlock()
	if old != nil && !old.over() {
		if sameJob(&old.description, &description) {
			return old, nil
		}
		// The dispatcher has begun the job anew, which it does only when it has no rank.
		old.fail(errkind.Errorf(errkind.Conflict, "job %q was opened anew with other settings", req.Job))
	}
	if old != nil {
		if err := t.await(ctx, old); err != nil {
			return nil, err
		}
	}
	j, err := newJob(t.deps, description, layout)
	if err != nil {
		return nil, err
	}
	select {
	case t.starts <- j:
	case <-t.over:
		return nil, errkind.Errorf(errkind.Unavailable, "the sidecar is stopping")
	case <-ctx.Done():
		return nil, errkind.With(errkind.Canceled, ctx.Err())
	}
	t.mu.Lock()
	t.jobs[req.Job] = j
	t.mu.Unlock()
	return j, nil
}

func sameJob(a, b *Description) bool {
	return a.Dealing == b.Dealing && string(a.OrderDigest) == string(b.OrderDigest) && string(a.PixelsDigest) == string(b.PixelsDigest) &&
		a.Schema.Equal(b.Schema)
}

// fits says, as an error of kind Exhausted, when the batches of one more rank of j would not fit.
func (t *Table) fits(j *Job, seat int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	type place struct {
		job  string
		rank int
	}
	rank := j.rankOf(seat)
	counted := map[place]bool{{j.description.Name, rank}: true} // peers hold one batch together
	need := j.rankBytes()
	for _, s := range t.sessions {
		if p := (place{s.job.description.Name, s.job.rankOf(s.seat)}); !counted[p] {
			counted[p] = true
			need += s.job.rankBytes()
		}
	}
	if need <= t.cfg.BudgetBytes {
		return nil
	}
	d := j.description.Dealing
	return errkind.Errorf(errkind.Exhausted,
		"job %q: rank %d needs %d batches of %d rows, %.1f MB in all, and the sidecar would then hold %.1f MB; its budget is %.1f MB. Use a smaller batch or prefetch, or give it more",
		j.description.Name, rank, d.Prefetch+2, d.BatchRows(), float64(j.rankBytes())/1e6, float64(need)/1e6, float64(t.cfg.BudgetBytes)/1e6)
}

// turnAway takes out a seat that the dispatcher has admitted and that gets no session, so that it may come again with
// other settings.
func (t *Table) turnAway(j *Job, seat int) {
	t.mu.Lock()
	if old := t.find(j.description.Name, seat); old != nil {
		delete(t.sessions, old.name)
	}
	t.left[j.description.Name] = time.Now()
	t.mu.Unlock()
	j.leave(seat, false)
}

// rankBytes is what a rank holds at least when all is ready: the batches of its credit and one that is put together.
func (j *Job) rankBytes() int64 { return int64(j.description.Dealing.Prefetch+2) * j.batchBytes }

// Close closes a session; one that is not open is fine. It waits a moment for the dispatcher to hear of it.
func (t *Table) Close(ctx context.Context, name string) {
	j := t.close(name)
	if j == nil || !j.over() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, farewell)
	defer cancel()
	_ = t.await(ctx, j) // it is closed all the same
}

// close closes a session and gives its job.
func (t *Table) close(name string) *Job { return t.closeSession(name, false) }

// closeSession closes a session, perhaps of one who is opening another in its place.
func (t *Table) closeSession(name string, comesBack bool) *Job {
	t.mu.Lock()
	s := t.sessions[name]
	if s == nil {
		t.mu.Unlock()
		return nil
	}
	delete(t.sessions, name)
	idle := len(t.sessions) == 0
	now := time.Now()
	for job, when := range t.left {
		if now.Sub(when) > rejoinPatience {
			delete(t.left, job)
		}
	}
	t.left[s.job.description.Name] = now
	t.cfg.Metrics.sessions.Set(float64(len(t.sessions)))
	t.mu.Unlock()
	s.job.leave(s.seat, comesBack)
	if idle {
		t.cfg.OnIdle()
	}
	return s.job
}

// closeGone closes sessions that have had no connection since before, and forgets jobs that are over.
func (t *Table) closeGone(before time.Time) {
	t.mu.Lock()
	var gone []*session
	for _, s := range t.sessions {
		if s.conn == nil && s.gone.Before(before) {
			gone = append(gone, s)
		}
	}
	for name, j := range t.jobs {
		select {
		case <-j.done:
			if !slices.ContainsFunc(slices.Collect(maps.Values(t.sessions)), func(s *session) bool { return s.job == j }) {
				delete(t.jobs, name)
			}
		default:
		}
	}
	t.mu.Unlock()
	for _, s := range gone {
		t.cfg.Logger.Warn("session closed: its client is gone", "job", s.job.description.Name, "who", s.job.who(s.seat))
		t.close(s.name)
	}
}

// Disconnected says that a connection has ended. Its sessions stay open for a while.
func (t *Table) Disconnected(conn *Connection) {
	t.mu.Lock()
	defer t.mu.Unlock()
	conn.ended.Store(true)
	for _, s := range t.sessions {
		if s.conn == conn {
			s.use(nil)
		}
	}
}

// Stop ends a job for all ranks.
func (t *Table) Stop(ctx context.Context, job string) error {
	if _, err := t.deps.client.StopJob(ctx, &feedv1.StopJobRequest{Job: job}); err != nil {
		return grpcerr.FromStatus(err)
	}
	t.mu.Lock()
	j := t.jobs[job]
	var names []string
	for _, s := range t.sessions {
		if s.job.description.Name == job {
			names = append(names, s.name)
		}
	}
	t.mu.Unlock()
	if j != nil {
		j.fail(errkind.Errorf(errkind.Canceled, "job %q was stopped", job))
	}
	for _, name := range names {
		t.close(name)
	}
	return nil
}

// Stream begins a stream of a session at a position. conn becomes the session's connection.
func (t *Table) Stream(name string, pos deal.Position, conn *Connection) (*Stream, error) {
	t.mu.Lock()
	s := t.sessions[name]
	if s == nil {
		t.mu.Unlock()
		return nil, errkind.Errorf(errkind.NotFound, "there is no session %q; it was closed, or its client was gone for too long: open the job again", name)
	}
	s.use(conn)
	t.mu.Unlock()
	return s.job.Stream(s.seat, pos)
}

// Waits says, by job, what the ranks here wait for.
func (t *Table) Waits() map[string]string {
	t.mu.Lock()
	jobs := make([]*Job, 0, len(t.jobs))
	for _, j := range t.jobs {
		jobs = append(jobs, j)
	}
	t.mu.Unlock()
	waits := map[string]string{}
	for _, j := range jobs {
		if text := j.Waits(); text != "" {
			waits[j.description.Name] = text
		}
	}
	return waits
}

// Len is the number of open sessions.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.sessions)
}
