package lookback

import (
	"context"
	"fmt"
	"slices"

	"github.com/millrace/millrace/cmd/millrace/view"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/order"
	"github.com/millrace/millrace/preprocess/dispatch"
	"github.com/millrace/millrace/preprocess/lineage"
	workerv1 "github.com/millrace/millrace/proto/millrace/worker/v1"
)

// Lineage says what a source partition is made from and, where the order alone says it, which steps it feeds.
func (j *Job) Lineage(ctx context.Context, s *Source, id lineage.ID) (*view.Lineage, error) {
	record, err := j.Record(s, id)
	if err != nil {
		return nil, err
	}
	out := &view.Lineage{
		Job: j.Name, Partition: id.String(), Manifest: record.Manifest.String(), Plan: record.Plan.String(), Seed: record.Seed,
		Shuffle: s.Layout.Shuffle.String(), FirstPosition: record.FirstPosition, Outputs: j.Recorded(),
	}
	ordinals := s.Layout.Epoch(j.Settings.Seed, id.Epoch).Samples(int64(id.Source), nil) //nolint:gosec // Checked by Record.
	keys, err := s.keys(ctx, ordinals)
	if err != nil {
		return nil, err
	}
	for i, ordinal := range ordinals {
		out.Samples = append(out.Samples, view.LineageSample{Sample: ordinal, Key: keys[i]})
	}
	if !s.Plan.KeepsRows {
		return out, nil
	}
	b, err := j.batchingOf(id.Epoch)
	out.Steps = stepsFed(b, s.Layout.NumSamples, record.FirstPosition, record.FirstPosition+record.NumSamples-1)
	return out, err
}

// stepsFed are the first and the last step that rows first to last of the stream are in; none for rows that no step takes.
func stepsFed(b order.Batching, rows, first, last int64) []int64 {
	from, to := max(b.OriginStep, b.StepOfRow(first)), min(b.StepOfRow(last), b.NumSteps(rows)-1)
	if to < from {
		return nil
	}
	return []int64{from, to}
}

// Record is the lineage of a source partition of the job. One that there is not is an error of kind NotFound.
func (j *Job) Record(s *Source, id lineage.ID) (lineage.Record, error) {
	epoch := s.Layout.Epoch(j.Settings.Seed, id.Epoch)
	if n := epoch.NumPartitions(); id.Source >= uint64(n) { //nolint:gosec // Never negative.
		return lineage.Record{}, errkind.Errorf(errkind.NotFound, "an epoch of job %q has %d source partitions; there is no %s", j.Name, n, id)
	}
	pixels, err := s.Plan.PixelsDigest()
	if err != nil {
		return lineage.Record{}, err
	}
	part := epoch.Partition(int64(id.Source)) //nolint:gosec // Checked above.
	return lineage.Record{
		Manifest: order.Digest(s.Manifest.ID()), Plan: order.Digest(pixels), Seed: j.Settings.Seed, ID: id,
		FirstPosition: int64(id.Source) * s.Layout.PartitionSamples, NumSamples: part.NumSamples, //nolint:gosec // As above.
	}, nil
}

// Plan is the job as workers are told it.
func (j *Job) Plan(s *Source) (*workerv1.JobPlan, error) {
	recipe, err := s.Plan.Recipe.ToProto()
	if err != nil {
		return nil, err
	}
	pixels, err := s.Plan.PixelsDigest()
	if err != nil {
		return nil, err
	}
	manifest := s.Manifest.ID()
	return &workerv1.JobPlan{
		Job: j.Name, Recipe: recipe, Manifest: manifest[:], Seed: j.Settings.Seed, PlanDigest: pixels[:], Weight: 1, Layout: dispatch.WireLayout(s.Layout),
		OnError: j.Settings.OnError,
	}, nil
}

// Recorded is what the dispatcher has of the outputs of the partition that was asked for.
func (j *Job) Recorded() []view.LineageOutput {
	var out []view.LineageOutput
	for _, r := range j.Records {
		out = append(out, view.LineageOutput{
			Partition: r.GetPartition(), Rows: r.GetRows(), Bytes: r.GetBytes(), Hash: fmt.Sprintf("%x", r.GetContentHash()), Worker: r.GetWorker(),
		})
	}
	return out
}

// Difference says where outputs that were made again are not those on record, "" when they are. A dispatcher may not have
// heard of every output yet.
func Difference(made, recorded []view.LineageOutput) string {
	for _, want := range recorded {
		i := slices.IndexFunc(made, func(o view.LineageOutput) bool { return o.Partition == want.Partition })
		switch {
		case i < 0:
			return fmt.Sprintf("%s is on record and was not made", want.Partition)
		case made[i].Rows != want.Rows || made[i].Hash != want.Hash:
			return fmt.Sprintf("%s has %d rows and hash %s, on record are %d and %s", want.Partition, made[i].Rows, made[i].Hash, want.Rows, want.Hash)
		}
	}
	return ""
}
