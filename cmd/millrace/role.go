package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/loader/dataset"
)

// stopGrace is how long the parts of a role may take to stop.
const stopGrace = 1500 * time.Millisecond

// roleFlags are those of every role.
type roleFlags struct {
	config, metrics string
}

func (r *roleFlags) register(c *cobra.Command) {
	c.Flags().StringVar(&r.config, service.ConfigFlag, "", "YAML file whose keys are the names of these flags")
	c.Flags().StringVar(&r.metrics, "metrics", "", "address that serves Prometheus metrics at /metrics, such as 127.0.0.1:9090; empty: none")
}

// monitor collects the metrics of a role's parts.
type monitor struct {
	collectors []prometheus.Collector
	others     prometheus.Gatherers // of other processes
	listener   net.Listener         // nil: nobody asked for metrics
}

// openMonitor listens at the address for metrics, so that a role whose address is taken does not even start.
func openMonitor(ctx context.Context, address string) (*monitor, error) {
	m := &monitor{}
	if address == "" {
		return m, nil
	}
	var err error
	m.listener, err = service.Listen(ctx, address)
	return m, err
}

func (m *monitor) add(c ...prometheus.Collector) { m.collectors = append(m.collectors, c...) }

// serve runs the parts that start sets going, until the context ends or one of them fails.
func (a *app) serve(ctx context.Context, r roleFlags, start func(context.Context, *service.Group, *monitor) error) error {
	m, err := openMonitor(ctx, r.metrics)
	if err != nil {
		return wrongSettings(err)
	}
	g := service.NewGroup(ctx)
	if err = start(ctx, g, m); err == nil {
		err = m.start(g)
	}
	if err != nil {
		g.Stop()
		_ = g.Wait(stopGrace)
		if m.listener != nil {
			_ = m.listener.Close()
		}
		return wrongSettings(err)
	}
	return g.Wait(stopGrace)
}

// wrongSettings makes an invalid setting, the only thing that can be invalid before a role serves, a usage error.
func wrongSettings(err error) error {
	if errkind.Of(err) == errkind.Invalid {
		return usageError{err}
	}
	return err
}

func (m *monitor) start(g *service.Group) error {
	if m.listener == nil {
		return nil
	}
	registry, err := service.NewRegistry(m.collectors...)
	if err != nil {
		return err
	}
	g.Go(func(ctx context.Context) error {
		return service.ServeMonitor(ctx, m.listener, append(prometheus.Gatherers{registry}, m.others...))
	})
	return nil
}

// ready writes the one line that says a role can be used.
func (a *app) ready(m *monitor, facts map[string]any) error {
	facts["ready"] = true
	if m.listener != nil {
		facts["metrics"] = m.listener.Addr().String()
	}
	if err := json.NewEncoder(a.out).Encode(facts); err != nil {
		return fmt.Errorf("writing that the role is ready: %w", err)
	}
	return nil
}

// indexBars shows a bar for each source that is being indexed.
type indexBars struct {
	out  io.Writer
	mu   sync.Mutex
	bars map[string]*progress.Bar
}

func newIndexBars(out io.Writer) *indexBars {
	return &indexBars{out: out, bars: map[string]*progress.Bar{}}
}

func (b *indexBars) show(source []string, p dataset.Progress) {
	name := strings.Join(source, ", ")
	b.mu.Lock()
	defer b.mu.Unlock()
	bar := b.bars[name]
	if bar == nil {
		bar = progress.New(b.out, "indexing "+name, "shards")
		b.bars[name] = bar
	}
	bar.Set(indexState(p))
	if p.Done {
		bar.Close()
		delete(b.bars, name)
	}
}

func (b *indexBars) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, bar := range b.bars {
		bar.Close()
	}
}
