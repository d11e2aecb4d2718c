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

// Run keeps time until ctx ends: it watches for lost workers, idle jobs and long waits. It then closes all streams.
func (d *Dispatcher) Run(ctx context.Context) error {
	tick := time.NewTicker(max(d.cfg.Heartbeat/4, 10*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			d.closeAll()
			return nil
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

// now is the time since the dispatcher was made.
func (d *Dispatcher) now() time.Duration { return time.Since(d.started) }

func (d *Dispatcher) sortedJobs() []*job {
	return slices.SortedFunc(maps.Values(d.jobs), func(a, b *job) int { return cmp.Compare(a.name, b.name) })
}

func (d *Dispatcher) sortedWorkers() []*worker {
	return slices.SortedFunc(maps.Values(d.workers), func(a, b *worker) int { return cmp.Compare(a.name, b.name) })
}
