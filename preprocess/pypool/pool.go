// Package pypool runs functions of users in Python processes.
//
// Each process is `python -m millrace._operators`, long-lived, and has loaded functions of one job. Rows go to it and come back as
// Arrow's column buffers in shared memory, each aligned to 64 bytes; what is where stands in small frames of JSON on a Unix
// socket. A process that crashes, hangs or is killed ends its call; the pool starts another.
package pypool

import (
	"context"
	"log/slog"
	"slices"
	"sync"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/spawn"
	"github.com/millrace/millrace/preprocess/op"
)

// Config says how processes are started.
type Config struct {
	// Executable is the Python interpreter; it must have the package millrace.
	Executable string
	// Env is the environment of processes, as "NAME=value"; nil: that of this one.
	Env []string
	// Slots is how many calls run at a time. No more processes than that are kept. One whose rows wait for room stays
	// at its call, so that there can be more for a while, one for each call that waits.
	Slots  int
	Logger *slog.Logger
}

// Pool starts processes and keeps them for the next call. It is safe for concurrent use.
type Pool struct {
	cfg   Config
	spawn *spawn.Thread

	mu     sync.Mutex
	idle   []*process // the last used at the end
	busy   map[*process]bool
	live   int
	closed bool
	over   sync.WaitGroup // processes
}

// New makes a pool without processes.
func New(cfg Config) *Pool {
	return &Pool{cfg: cfg, spawn: spawn.New(), busy: map[*process]bool{}}
}

// Session is what one job has of a pool: its processes are used for nobody else, and end with it.
type Session struct {
	pool *Pool
	// charge is told of shared memory that processes take, in bytes, and give back.
	charge func(delta int64)
	closed bool // guarded by pool.mu
}

var _ op.Python = (*Session)(nil)

// Join begins a session. charge is told of the shared memory that its processes take.
func (p *Pool) Join(charge func(delta int64)) *Session {
	return &Session{pool: p, charge: charge}
}

// Close ends all processes of the session. Calls that run fail.
func (s *Session) Close() {
	s.pool.mu.Lock()
	s.closed = true
	s.pool.mu.Unlock()
	s.pool.evict(func(p *process) bool { return p.session == s })
}

// Close ends all processes and waits for their end. Calls that run fail.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.evict(func(*process) bool { return true })
	p.over.Wait()
	p.spawn.Close()
}

// evict ends idle processes, and kills those at work: whoever waits for them gives them up.
func (p *Pool) evict(which func(*process) bool) {
	p.mu.Lock()
	for x := range p.busy {
		if which(x) {
			x.kill()
		}
	}
	var out []*process
	p.idle = slices.DeleteFunc(p.idle, func(x *process) bool {
		if !which(x) {
			return false
		}
		out = append(out, x)
		return true
	})
	p.mu.Unlock()
	for _, x := range out {
		x.end()
	}
}

// acquire is a process that has loaded the function, for the caller alone, until release.
func (s *Session) acquire(ctx context.Context, c *op.PythonCall) (*process, error) {
	p := s.pool
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, errkind.Errorf(errkind.Canceled, "the pool of Python processes is closed")
	}
	i := slices.IndexFunc(p.idle, func(x *process) bool { return x.session == s && x.functions[c.Function] > 0 })
	if i < 0 {
		i = slices.IndexFunc(p.idle, func(x *process) bool { return x.session == s })
	}
	if i >= 0 {
		x := p.idle[i]
		p.idle = slices.Delete(p.idle, i, i+1)
		p.mu.Unlock()
		return s.prepare(ctx, x, c)
	}
	var room *process // one that makes room
	if p.live >= p.cfg.Slots && len(p.idle) > 0 {
		room = p.idle[0]
		p.idle = slices.Delete(p.idle, 0, 1)
	}
	p.live++
	p.over.Add(1)
	p.mu.Unlock()
	if room != nil {
		room.end()
	}
	x, err := s.launch(c)
	if err != nil {
		p.gone()
		return nil, err
	}
	return s.prepare(ctx, x, c)
}

// prepare takes a process and has it load the function, unless it has.
func (s *Session) prepare(ctx context.Context, x *process, c *op.PythonCall) (*process, error) {
	if err := s.take(x); err != nil {
		return nil, err
	}
	if x.functions[c.Function] > 0 {
		return x, nil
	}
	if err := x.open(ctx, c); err != nil {
		s.release(x, false)
		return nil, err
	}
	return x, nil
}

// take notes a process as busy; a closed session ends it.
func (s *Session) take(x *process) error {
	s.pool.mu.Lock()
	closed := s.closed || s.pool.closed
	if !closed {
		s.pool.busy[x] = true
	}
	s.pool.mu.Unlock()
	if closed {
		x.end()
		return errkind.Errorf(errkind.Canceled, "the job has ended")
	}
	return nil
}

// release gives a process back. One that is no longer sound is ended.
func (s *Session) release(x *process, sound bool) {
	p := s.pool
	p.mu.Lock()
	delete(p.busy, x)
	if sound = sound && !s.closed && !p.closed && p.live <= p.cfg.Slots; sound {
		p.idle = append(p.idle, x)
	}
	p.mu.Unlock()
	if !sound {
		x.end()
	}
}

// gone counts a process that has ended.
func (p *Pool) gone() {
	p.mu.Lock()
	p.live--
	p.mu.Unlock()
	p.over.Done()
}

// Stats is what a pool has at the moment.
type Stats struct {
	// Processes that live, Idle ones among them.
	Processes, Idle int
}

// Stats counts processes.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Stats{Processes: p.live, Idle: len(p.idle)}
}
