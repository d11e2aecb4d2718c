package storage

import (
	"context"
	"encoding/binary"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/order"
	"github.com/millrace/millrace/preprocess/partition"
)

const seed = 1

// newPool is memory as workers have it.
func newPool(b *bench) *partition.Pool {
	p := partition.NewPoolWithin(blockBudget)
	b.closers = append(b.closers, func() { _ = p.Close() })
	return p
}

// layout is the default one of a dataset.
func layout(m *dataset.Manifest, shuffle order.Shuffle) (order.Layout, error) {
	return order.Plan(order.Sizing{Shuffle: shuffle, NumSamples: m.NumSamples(), TotalBytes: m.DataBytes()})
}

// epoch reads an epoch, several partitions at a time, and hands each sample's number to each, in stream order within a
// partition.
func epoch(ctx context.Context, d *dataset.Dataset, e *order.Epoch, each func(ordinal int64)) error {
	next := atomic.Int64{}
	g, gctx := errgroup.WithContext(ctx)
	for range readers {
		g.Go(func() error {
			for {
				p := next.Add(1) - 1
				if p >= e.NumPartitions() || gctx.Err() != nil {
					return gctx.Err()
				}
				if err := one(gctx, d, e, p, each); err != nil {
					return err
				}
			}
		})
	}
	return g.Wait()
}

type windowKey struct {
	epoch  *order.Epoch
	window int64
}

// one reads a partition.
func one(ctx context.Context, d *dataset.Dataset, e *order.Epoch, p int64, each func(int64)) error {
	w := e.Partition(p).Window
	samples, release, err := d.ReadWindow(ctx, &dataset.Window{Key: windowKey{e, w}, Blocks: e.WindowBlocks(w)}, e.Samples(p, nil), nil)
	defer release()
	if err != nil {
		return err
	}
	return check(samples, each)
}

// check compares the number that each sample holds with its own.
func check(samples []dataset.Sample, each func(int64)) error {
	for i := range samples {
		data := samples[i].Fields[0].Data
		if got := binary.LittleEndian.Uint64(data); got != uint64(samples[i].Ordinal) { //nolint:gosec // not negative
			return errkind.Errorf(errkind.Internal, "sample %d holds the bytes of sample %d", samples[i].Ordinal, got)
		}
		if each != nil {
			each(samples[i].Ordinal)
		}
	}
	return nil
}
