package dispatch

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/loader/dataset"
	feedv1 "github.com/millrace/millrace/proto/millrace/feed/v1"
	statusv1 "github.com/millrace/millrace/proto/millrace/status/v1"
	workerv1 "github.com/millrace/millrace/proto/millrace/worker/v1"
)

// Dispatcher gives work to workers and places to sidecars. Make one with New, register it on a gRPC server, and call
// Run while that server serves.
type Dispatcher struct {
	cfg     Config
	started time.Time
	metrics *metrics

	mu        sync.Mutex
	jobs      map[string]*job
	workers   map[string]*worker
	manifests map[[16]byte]*dataset.Manifest

	// term is that of this dispatcher; book is nil where nothing is logged.
	term      uint64
	book      *logbook
	fencing   chan struct{} // closed when another dispatcher leads, fence being how that was found
	fence     error
	nextMarks time.Duration
	// settling: the workers of the dispatcher before are expected back, until settled; missing are those not seen yet.
	settling bool
	settled  time.Duration
	missing  map[string]bool

	indexing singleflight.Group
}

// New makes a Dispatcher without workers or jobs.
func New(cfg Config) (*Dispatcher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	d := &Dispatcher{
		cfg:       cfg,
		started:   time.Now(),
		jobs:      map[string]*job{},
		workers:   map[string]*worker{},
		manifests: map[[16]byte]*dataset.Manifest{},
		term:      1,
		fencing:   make(chan struct{}),
	}
	if cfg.Log != nil {
		d.term, d.book = cfg.Log.State().Term, newLogbook(cfg.Log)
	}
	d.metrics = newMetrics(d)
	return d, nil
}

// Register adds the dispatcher's services to a server.
func (d *Dispatcher) Register(s grpc.ServiceRegistrar) {
	workerv1.RegisterWorkerServiceServer(s, &workerService{d: d})
	feedv1.RegisterFeedServiceServer(s, &feedService{d: d})
	statusv1.RegisterStatusServiceServer(s, &statusService{d: d})
}

// Run keeps time and writes the log until ctx ends: it watches for lost workers, idle jobs and long waits. It then closes
// all streams. That another dispatcher leads now is an error of kind Conflict.
func (d *Dispatcher) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var writing sync.WaitGroup
	defer writing.Wait()
	defer cancel()
	if d.book != nil {
		writing.Go(func() {
			err := d.book.run(ctx, d.cfg.Lease/3, func(err error) { d.cfg.Logger.Warn("the log can't be written and is tried again", "error", err) })
			if err != nil {
				d.mu.Lock()
				defer d.mu.Unlock()
				d.fenced(err)
			}
		})
	}
	tick := time.NewTicker(d.pace())
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			d.closeAll()
			return nil
		case <-d.fencing:
			d.closeAll()
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.fence
		case <-tick.C:
			d.tick()
		}
	}
}

func (d *Dispatcher) closeAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, w := range d.workers {
		w.out.close(errGoingAway)
	}
	for _, j := range d.jobs {
		for _, s := range j.sidecars {
			s.out.close(errGoingAway)
		}
	}
}

// tick does what depends on time.
func (d *Dispatcher) tick() {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.now()
	d.settle(now)
	d.noteMarks(now)
	d.beat()
	for _, w := range d.sortedWorkers() {
		if w.silentFor(now) > 3*d.cfg.Heartbeat {
			d.cfg.Logger.Warn("worker is silent and taken for lost", "worker", w.name, "silent", w.silentFor(now))
			w.out.close(errSilent)
			d.dropWorker(w)
		}
	}
	for _, j := range d.sortedJobs() {
		j.tick(now)
	}
}

// beat tells everyone that this dispatcher is alive.
func (d *Dispatcher) beat() {
	sign := d.sign()
	for _, w := range d.workers {
		w.out.put(&workerv1.ConnectResponse{Message: &workerv1.ConnectResponse_Beat{Beat: sign}})
	}
	for _, j := range d.jobs {
		for _, s := range j.sidecars {
			s.out.put(&feedv1.AttachResponse{Message: &feedv1.AttachResponse_Beat{Beat: sign}})
		}
	}
}

// sign is a sign of life, which says when the next is due.
func (d *Dispatcher) sign() *workerv1.Beat { return &workerv1.Beat{NextMs: d.pace().Milliseconds()} }

// pace is the pause between looks at the clock.
func (d *Dispatcher) pace() time.Duration { return max(d.cfg.Heartbeat/4, 10*time.Millisecond) }

// now is the time since the dispatcher was made.
func (d *Dispatcher) now() time.Duration { return time.Since(d.started) }

func (d *Dispatcher) sortedJobs() []*job {
	return slices.SortedFunc(maps.Values(d.jobs), func(a, b *job) int { return cmp.Compare(a.name, b.name) })
}

func (d *Dispatcher) sortedWorkers() []*worker {
	return slices.SortedFunc(maps.Values(d.workers), func(a, b *worker) int { return cmp.Compare(a.name, b.name) })
}
