package feed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/feed/fetch"
	"github.com/millrace/millrace/feed/flight"
	"github.com/millrace/millrace/feed/ring/serve"
	"github.com/millrace/millrace/feed/session"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/partition"
	feedv1 "github.com/millrace/millrace/proto/millrace/feed/v1"
	statusv1 "github.com/millrace/millrace/proto/millrace/status/v1"
)

const (
	// trimPause is how long an unused buffer stays in the process, at most twice.
	trimPause = 10 * time.Second
	// stopGrace is how long calls may take to end when the sidecar stops.
	stopGrace = 500 * time.Millisecond
	// maxIdleBytes of buffers are kept between batches; larger batches get fresh ones, which costs little beside them.
	maxIdleBytes = 24 << 20
)

// Sidecar feeds the ranks of one host.
type Sidecar struct {
	cfg     Config
	pool    *partition.Pool
	queue   *fetch.Queue
	table   *session.Table
	server  *flight.Server
	metrics *metrics

	stop     chan struct{} // closed by Close
	stopOnce sync.Once
	ended    chan struct{} // closed when Run has ended
}

// New makes a Sidecar that serves nobody before [Sidecar.Run]. Its errors are those of [Config.Validate].
func New(cfg Config) (*Sidecar, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := partition.RegisterTensorType(); err != nil {
		return nil, err
	}
	s := &Sidecar{cfg: cfg, pool: partition.NewPool(min(cfg.payload()/4, maxIdleBytes)), stop: make(chan struct{}), ended: make(chan struct{})}
	s.metrics = newMetrics(s)
	var err error
	s.queue, err = fetch.NewQueue(fetch.Config{
		Streams: cfg.Streams, BudgetBytes: cfg.payload(), Pool: s.pool, Local: cfg.Local, Dial: cfg.Dial,
		TLS: cfg.WorkerTLS, OnDone: s.metrics.fetched, Logger: cfg.Logger,
	})
	if err != nil {
		return nil, err
	}
	var leave func()
	if peers, ok := cfg.Dispatcher.(interface{ Leave() }); ok {
		leave = peers.Leave
	}
	s.table, err = session.NewTable(session.Config{
		Sidecar: cfg.Name, Client: feedv1.NewFeedServiceClient(cfg.Dispatcher), Queue: s.queue, Pool: s.pool,
		BudgetBytes: cfg.payload(), GoneTimeout: cfg.GoneTimeout, Leave: leave, OnIdle: cfg.OnIdle, Logger: cfg.Logger,
	})
	if err != nil {
		return nil, err
	}
	s.server, err = flight.NewServer(flight.Config{
		Table: s.table, Status: statusv1.NewStatusServiceClient(cfg.Dispatcher), Logger: cfg.Logger,
	})
	return s, err
}

// Collectors are the sidecar's metrics, for a registry.
func (s *Sidecar) Collectors() []prometheus.Collector {
	return append(s.metrics.collectors(), s.table.Metrics().Collectors()...)
}

// Idle says whether no session is open.
func (s *Sidecar) Idle() bool { return s.table.Len() == 0 }

// Run serves until ctx ends or Close is called, which is no error, or a listener fails. It can be called once.
func (s *Sidecar) Run(ctx context.Context) error {
	defer close(s.ended)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var serving, parts sync.WaitGroup
	rings := serve.NewServer(s.table, s.cfg.Logger)
	for _, l := range openRings(ctx, &s.cfg) {
		s.server.OfferRing()
		parts.Go(func() {
			if err := rings.Serve(ctx, l); err != nil {
				cancel(err)
			}
		})
	}
	server := s.server.GRPC(s.cfg.ServerOptions...)
	if s.cfg.Services != nil {
		s.cfg.Services(server)
	}
	for _, l := range s.cfg.Listeners {
		serving.Go(func() { cancel(serveFlight(server, l)) })
	}
	parts.Go(func() { s.queue.Run(ctx) })
	parts.Go(func() { s.table.Run(ctx) })
	parts.Go(func() { s.trim(ctx) })

	select {
	case <-s.stop:
	case <-ctx.Done():
	}
	s.server.Shutdown()
	cause := context.Cause(ctx)
	cancel(nil)
	parts.Wait() // streams of ranks end with the table
	stopServer(server)
	serving.Wait()
	if errors.Is(cause, context.Canceled) || errors.Is(cause, context.DeadlineExceeded) {
		return nil
	}
	return cause
}

func serveFlight(server *grpc.Server, l net.Listener) error {
	if err := server.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return errkind.With(errkind.Unavailable, fmt.Errorf("serving trainers on %s: %w", l.Addr(), err))
	}
	return nil
}

// stopServer lets calls that are under way end, for a while.
func stopServer(server *grpc.Server) {
	timer := time.AfterFunc(stopGrace, server.Stop)
	defer timer.Stop()
	server.GracefulStop()
}

// trim returns memory that was not used for a while to the system.
func (s *Sidecar) trim(ctx context.Context) {
	tick := time.NewTicker(trimPause)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.pool.Trim()
		case <-ctx.Done():
			return
		}
	}
}

// Close ends Run and waits for it, at most until ctx ends.
func (s *Sidecar) Close(ctx context.Context) error {
	s.stopOnce.Do(func() { close(s.stop) })
	select {
	case <-s.ended:
		return nil
	case <-ctx.Done():
		return errkind.With(errkind.Canceled, fmt.Errorf("waiting for the sidecar to stop: %w", ctx.Err()))
	}
}
