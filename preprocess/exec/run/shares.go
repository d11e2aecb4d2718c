package run

import (
	"context"
	"maps"
	"slices"
	"sync"
)

// Shares divides the slots and bytes of one node among the jobs on it, by weight. It is safe for concurrent use.
//
// Slots that come free go to the waiting job that has the fewest in relation to its weight. Bytes are only divided
// while there are several jobs, since each job's core keeps to the whole budget by itself: then a task starts if all
// that is held and expected fits into the budget and, while another job waits, into its job's share. A job that runs
// nothing may always start one task, so that none can be starved by what others hold.
type Shares struct {
	budget int64

	mu      sync.Mutex
	free    map[string]int
	jobs    []*Share
	waiting []*request
	bytes   int64 // of all jobs: held and expected
}

// Share is the part of one job.
type Share struct {
	all    *Shares
	weight int64
	slots  int // taken
	tasks  int
	bytes  int64
}

// request is a task that wants to start.
type request struct {
	share     *Share
	resources map[string]int
	bytes     int64
	granted   chan struct{}
}

// NewShares divides slots, by resource name, and a budget of bytes.
func NewShares(slots map[string]int, budget int64) *Shares {
	return &Shares{budget: budget, free: maps.Clone(slots)}
}

// Join adds a job with a weight, of which 0 counts as 1. [Share.Leave] takes it out again.
func (s *Shares) Join(weight uint32) *Share {
	s.mu.Lock()
	defer s.mu.Unlock()
	j := &Share{all: s, weight: max(1, int64(weight))}
	s.jobs = append(s.jobs, j)
	return j
}

// Leave gives back all bytes of the job. Its tasks must have ended.
func (j *Share) Leave() {
	s := j.all
	s.mu.Lock()
	defer s.mu.Unlock()
	s.jobs = slices.DeleteFunc(s.jobs, func(o *Share) bool { return o == j })
	s.bytes -= j.bytes
	j.bytes = 0
	s.grant()
}

// Held changes what the job holds in finished partitions, by delta bytes.
func (j *Share) Held(delta int64) {
	s := j.all
	s.mu.Lock()
	defer s.mu.Unlock()
	j.bytes += delta
	s.bytes += delta
	if delta < 0 {
		s.grant()
	}
}

// request puts a task in line that takes slots and is expected to make that many bytes. wait waits for its turn; end
// gives the slots and the expectation back.
func (j *Share) request(resources map[string]int, bytes int64) (wait func(context.Context) (end func(), err error)) {
	s := j.all
	r := &request{share: j, resources: resources, bytes: bytes, granted: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = append(s.waiting, r)
	s.grant()
	return func(ctx context.Context) (func(), error) { return s.wait(ctx, r) }
}

func (s *Shares) wait(ctx context.Context, r *request) (end func(), err error) {
	select {
	case <-r.granted:
		return func() { s.end(r) }, nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-r.granted: // at the same time
		s.giveBack(r)
	default:
		s.waiting = slices.DeleteFunc(s.waiting, func(o *request) bool { return o == r })
	}
	s.grant()
	return nil, ctx.Err()
}

func (s *Shares) end(r *request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.giveBack(r)
	s.grant()
}

func (s *Shares) giveBack(r *request) {
	s.take(r, -1)
	r.share.tasks--
}

// take books a request; sign is -1 to undo it.
func (s *Shares) take(r *request, sign int) {
	for name, n := range r.resources {
		s.free[name] -= sign * n
		r.share.slots += sign * n
	}
	r.share.bytes += int64(sign) * r.bytes
	s.bytes += int64(sign) * r.bytes
}

// grant lets start what may start. s.mu is held.
func (s *Shares) grant() {
	for {
		best := -1
		for i, r := range s.waiting {
			if s.fits(r) && (best < 0 || r.share.before(s.waiting[best].share)) {
				best = i
			}
		}
		if best < 0 {
			return
		}
		r := s.waiting[best]
		s.waiting = slices.Delete(s.waiting, best, best+1)
		s.take(r, 1)
		r.share.tasks++
		close(r.granted)
	}
}

// before reports whether j has fewer slots than o in relation to its weight.
func (j *Share) before(o *Share) bool { return int64(j.slots)*o.weight < int64(o.slots)*j.weight }

func (s *Shares) fits(r *request) bool {
	for name, n := range r.resources {
		if s.free[name] < n {
			return false
		}
	}
	j := r.share
	if len(s.jobs) < 2 || j.tasks == 0 {
		return true
	}
	if s.bytes+r.bytes > s.budget {
		return false
	}
	return j.bytes+r.bytes <= j.limit() || !s.othersWait(j)
}

// limit is the job's part of the budget.
func (j *Share) limit() int64 {
	total := int64(0)
	for _, o := range j.all.jobs {
		total += o.weight
	}
	return int64(float64(j.all.budget) * float64(j.weight) / float64(max(1, total)))
}

func (s *Shares) othersWait(j *Share) bool {
	return slices.ContainsFunc(s.waiting, func(r *request) bool { return r.share != j })
}
