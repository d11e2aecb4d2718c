// Package local runs dispatcher, workers and sidecar in one process: the same code as in a cluster, over in-memory
// connections, with finished partitions handed over by reference.
package local

import (
	"fmt"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/millrace/millrace/feed"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/preprocess/dispatch"
	"github.com/millrace/millrace/preprocess/isolate"
	"github.com/millrace/millrace/preprocess/partition"
	"github.com/millrace/millrace/preprocess/pypool"
	"github.com/millrace/millrace/preprocess/worker"
)

// memoryBuffer is the size of an in-memory connection, bytes. Only metadata passes.
const memoryBuffer = 256 << 10

// Config is what Local runs. Resolver, Cache and Logger of Dispatch serve the workers too.
type Config struct {
	// Name of the sidecar and the workers.
	Name     string
	Dispatch dispatch.Config
	// Workers in this process; each has all of Slots and WorkerBytes. 0: workers come from elsewhere.
	Workers int
	Slots   map[string]int
	// BlockBytes is what each worker may hold of shards, as worker.Config has it.
	BlockBytes int64
	// WorkerBytes is the budget of each worker, FeedBytes that of the sidecar.
	WorkerBytes, FeedBytes int64
	// AllowPython says which functions of users run; others than none need the pool. Run closes it.
	AllowPython string
	Python      *pypool.Pool
	// Isolated decodes images in other processes; nil: all are decoded in this one. Run closes it.
	Isolated *isolate.Pool
	// Scalar keeps image kernels from using SIMD.
	Scalar bool
	// Streams is how many slices are fetched at a time from workers of other processes.
	Streams int
	// Listeners are where trainers and workers of other processes connect.
	Listeners []net.Listener
	// TLS encrypts what comes over TCP, and connections to workers of other processes; nil: nothing.
	TLS *service.TLS
	// OnIdle, if set, is called each time the last session has closed.
	OnIdle func()
	// GoneTimeout is how long a session stays open without a connection; 0: the sidecar's default.
	GoneTimeout time.Duration
	// Control are options of the connection by which workers and sidecar talk to the dispatcher.
	Control []grpc.DialOption
	// Way, if set, is put before each way from a worker's partitions to the sidecar.
	Way func(partition.Fetcher) partition.Fetcher
}

// Local is all roles in one process.
type Local struct {
	cfg        Config
	dispatcher *dispatch.Dispatcher
	control    *grpc.ClientConn
	inner      *bufconn.Listener // to the dispatcher
	door       *bufconn.Listener // to the sidecar, for users in this process
	workers    []*worker.Worker
	pools      []*partition.Pool
	sidecar    *feed.Sidecar
}

// New makes all parts; Run starts them.
func New(cfg Config) (*Local, error) {
	l := &Local{cfg: cfg, inner: bufconn.Listen(memoryBuffer), door: bufconn.Listen(memoryBuffer)}
	var err error
	if l.dispatcher, err = dispatch.New(cfg.Dispatch); err != nil {
		return nil, err
	}
	if l.control, err = dial(l.inner, cfg.Control...); err != nil {
		return nil, err
	}
	fetchers := map[string]partition.Fetcher{}
	for i := range cfg.Workers {
		name := fmt.Sprintf("%s/w%d", cfg.Name, i)
		w, err := l.newWorker(name)
		if err != nil {
			return nil, err
		}
		way := partition.Local(w.Store())
		if cfg.Way != nil {
			way = cfg.Way(way)
		}
		fetchers["local:"+name] = way
	}
	sidecar := feed.Config{
		Name: cfg.Name, Dispatcher: l.control, Listeners: append(cfg.Listeners, l.door), BudgetBytes: cfg.FeedBytes, Streams: cfg.Streams,
		Local: fetchers, Services: l.dispatcher.Register, OnIdle: cfg.OnIdle, GoneTimeout: cfg.GoneTimeout, Logger: cfg.Dispatch.Logger,
		ServerOptions: cfg.TLS.ServerOptions(),
	}
	if cfg.TLS != nil {
		sidecar.WorkerTLS = cfg.TLS.Client
	}
	l.sidecar, err = feed.New(sidecar)
	return l, err
}

func (l *Local) newWorker(name string) (*worker.Worker, error) {
	pool := partition.NewPoolWithin(l.cfg.WorkerBytes)
	w, err := worker.New(worker.Config{
		Name: name, DataAddress: "local:" + name, Slots: l.cfg.Slots, BudgetBytes: l.cfg.WorkerBytes, Version: l.cfg.Dispatch.Version,
		BlockBytes: l.cfg.BlockBytes, Scalar: l.cfg.Scalar, AllowPython: l.cfg.AllowPython,
	}, worker.Deps{
		Dispatcher: l.control, Resolver: l.cfg.Dispatch.Resolver, Cache: l.cfg.Dispatch.Cache, Pool: pool, Python: l.cfg.Python,
		Isolated: l.cfg.Isolated,
		Logger:   l.cfg.Dispatch.Logger,
	})
	if err != nil {
		return nil, err
	}
	l.workers, l.pools = append(l.workers, w), append(l.pools, pool)
	return w, nil
}

// Dial is a connection to the sidecar from within this process.
func (l *Local) Dial(more ...grpc.DialOption) (*grpc.ClientConn, error) { return dial(l.door, more...) }

// HasSessions says whether a trainer's session is open.
func (l *Local) HasSessions() bool { return !l.sidecar.Idle() }

// Dispatcher is the dispatcher, for its status.
func (l *Local) Dispatcher() *dispatch.Dispatcher { return l.dispatcher }

// Collectors are the metrics of all parts. The workers' figures are those of the first.
func (l *Local) Collectors() []prometheus.Collector {
	all := append(l.dispatcher.Collectors(), l.sidecar.Collectors()...)
	if len(l.workers) > 0 {
		all = append(all, l.workers[0].Collectors()...)
	}
	return all
}
