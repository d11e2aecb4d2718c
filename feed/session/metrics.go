package session

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the figures of what is fed.
type Metrics struct {
	rows, bytes, batches *prometheus.CounterVec
	stall                *prometheus.CounterVec
	fill                 *prometheus.GaugeVec
	padding              *prometheus.CounterVec
	sessions             prometheus.Gauge
	reconnects           prometheus.Counter
	ringBytes            prometheus.Gauge
	ringInline           prometheus.Counter
}

// NewMetrics makes figures that are all zero.
func NewMetrics() *Metrics {
	byRank := []string{"job", "rank"}
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "millrace_feed_" + name, Help: help}, byRank)
	}
	return &Metrics{
		rows:    counter("rows_total", "Rows handed over to ranks, without those that only fill a batch."),
		padding: counter("padding_rows_total", "Rows handed over to ranks that only fill a batch."),
		bytes:   counter("bytes_total", "Bytes of the batches handed over to ranks."),
		batches: counter("batches_total", "Batches handed over to ranks."),
		stall:   counter("stall_seconds_total", "Time in which a rank had consumed all it was given and no batch was ready."),
		fill: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "millrace_feed_ready_batches", Help: "Batches that are ready to be handed over to a rank.",
		}, byRank),
		sessions: prometheus.NewGauge(prometheus.GaugeOpts{Name: "millrace_feed_sessions", Help: "Open sessions."}),
		ringBytes: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "millrace_feed_ring_bytes", Help: "Bytes of memory shared with trainers for their batches; 0 when all batches go in messages.",
		}),
		ringInline: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "millrace_feed_ring_inline_batches_total", Help: "Batches that were sent through the socket of a ring, since no slot had room for them.",
		}),
		reconnects: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "millrace_feed_dispatcher_reconnects_total", Help: "Streams to the dispatcher that broke and were opened again.",
		}),
	}
}

// Collectors are the metrics, for a registry.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.rows, m.padding, m.bytes, m.batches, m.stall, m.fill, m.sessions, m.reconnects, m.ringBytes, m.ringInline}
}

// rankMetrics are the figures of one rank.
type rankMetrics struct {
	rows, padding, bytes, batches, stall prometheus.Counter
	fill                                 prometheus.Gauge
}

func (m *Metrics) rank(job string, rank int) rankMetrics {
	r := strconv.Itoa(rank)
	return rankMetrics{
		rows: m.rows.WithLabelValues(job, r), padding: m.padding.WithLabelValues(job, r), bytes: m.bytes.WithLabelValues(job, r),
		batches: m.batches.WithLabelValues(job, r), stall: m.stall.WithLabelValues(job, r), fill: m.fill.WithLabelValues(job, r),
	}
}

// forget drops the figures of a rank that has left.
func (m *Metrics) forget(job string, rank int) {
	labels := prometheus.Labels{"job": job, "rank": strconv.Itoa(rank)}
	for _, v := range []*prometheus.CounterVec{m.rows, m.padding, m.bytes, m.batches, m.stall} {
		v.Delete(labels)
	}
	m.fill.Delete(labels)
}

func (r *rankMetrics) handedOver(b *Batch) {
	r.rows.Add(float64(b.NumValid))
	r.padding.Add(float64(b.NumRows - b.NumValid))
	r.bytes.Add(float64(b.Bytes))
	r.batches.Inc()
}

func (r *rankMetrics) stalled(d time.Duration) { r.stall.Add(d.Seconds()) }
