package worker

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/isolate"
)

// metrics are a worker's Prometheus metrics.
type metrics struct {
	samples, rows, sessions prometheus.Counter
	errors                  *prometheus.CounterVec
	tasks                   *prometheus.HistogramVec
}

func newMetrics() *metrics {
	return &metrics{
		samples: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "millrace_worker_samples_total", Help: "Samples that the first stage has processed.",
		}),
		rows: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "millrace_worker_rows_total", Help: "Rows of final output partitions made.",
		}),
		sessions: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "millrace_worker_sessions_total", Help: "Times that the worker has registered with a dispatcher.",
		}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_worker_errors_total", Help: "Source partitions that could not be made, by kind of error.",
		}, []string{"kind"}),
		tasks: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "millrace_worker_task_duration_seconds", Help: "Time that tasks ran, by stage.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 9),
		}, []string{"stage"}),
	}
}

func (m *metrics) task(stage string, d time.Duration) {
	m.tasks.WithLabelValues(stage).Observe(d.Seconds())
}

func (m *metrics) failed(err error) { m.errors.WithLabelValues(errkind.Of(err).String()).Inc() }

// Collectors are the worker's metrics, to be registered by the process.
func (w *Worker) Collectors() []prometheus.Collector {
	m := w.metrics
	decoders := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "millrace_worker_decoder_processes", Help: "Isolated decoders that live.",
	}, func() float64 { return float64(w.decoders().Processes) })
	deaths := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "millrace_worker_decoder_deaths_total", Help: "Isolated decoders that an image has ended.",
	}, func() float64 { return float64(w.decoders().Died) })
	return []prometheus.Collector{m.samples, m.rows, m.sessions, m.errors, m.tasks, decoders, deaths, newState(w)}
}

// decoders counts isolated decoders.
func (w *Worker) decoders() isolate.Stats {
	if w.deps.Isolated == nil {
		return isolate.Stats{}
	}
	return w.deps.Isolated.Stats()
}

// state is what is only known when it is asked for.
type state struct {
	worker *Worker
	gauges []gauge
}

// gauge is one metric of state. values is by label, with "" for a metric without one.
type gauge struct {
	desc   *prometheus.Desc
	values func(*Worker, load) map[string]float64
}

func newState(w *Worker) *state {
	single := func(fn func(*Worker, load) int64) func(*Worker, load) map[string]float64 {
		return func(w *Worker, l load) map[string]float64 { return map[string]float64{"": float64(fn(w, l))} }
	}
	return &state{worker: w, gauges: []gauge{
		{
			prometheus.NewDesc("millrace_worker_held_bytes", "Bytes of partitions that are held or being read.", nil, nil),
			single(func(w *Worker, _ load) int64 { return w.store.Bytes() }),
		},
		{
			prometheus.NewDesc("millrace_worker_budget_bytes", "Bytes of partitions that the worker may hold.", nil, nil),
			single(func(w *Worker, _ load) int64 { return w.cfg.BudgetBytes }),
		},
		{
			prometheus.NewDesc("millrace_worker_resident_bytes", "Resident memory of the process.", nil, nil),
			single(func(*Worker, load) int64 { return residentBytes() }),
		},
		{
			prometheus.NewDesc("millrace_worker_running_tasks", "Tasks that run.", nil, nil),
			single(func(_ *Worker, l load) int64 { return int64(l.running) }),
		},
		{
			prometheus.NewDesc("millrace_worker_jobs", "Jobs on the worker.", nil, nil),
			single(func(_ *Worker, l load) int64 { return int64(l.jobs) }),
		},
		{
			prometheus.NewDesc("millrace_worker_buffer_bytes", "Bytes of buffers, in use or kept idle.", []string{"state"}, nil),
			func(w *Worker, _ load) map[string]float64 {
				pool := w.deps.Pool.Stats()
				return map[string]float64{"live": float64(pool.LiveBytes), "idle": float64(pool.IdleBytes)}
			},
		},
		{
			prometheus.NewDesc("millrace_worker_waiting_partitions", "Partitions that wait for a task, or tasks that wait for room, by reason.", []string{"reason"}, nil),
			func(_ *Worker, l load) map[string]float64 {
				out := map[string]float64{}
				for reason, n := range l.waiting {
					out[reason] = float64(n)
				}
				return out
			},
		},
	}}
}

// Describe lists the metrics.
func (s *state) Describe(ch chan<- *prometheus.Desc) {
	for _, g := range s.gauges {
		ch <- g.desc
	}
}

// Collect asks the worker.
func (s *state) Collect(ch chan<- prometheus.Metric) {
	l := s.worker.load()
	for _, g := range s.gauges {
		for label, v := range g.values(s.worker, l) {
			var labels []string
			if label != "" {
				labels = []string{label}
			}
			m, err := prometheus.NewConstMetric(g.desc, prometheus.GaugeValue, v, labels...)
			if err != nil {
				m = prometheus.NewInvalidMetric(g.desc, err)
			}
			ch <- m
		}
	}
}
