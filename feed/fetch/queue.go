package fetch

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/partition"
)

// Pauses between tries of a request.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 5 * time.Second
)

// Queue runs requests. It is safe for concurrent use.
type Queue struct {
	cfg   Config
	conns *conns
	wake  chan struct{}

	mu      sync.Mutex
	pending []*Pending
	running int
	used    int64
	turn    uint64
}

// NewQueue makes a Queue that does nothing before [Queue.Run]. Its errors are those of [Config.Validate].
func NewQueue(cfg Config) (*Queue, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	q := &Queue{cfg: cfg, wake: make(chan struct{}, 1)}
	q.conns = newConns(&q.cfg)
	return q, nil
}

// Submit adds a request.
func (q *Queue) Submit(r Request) *Pending {
	p := &Pending{queue: q, req: r, left: make([]int, len(r.Slices))}
	for i := range p.left {
		p.left[i] = i
	}
	q.mu.Lock()
	q.turn++
	p.turn = q.turn
	q.pending = append(q.pending, p)
	q.mu.Unlock()
	q.notify()
	return p
}

// Add changes what counts against the budget.
func (q *Queue) Add(bytes int64) {
	q.mu.Lock()
	q.used += bytes
	q.mu.Unlock()
	if bytes < 0 {
		q.notify()
	}
}

// Used is what counts against the budget now, in bytes.
func (q *Queue) Used() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.used
}

// Waiting is the number of requests that are not done.
func (q *Queue) Waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.pending)
}

// Connections is the number of open connections to workers.
func (q *Queue) Connections() int { return q.conns.len() }

// Wake lets the queue look again at what its requests are ahead of.
func (q *Queue) Wake() { q.notify() }

func (q *Queue) notify() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// Run runs requests until ctx ends; then it waits for those under way to stop.
func (q *Queue) Run(ctx context.Context) {
	var running sync.WaitGroup
	sweep := time.NewTicker(q.cfg.IdleTimeout / 2)
	timer := time.NewTimer(0)
	defer func() {
		sweep.Stop()
		timer.Stop()
		running.Wait()
		q.conns.sweep(time.Now().Add(time.Hour))
	}()
	for {
		pause := q.launch(ctx, &running)
		timer.Reset(pause)
		select {
		case <-ctx.Done():
			return
		case <-q.wake:
		case <-timer.C:
		case now := <-sweep.C:
			q.conns.sweep(now.Add(-q.cfg.IdleTimeout))
		}
	}
}

// launch starts what may start now and says when to look again at the latest.
func (q *Queue) launch(ctx context.Context, running *sync.WaitGroup) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.running < q.cfg.Streams && ctx.Err() == nil {
		p, again := q.pick(time.Now())
		if p == nil {
			return again
		}
		q.start(ctx, p, running)
	}
	return time.Hour
}

// pick is the request to run next; nil where there is none, with the pause until one is to be tried again.
func (q *Queue) pick(now time.Time) (best *Pending, again time.Duration) {
	again = time.Hour
	var least int64
	for _, p := range q.pending {
		if p.running != nil {
			continue
		}
		if wait := p.retryAt.Sub(now); wait > 0 {
			again = min(again, wait)
			continue
		}
		ahead := p.req.Ahead()
		if ahead > 0 && q.used+p.leftBytes() > q.cfg.BudgetBytes {
			continue
		}
		if best == nil || ahead < least || (ahead == least && p.turn < best.turn) {
			best, least = p, ahead
		}
	}
	return best, again
}

func (p *Pending) leftBytes() int64 {
	total := int64(0)
	for _, i := range p.left {
		total += p.req.Bytes[i]
	}
	return total
}

func (q *Queue) start(ctx context.Context, p *Pending, running *sync.WaitGroup) {
	ctx, cancel := context.WithCancel(ctx)
	p.running = cancel
	p.tries++
	p.charged = p.leftBytes()
	q.used += p.charged
	q.running++
	order := slices.Clone(p.left)
	running.Go(func() {
		defer cancel()
		q.run(ctx, p, order)
	})
}

// run makes one attempt at the slices of p in order.
func (q *Queue) run(ctx context.Context, p *Pending, order []int) {
	began, bytes := time.Now(), int64(0)
	err := q.fetch(ctx, p, order, func(i int) { bytes += p.req.Bytes[i] })
	q.mu.Lock()
	q.running--
	q.used -= p.charged
	p.charged, p.running = 0, nil
	switch {
	case len(p.left) == 0:
		q.remove(p)
		err = nil
	case err == nil:
		err = errkind.Errorf(errkind.Internal, "the worker sent fewer slices than were asked for")
		fallthrough
	default:
		p.err = err
		p.retryAt = time.Now().Add(min(firstPause<<min(p.tries-1, 16), lastPause))
	}
	tries := p.tries
	q.mu.Unlock()
	if err != nil && ctx.Err() == nil {
		q.cfg.Logger.Warn("fetching slices failed and is tried again", "job", p.req.Job, "worker", p.req.Worker, "address", p.req.Address,
			"partition", p.req.Slices[order[0]].ID, "tries", tries, "error", err)
	}
	q.cfg.OnDone(p.req.Worker, bytes, time.Since(began), err)
	q.notify()
}

// errForgotten ends an attempt of which nothing is wanted any more.
var errForgotten = errors.New("no slice is wanted any more")

func (q *Queue) fetch(ctx context.Context, p *Pending, order []int, arrived func(i int)) error {
	f, release, err := q.conns.acquire(p.req.Address)
	if err != nil {
		return err
	}
	defer release()
	ticket := partition.Ticket{Job: p.req.Job}
	for _, i := range order {
		ticket.Slices = append(ticket.Slices, p.req.Slices[i])
	}
	return f.Fetch(ctx, ticket, func(k int, rec arrow.RecordBatch) error {
		i := order[k]
		wanted, over := q.took(p, i)
		if wanted {
			arrived(i)
			p.req.Arrived(i, rec)
		}
		if over && k+1 < len(order) {
			return errForgotten
		}
		return nil
	})
}

// took notes that slice i of p has arrived: its bytes are now the receiver's.
func (q *Queue) took(p *Pending, i int) (wanted, over bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	before := len(p.left)
	p.left = slices.DeleteFunc(p.left, func(k int) bool { return k == i })
	if wanted = len(p.left) < before; wanted {
		p.charged -= p.req.Bytes[i]
	}
	return wanted, len(p.left) == 0
}

// remove takes p out of the queue, which is locked.
func (q *Queue) remove(p *Pending) {
	q.pending = slices.DeleteFunc(q.pending, func(o *Pending) bool { return o == p })
}
