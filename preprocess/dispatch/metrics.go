package dispatch

import "github.com/prometheus/client_golang/prometheus"

// metrics are the dispatcher's figures.
type metrics struct {
	sealed      prometheus.Counter
	bad         *prometheus.CounterVec
	adopted     prometheus.Counter
	jobs        prometheus.GaugeFunc
	workers     prometheus.GaugeFunc
	outstanding prometheus.GaugeFunc
	held        prometheus.GaugeFunc
}

func newMetrics(d *Dispatcher) *metrics {
	sum := func(f func() float64) func() float64 {
		return func() float64 {
			d.mu.Lock()
			defer d.mu.Unlock()
			return f()
		}
	}
	return &metrics{
		sealed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "millrace_dispatcher_sealed_batches_total", Help: "Global batches whose rows are all placed.",
		}),
		bad: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_dispatcher_bad_samples_total", Help: "Samples that an operator can't process, by what became of them.",
		}, []string{"on_error"}),
		adopted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "millrace_dispatcher_adopted_partitions_total", Help: "Source partitions that were taken over from workers that came back.",
		}),
		jobs: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "millrace_dispatcher_jobs", Help: "Jobs that are known.",
		}, sum(func() float64 { return float64(len(d.jobs)) })),
		workers: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "millrace_dispatcher_workers", Help: "Workers that are connected.",
		}, sum(func() float64 { return float64(len(d.workers)) })),
		outstanding: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "millrace_dispatcher_outstanding_partitions", Help: "Source partitions given to workers and not yet done.",
		}, sum(func() (n float64) {
			for _, j := range d.jobs {
				n += float64(len(j.tasks))
			}
			return n
		})),
		held: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "millrace_dispatcher_held_bytes", Help: "Bytes of output partitions that are not yet consumed by every rank.",
		}, sum(func() (n float64) {
			for _, j := range d.jobs {
				if j.ledger != nil {
					n += float64(j.ledger.HeldBytes())
				}
			}
			return n
		})),
	}
}

// Collectors are the dispatcher's metrics, for a registry.
func (d *Dispatcher) Collectors() []prometheus.Collector {
	m := d.metrics
	return []prometheus.Collector{m.sealed, m.bad, m.adopted, m.jobs, m.workers, m.outstanding, m.held}
}
