package feed

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/internal/errkind"
)

// metrics are the figures of the sidecar as a whole; those of ranks are kept by package session.
type metrics struct {
	fetchSeconds *prometheus.HistogramVec
	fetchBytes   prometheus.Counter
	held         prometheus.GaugeFunc
	budget       prometheus.GaugeFunc
	waiting      prometheus.GaugeFunc
	connections  prometheus.GaugeFunc
	pool         prometheus.GaugeFunc
}

func newMetrics(s *Sidecar) *metrics {
	gauge := func(name, help string, f func() float64) prometheus.GaugeFunc {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "millrace_feed_" + name, Help: help}, f)
	}
	return &metrics{
		fetchSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "millrace_feed_fetch_seconds", Help: "Time that fetching the slices of one request took, by how it ended.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2.5, 12),
		}, []string{"result"}),
		fetchBytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "millrace_feed_fetched_bytes_total", Help: "Bytes of slices that were fetched.",
		}),
		held: gauge("held_bytes", "Bytes of slices and batches that are held or under way.", func() float64 { return float64(s.queue.Used()) }),
		budget: gauge("budget_bytes", "Bytes that slices and batches may take.", func() float64 {
			return float64(s.cfg.payload())
		}),
		waiting: gauge("fetch_queue_requests", "Requests for slices that are not done.", func() float64 { return float64(s.queue.Waiting()) }),
		connections: gauge("worker_connections", "Open connections to workers.", func() float64 {
			return float64(s.queue.Connections())
		}),
		pool: gauge("pool_bytes", "Bytes of buffers, in use or kept for reuse.", func() float64 {
			stats := s.pool.Stats()
			return float64(stats.LiveBytes + stats.IdleBytes)
		}),
	}
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.fetchSeconds, m.fetchBytes, m.held, m.budget, m.waiting, m.connections, m.pool}
}

func (m *metrics) fetched(_ string, bytes int64, took time.Duration, err error) {
	result := "ok"
	if err != nil {
		result = errkind.Of(err).String()
	}
	m.fetchSeconds.WithLabelValues(result).Observe(took.Seconds())
	m.fetchBytes.Add(float64(bytes))
}
