// Package isolate decodes image files in processes of their own, which can do nothing but compute.
//
// Each is this program again, started with an empty environment, without files and with limits on what it may take; before it
// reads the first byte of an image it gives up, by a seccomp filter that cannot be undone, all system calls but those of memory,
// threads and time. Files go in and pixels come out by shared memory, whose size only this process sets. What a file makes of its
// decoder, a crash, a hang, a call that the filter forbids, is an error of that one sample.
package isolate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/nearest"
	"github.com/millrace/millrace/internal/spawn"
	"github.com/millrace/millrace/preprocess/op"
	"github.com/millrace/millrace/preprocess/op/imagekernel"
)

// Mode says which files are decoded outside.
type Mode string

const (
	// Off decodes all in this process.
	Off Mode = "off"
	// Format decodes all but JPEG outside.
	Format Mode = "format"
	// All decodes all outside.
	All Mode = "all"
)

// ParseMode is the mode of that name.
func ParseMode(name string) (Mode, error) {
	known := []string{string(Off), string(Format), string(All)}
	if !slices.Contains(known, name) {
		return "", errkind.Errorf(errkind.Invalid, "isolation %q; there are off, format and all%s", name, nearest.Hint(name, known))
	}
	return Mode(name), nil
}

// Role is the only argument of a decoder process, by which a main function knows to call [Serve].
const Role = "decoder-process"

// ReserveBytes is what one process may keep between two images, its own memory and that which it shares.
const ReserveBytes = 16 << 20

// DefaultTimeout is how long an image may take: a few times what the largest one that the limits allow needs.
const DefaultTimeout = 60 * time.Second

// Config says how processes are started.
type Config struct {
	// Mode is Format or All.
	Mode Mode
	// Slots is how many images are decoded at a time, each in a process of its own.
	Slots int
	// Timeout is how long an image may take; 0: DefaultTimeout.
	Timeout time.Duration
	// Command starts a process that calls [Serve]; nil: this program with the argument [Role].
	Command []string
	// Libraries is where processes look for libraries first, LD_LIBRARY_PATH: all that they have of an environment.
	Libraries string
	Logger    *slog.Logger
}

// Pool has the processes. It is safe for concurrent use.
type Pool struct {
	cfg   Config
	spawn *spawn.Thread
	slots chan struct{} // one for each call
	// calls are those that run; closing is closed with the pool.
	calls   sync.WaitGroup
	closing chan struct{}

	started, died atomic.Int64

	mu     sync.Mutex
	idle   []*process // the last used at the end
	live   map[*process]bool
	closed bool
}

// New starts one process, to see that it can be locked up here; the others start when they are needed. That it cannot is an
// error of kind Unavailable: nothing is decoded outside without the lock.
func New(cfg Config) (*Pool, error) {
	if cfg.Mode != Format && cfg.Mode != All || cfg.Slots < 1 {
		return nil, errkind.Errorf(errkind.Invalid, "isolation %q with %d slots", cfg.Mode, cfg.Slots)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	if cfg.Command == nil {
		cfg.Command = []string{"/proc/self/exe", Role}
	}
	p := &Pool{cfg: cfg, spawn: spawn.New(), slots: make(chan struct{}, cfg.Slots), closing: make(chan struct{}), live: map[*process]bool{}}
	x, err := p.launch()
	if err != nil {
		p.spawn.Close()
		return nil, errkind.With(errkind.Unavailable, fmt.Errorf("decoding in isolated processes (isolate %s) is not possible here: %w", cfg.Mode, err))
	}
	p.idle = append(p.idle, x)
	return p, nil
}

// Reserve is what the processes may take in all between two images, to be left free of other things.
func (p *Pool) Reserve() int64 { return int64(p.cfg.Slots) * ReserveBytes }

// Stats is what a pool has and has had.
type Stats struct {
	// Processes that live, and those that have been Started and, other than by Close, have Died.
	Processes     int
	Started, Died int64
}

// Stats counts processes.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Stats{Processes: len(p.live), Started: p.started.Load(), Died: p.died.Load()}
}

// Close ends all processes and waits for their end. Calls that run fail. It may be called more than once.
func (p *Pool) Close() {
	p.mu.Lock()
	first := !p.closed
	p.closed = true
	for x := range p.live {
		x.kill()
	}
	p.mu.Unlock()
	if first {
		close(p.closing)
	}
	p.calls.Wait()
	for _, x := range p.takeAll() {
		x.end()
	}
	p.spawn.Close()
}

// takeAll takes the processes that live out of the pool.
func (p *Pool) takeAll() []*process {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]*process, 0, len(p.live))
	for x := range p.live {
		all = append(all, x)
	}
	clear(p.live)
	p.idle = nil
	return all
}

