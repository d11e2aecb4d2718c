package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// relayTimeout is how long a worker process may take to answer before its metrics are left out.
const relayTimeout = time.Second

// relay gathers the metrics of a worker process, for those who scrape its parent: the worker's own ones, with a label
// that says which process they are of.
type relay struct {
	worker string
	client *http.Client
}

// newRelay is for the worker which serves metrics on a Unix socket.
func newRelay(worker, socket string) *relay {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	return &relay{worker: worker, client: &http.Client{
		Timeout: relayTimeout, Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true},
	}}
}

// Gather asks the worker. One that can't be reached, since it has died or just starts, has no metrics.
func (r *relay) Gather() ([]*dto.MetricFamily, error) {
	reply, err := r.client.Get("http://worker/metrics") //nolint:noctx // prometheus.Gatherer has no context; the client has a time limit.
	if err != nil {
		return nil, nil //nolint:nilerr // An error would take the other processes' metrics away too.
	}
	defer func() { _ = reply.Body.Close() }()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(reply.Body)
	if err != nil {
		return nil, fmt.Errorf("reading the metrics of worker process %s: %w", r.worker, err)
	}
	label := "worker"
	var own []*dto.MetricFamily
	for name, family := range families {
		if !strings.HasPrefix(name, "millrace_") {
			continue
		}
		for _, m := range family.GetMetric() {
			m.Label = append(m.Label, &dto.LabelPair{Name: &label, Value: &r.worker})
		}
		own = append(own, family)
	}
	return own, nil
}
