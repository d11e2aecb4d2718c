package lookback

import (
	"context"

	"github.com/apache/arrow-go/v18/arrow/array"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/cmd/millrace/view"
	"github.com/millrace/millrace/feed/client"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/lineage"
	"github.com/millrace/millrace/preprocess/plan"
)

// Rows are what a rank got in a step, or all ranks (rank -1). Where every sample is a row the order alone says it, and
// no sample is read; else the recipe decides which samples become rows, and is run behind the connection that connect makes.
func (j *Job) Rows(ctx context.Context, s *Source, epoch uint64, step int64, rank int, connect func() (grpc.ClientConnInterface, error)) (rows []view.AuditRow, err error) {
	if s.Plan.KeepsRows && j.Settings.OnError != plan.Replace.String() {
		rows, err = j.orderRows(ctx, s, epoch, step, rank)
	} else {
		var conn grpc.ClientConnInterface
		if conn, err = connect(); err == nil {
			rows, err = j.remadeRows(ctx, conn, epoch, step, rank)
		}
	}
	if err != nil {
		return nil, err
	}
	e := s.Layout.Epoch(j.Settings.Seed, epoch)
	for i := range rows {
		source := e.Position(rows[i].Sample) / s.Layout.PartitionSamples
		rows[i].Partition = lineage.SourceID(epoch, uint64(source)).String() //nolint:gosec // A sample of the epoch has a position.
	}
	return rows, nil
}

// orderRows are the rows of a step by the order.
func (j *Job) orderRows(ctx context.Context, s *Source, epoch uint64, step int64, rank int) (rows []view.AuditRow, err error) {
	b, err := j.batchingAt(epoch, step)
	if err != nil {
		return nil, err
	}
	e := s.Layout.Epoch(j.Settings.Seed, epoch)
	var ordinals []int64
	for part := range j.parts() {
		if rank >= 0 && part%j.World != rank {
			continue
		}
		row := 0
		for _, segment := range b.RankRows(s.Layout.NumSamples, step, part, j.parts()) {
			for position := segment.First; position < segment.First+segment.NumRows; position++ {
				sample := e.Sample(position)
				rows = append(rows, view.AuditRow{Rank: part % j.World, Part: part / j.World, Row: row, Valid: segment.Valid, Sample: sample})
				ordinals = append(ordinals, sample)
				row++
			}
		}
	}
	if len(rows) == 0 {
		return nil, j.noStep(epoch, step)
	}
	keys, err := s.keys(ctx, ordinals)
	for i := range keys {
		rows[i].Key = keys[i]
	}
	return rows, err
}

// validColumn tells rows from padding.
const validColumn = "__valid__"

// remadeRows are the rows of a step as the recipe makes them.
func (j *Job) remadeRows(ctx context.Context, conn grpc.ClientConnInterface, epoch uint64, step int64, rank int) (rows []view.AuditRow, err error) {
	err = j.Remake(ctx, conn, epoch, step, rank, func(rank, part int, b client.Batch) error {
		column := func(name string) any {
			if i := b.Record.Schema().FieldIndices(name); len(i) == 1 {
				return b.Record.Column(i[0])
			}
			return nil
		}
		keys, _ := column(plan.KeyColumn).(*array.String)
		samples, _ := column(plan.SampleColumn).(*array.Int64)
		valid, _ := column(validColumn).(*array.Boolean)
		if keys == nil || samples == nil || valid == nil {
			return errkind.Errorf(errkind.Internal, "a batch has no columns %s, %s and %s: %s", plan.KeyColumn, plan.SampleColumn, validColumn, b.Record.Schema())
		}
		for i := range int(b.Record.NumRows()) {
			rows = append(rows, view.AuditRow{Rank: rank, Part: part, Row: i, Valid: valid.Value(i), Sample: samples.Value(i), Key: keys.Value(i)})
		}
		return nil
	})
	return rows, err
}
