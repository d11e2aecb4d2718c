package storage

import (
	"context"

	"github.com/millrace/millrace/loader/order"
	"github.com/millrace/millrace/loader/store/ranged"
)

const (
	classes    = 1000
	mixBatch   = 256
	mixBatches = 200
	mixSamples = 25_600
	// firstShards of firstSamples are those of which nothing is known.
	firstShards  = 1000
	firstSamples = 100
)

// mixing reads an epoch of a set that is sorted by class, in batches, and counts the classes of each.
func mixing(ctx context.Context, b *bench) (*Result, error) {
	s := set{prefix: "mixing", samples: mixSamples / b.Scale, bytes: 100 * kib, shard: shardBytes}
	if err := b.lay(ctx, s); err != nil {
		return nil, err
	}
	c, err := b.client(ctx, b.server.Endpoint, ranged.Options{})
	if err != nil {
		return nil, err
	}
	d, err := b.open(ctx, c, s)
	if err != nil {
		return nil, err
	}
	l, err := layout(d.Manifest(), order.ShuffleBlock)
	if err != nil {
		return nil, err
	}
	r := &Result{Blocks: s.samples / l.BlockSamples, ClassesLeast: mixBatch}
	before, first := d.Stats(), c.bucket.Stats()
	// Three epochs and more, for 200 batches: whole epochs are read, so that blocks count in full.
	perEpoch, sum := max(1, s.samples/mixBatch), 0
	for number := range (mixBatches + perEpoch - 1) / perEpoch {
		seen := map[int64]bool{}
		n := 0
		e := l.Epoch(seed, uint64(number))
		for p := range e.NumPartitions() {
			err := one(ctx, d, e, p, func(ordinal int64) {
				seen[ordinal*classes/s.samples] = true
				if n++; n%mixBatch != 0 {
					return
				}
				if r.Batches < mixBatches {
					r.Batches++
					sum += len(seen)
					r.ClassesLeast = min(r.ClassesLeast, len(seen))
				}
				seen = map[int64]bool{}
			})
			if err != nil {
				return nil, err
			}
		}
		r.Samples += s.samples
	}
	after, last := d.Stats(), c.bucket.Stats()
	r.Classes = round(float64(sum)/float64(max(1, r.Batches)), 1)
	r.Requests = last.Requests - first.Requests
	r.Amplification = round(float64(last.Received-first.Received)/float64(after.BytesWanted-before.BytesWanted), 4)
	return r, nil
}
