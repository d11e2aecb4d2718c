// Package storage measures reading over S3: a real server on the loopback address, where need be behind a proxy that fails
// by rule, read as a worker reads it.
package storage

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/millrace/millrace/internal/errkind"
)

// Options say how to measure.
type Options struct {
	// Server is the program versitygw.
	Server string
	// Scale divides the number of samples of a scenario, for a quick look; 1: all of them.
	Scale int64
	// Log gets a line for each step.
	Log io.Writer
}

// Scenario is one of the measurements.
type Scenario struct {
	Name, About string
	run         func(context.Context, *bench) (*Result, error)
}

// Scenarios lists them.
func Scenarios() []Scenario {
	return []Scenario{
		{"s3_10k", "block-shuffled samples of 10 KiB from tar shards of 64 MB", shuffled10k},
		{"s3_100k", "the same of 100 KiB, beside a plain download of the shards", shuffled100k},
		{"tail", "batches of 64 single samples where one reply in a hundred is 50 times slower", tail},
		{"faults", "1 % of bodies cut and 5 % SlowDown on one prefix, another one beside it", faults},
		{"mixing", "classes in batches of 256 from a set of 1,000 classes that is sorted by class", mixing},
		{"first_batch", "the first batch of 1,000 shards of which nothing is known", firstBatch},
	}
}

// Find is the scenario of a name.
func Find(name string) (Scenario, error) {
	var names []string
	for _, s := range Scenarios() {
		if s.Name == name {
			return s, nil
		}
		names = append(names, s.Name)
	}
	return Scenario{}, errkind.Errorf(errkind.Invalid, "there is no scenario %q of storage; there are %s", name, strings.Join(names, ", "))
}

// Result is what a scenario measured. Figures that it does not have are left out.
type Result struct {
	Scenario string `json:"scenario"`
	// CPU is user and system time of this process for each sample; the server is another process.
	CPU           float64 `json:"cpu_us_per_sample,omitempty"`
	SamplesPerS   float64 `json:"samples_per_s,omitempty"`
	Samples       int64   `json:"samples,omitempty"`
	Requests      int64   `json:"requests"`
	Amplification float64 `json:"amplification,omitempty"`
	P50           float64 `json:"p50_ms,omitempty"`
	P99           float64 `json:"p99_ms,omitempty"`
	// ExtraRequests and Reread are shares.
	ExtraRequests float64 `json:"extra_requests"`
	Errors        int64   `json:"errors"`
	Reread        float64 `json:"reread"`
	// PlainCPU is what a plain download of the same bytes takes for each sample; Ratio is ours by that.
	PlainCPU float64 `json:"plain_cpu_us_per_sample,omitempty"`
	Ratio    float64 `json:"ratio,omitempty"`
	// SampleRequests is how many requests there would be if each sample were one.
	SampleRequests int64 `json:"sample_requests,omitempty"`
	// UnhedgedP99 is P99 without second requests.
	UnhedgedP99 float64 `json:"unhedged_p99_ms,omitempty"`
	// OtherSlower is how much longer the healthy prefix took beside the faulty one, as a share.
	OtherSlower *float64 `json:"other_slower,omitempty"`
	Throttled   int64    `json:"throttled,omitempty"`
	Cut         int64    `json:"cut,omitempty"`
	// Classes are those in a batch: the mean and the least.
	Classes      float64 `json:"classes,omitempty"`
	ClassesLeast int     `json:"classes_least,omitempty"`
	Blocks       int64   `json:"blocks,omitempty"`
	Batches      int64   `json:"batches,omitempty"`
	// FirstBatch is by the clock, from an empty cache, in manifest order and in blocks.
	FirstBatch      float64 `json:"first_batch_s,omitempty"`
	FirstBatchBlock float64 `json:"first_batch_block_s,omitempty"`
	ShardsPerS      float64 `json:"shards_per_s,omitempty"`
	PerShard        float64 `json:"requests_per_shard,omitempty"`
	// PlainShardsPerS is the rate at which a plain reader reads the beginning of each shard.
	PlainShardsPerS float64 `json:"plain_shards_per_s,omitempty"`
}

// Run measures one scenario.
func Run(ctx context.Context, s Scenario, o Options) (*Result, error) {
	if o.Server == "" {
		return nil, errkind.Errorf(errkind.Invalid, "the program versitygw is needed; .ci/setup-servers builds it, --server names it")
	}
	if o.Scale < 1 {
		return nil, errkind.Errorf(errkind.Invalid, "a scale of %d is none: give 1 at least", o.Scale)
	}
	dir, err := os.MkdirTemp("", "millrace-storage-")
	if err != nil {
		return nil, fmt.Errorf("making a folder for the data: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	b := &bench{Options: o, dir: dir, root: filepath.Join(dir, "root")}
	defer b.close()
	r, err := s.run(ctx, b)
	if err != nil {
		return nil, fmt.Errorf("scenario %s: %w", s.Name, err)
	}
	r.Scenario = s.Name
	return r, nil
}
