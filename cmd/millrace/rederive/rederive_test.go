package rederive_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/cmd/millrace/rederive"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset/datasettest"
	"github.com/millrace/millrace/loader/order"
	"github.com/millrace/millrace/loader/store/memstore"
	"github.com/millrace/millrace/preprocess/dispatch"
	"github.com/millrace/millrace/preprocess/lineage"
	"github.com/millrace/millrace/preprocess/recipe"
	workerv1 "github.com/millrace/millrace/proto/millrace/worker/v1"
)

const text = `
source: mem://data/train.tar
fields: {label: cls, bin: bin}
operators:
  - label: {field: label}
  - select: {fields: [label, bin], barrier: true}
output: {label: {dtype: int64}, bin: {}}
partition: {target_bytes: 600}
`

// config is a job over twenty samples, five to a source partition.
func config(t *testing.T, samples []datasettest.Sample) rederive.Config {
	t.Helper()
	m := memstore.New()
	m.Put("train.tar", datasettest.Tar(t, samples...))
	set := &datasettest.Set{
		Store: m, Samples: samples, Source: []string{"mem://data/train.tar"},
		Resolver: datasettest.Resolver(t, map[string]*memstore.Store{"data": m}),
	}
	manifest := set.Build(t)
	r, err := recipe.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	wire, err := r.ToProto()
	if err != nil {
		t.Fatal(err)
	}
	id := manifest.ID()
	return rederive.Config{
		Plan: &workerv1.JobPlan{
			Job: "job", Recipe: wire, Manifest: id[:], PlanDigest: make([]byte, 16), Weight: 1,
			Layout: dispatch.WireLayout(order.Layout{
				Shuffle: order.ShuffleNone, NumSamples: int64(len(samples)), BlockSamples: 5, WindowBlocks: 1, Lanes: 1, PartitionSamples: 5,
			}),
		},
		Manifest: manifest, Resolver: set.Resolver, Slots: map[string]int{"cpu": 2}, BudgetBytes: 1 << 20, Logger: slog.New(slog.DiscardHandler),
	}
}

// A partition made again is the same each time, in whole, over all stages.
func TestSourceMakesTheSameOutputsAgain(t *testing.T) {
	cfg := config(t, datasettest.Samples(20))
	first, err := rederive.Source(t.Context(), cfg, lineage.SourceID(3, 1))
	if err != nil {
		t.Fatal(err)
	}
	rows, last := int64(0), lineage.ID{}
	for _, o := range first {
		rows += o.Rows
		if o.ID.Epoch != 3 || o.ID.Source != 1 || o.ID.Depth != 2 || o.ID.Compare(last) <= 0 || o.Hash == [16]byte{} {
			t.Errorf("output %s of %d rows comes after %s", o.ID, o.Rows, last)
		}
		last = o.ID
	}
	if rows != 5 || len(first) < 2 {
		t.Errorf("five samples became %d rows in %d outputs", rows, len(first))
	}
	again, err := rederive.Source(t.Context(), cfg, lineage.SourceID(3, 1))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, again); diff != "" {
		t.Errorf("made again (-first +second):\n%s", diff)
	}
}

// What is wrong with a sample is said as a job would hear it.
func TestSourceSaysWhichSampleIsBad(t *testing.T) {
	samples := datasettest.Samples(20)
	for i := range samples[7].Members {
		if samples[7].Members[i].Ext == "cls" {
			samples[7].Members[i].Data = []byte("seven")
		}
	}
	_, err := rederive.Source(t.Context(), config(t, samples), lineage.SourceID(0, 1))
	if errkind.Of(err) != errkind.BadData || !strings.Contains(err.Error(), "train.tar!"+samples[7].Key) {
		t.Errorf("the error is %v (%v)", err, errkind.Of(err))
	}
}

// A caller who gives up gets an answer, and nothing stays behind.
func TestSourceEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := rederive.Source(ctx, config(t, datasettest.Samples(20)), lineage.SourceID(0, 0)); errkind.Of(err) != errkind.Canceled {
		t.Errorf("the error is %v", err)
	}
}