// begin counts a call, which Close waits for; it is false when the pool is closed.
func (p *Pool) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.calls.Add(1)
	return true
}

// Session is what one job has of a pool.
type Session struct {
	pool *Pool
	// charge is told of memory beyond the reserve that a large image takes, in bytes, and gives back.
	charge func(delta int64)
}

var _ op.Outside = (*Session)(nil)

// Join begins a session, which needs no end. charge is told of memory that images take beyond the reserve.
func (p *Pool) Join(charge func(delta int64)) *Session { return &Session{pool: p, charge: charge} }

// Takes reports whether files of a format are decoded outside.
func (s *Session) Takes(f imagekernel.Format) bool {
	return s.pool.cfg.Mode == All || f != imagekernel.FormatJPEG
}

// Decode is imagekernel.DecodeForm.
func (s *Session) Decode(ctx context.Context, f imagekernel.Form, data []byte, h imagekernel.Header, buf []byte) ([]byte, error) {
	n := h.W * h.H * f.Size()
	var pix []byte
	err := s.call(ctx, h, request{form: f, header: h}, data, n, func(out []byte) { pix = append(buf[:0], out...) })
	return pix, err
}

// Run does a job that reads a JPEG.
func (s *Session) Run(ctx context.Context, job *imagekernel.Job, scalar bool) error {
	r := request{fused: true, scalar: scalar, job: *job}
	r.job.JPEG, r.job.Pix, r.job.Dst, r.job.Table = nil, nil, nil, nil
	if job.Table != nil {
		r.tabled, r.table = true, *job.Table
	}
	return s.call(ctx, job.Header, r, job.JPEG, len(job.Dst), func(out []byte) { copy(job.Dst, out) })
}

// call has a process do something with a file, and gives what it made, n bytes, to take. A process that dies of it is given
// another chance, in a new process: the death may have had nothing to do with the file.
func (s *Session) call(ctx context.Context, h imagekernel.Header, r request, data []byte, n int, take func(out []byte)) error {
	if err := fits(len(data), n); err != nil {
		return err
	}
	if extra := h.Scratch() + int64(len(data)+n) - ReserveBytes; extra > 0 {
		s.charge(extra)
		defer s.charge(-extra)
	}
	for try := 1; ; try++ {
		err := s.pool.once(ctx, &r, data, n, take)
		dead, ok := errors.AsType[*deathError](err)
		if !ok {
			return err
		}
		s.pool.cfg.Logger.Warn("an isolated decoder has ended", "format", h.Format.String(), "how", dead.how, "try", try)
		if try == 2 || dead.late {
			return errkind.With(dead.kind, fmt.Errorf("%s: its isolated decoder %s", h.Format, dead.how))
		}
	}
}

// once makes one try.
func (p *Pool) once(ctx context.Context, r *request, data []byte, n int, take func(out []byte)) error {
	if !p.begin() {
		return errClosed
	}
	defer p.calls.Done()
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-p.closing:
		return errClosed
	}
	defer func() { <-p.slots }()
	x, err := p.acquire()
	if err != nil {
		return err
	}
	err = x.call(ctx, p.cfg.Timeout, r, data, n, take)
	closed := p.release(x)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case closed && err != nil:
		return errClosed
	}
	return err
}

var errClosed = errkind.Errorf(errkind.Canceled, "the pool of isolated decoders is closed")

// acquire is a process for the caller alone, until release.
func (p *Pool) acquire() (*process, error) {
	p.mu.Lock()
	var x *process
	if n := len(p.idle); n > 0 {
		x = p.idle[n-1]
		p.idle = p.idle[:n-1]
	}
	p.mu.Unlock()
	if x != nil {
		return x, nil
	}
	x, err := p.launch()
	if err != nil {
		return nil, errkind.With(errkind.Unavailable, fmt.Errorf("starting an isolated decoder: %w", err))
	}
	return x, nil
}

// release gives a process back, and reports whether the pool is closed. A process that has ended is forgotten.
func (p *Pool) release(x *process) (closed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed: // Close ends it
	case x.broken:
		p.died.Add(1)
		delete(p.live, x)
		x.end()
	default:
		p.idle = append(p.idle, x)
	}
	return p.closed
}

// launch starts a process and waits until it is locked up.
func (p *Pool) launch() (*process, error) {
	x, err := start(p.spawn, p.cfg.Command, p.cfg.Libraries)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.live[x] = true
	if p.closed {
		x.kill()
	}
	p.mu.Unlock()
	p.started.Add(1)
	err = x.hello(p.cfg.Timeout)
	if err == nil {
		return x, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.live, x)
	x.end()
	if p.closed {
		err = errClosed
	}
	return nil, err
}
