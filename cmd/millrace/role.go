package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

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
type monitor struct{ collectors []prometheus.Collector }

func (m *monitor) add(c ...prometheus.Collector) { m.collectors = append(m.collectors, c...) }

// serve runs the parts that start sets going, until the context ends or one of them fails.
func (a *app) serve(ctx context.Context, r roleFlags, start func(context.Context, *service.Group, *monitor) error) error {
	g := service.NewGroup(ctx)
	m := &monitor{}
	if err := start(g.Context(), g, m); err != nil {
		g.Stop()
		_ = g.Wait(stopGrace)
		return err
	}
	if err := a.startMonitor(g, r, m); err != nil {
		g.Stop()
		_ = g.Wait(stopGrace)
		return err
	}
	return g.Wait(stopGrace)
}

func (a *app) startMonitor(g *service.Group, r roleFlags, m *monitor) error {
	if r.metrics == "" {
		return nil
	}
	registry, err := service.NewRegistry(m.collectors...)
	if err != nil {
		return err
	}
	l, err := service.Listen(g.Context(), r.metrics)
	if err != nil {
		return err
	}
	g.Go(func(ctx context.Context) error { return service.ServeMonitor(ctx, l, registry) })
	return nil
}

// ready writes the one line that says a role can be used.
func (a *app) ready(facts map[string]any) error {
	facts["ready"] = true
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
