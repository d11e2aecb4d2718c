package storage

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/loader/order"
	"github.com/millrace/millrace/loader/store"
	"github.com/millrace/millrace/loader/store/ranged"
)

// firstBatch takes the first batch of shards of which nothing is known, with a new client each time.
func firstBatch(ctx context.Context, b *bench) (*Result, error) {
	s := set{prefix: "first", samples: max(2, firstShards/b.Scale) * firstSamples, bytes: 10 * kib, shard: firstSamples * (10*kib + tarBlock)}
	if err := b.lay(ctx, s); err != nil {
		return nil, err
	}
	r := &Result{}
	for _, shuffle := range []order.Shuffle{order.ShuffleNone, order.ShuffleBlock} {
		c, err := b.client(ctx, b.server.Endpoint, ranged.Options{})
		if err != nil {
			return nil, err
		}
		began := time.Now()
		d, err := b.open(ctx, c, s)
		if err != nil {
			return nil, err
		}
		indexed, requests := time.Since(began), c.bucket.Stats().Requests
		l, err := layout(d.Manifest(), shuffle)
		if err != nil {
			return nil, err
		}
		if err := one(ctx, d, l.Epoch(seed, 0), 0, nil); err != nil {
			return nil, err
		}
		took := round(time.Since(began).Seconds(), 3)
		b.logf("%s: indexed in %.2f s, first batch at %.2f s, %d requests", shuffle, indexed.Seconds(), took, requests)
		if shuffle == order.ShuffleBlock {
			r.FirstBatchBlock = took
			continue
		}
		r.FirstBatch, r.Requests, r.Samples = took, requests, s.samples
		r.ShardsPerS = round(float64(s.shards())/indexed.Seconds(), 1)
		r.PerShard = round(float64(requests)/float64(s.shards()), 2)
	}
	var err error
	r.PlainShardsPerS, err = b.beginnings(ctx, s)
	return r, err
}

// beginnings is the rate at which ranges as large as shards are read by a plain ranged reader: what an index pass could
// reach that reads all.
func (b *bench) beginnings(ctx context.Context, s set) (float64, error) {
	c, err := b.client(ctx, b.server.Endpoint, ranged.Options{})
	if err != nil {
		return 0, err
	}
	began := time.Now()
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(32)
	for i := range s.shards() {
		g.Go(func() error {
			n := min(s.perShard(), s.samples-i*s.perShard()) * (s.bytes + tarBlock)
			return c.bucket.ReadRanges(gctx, []store.Range{{Key: s.key(i), Dst: make([]byte, n)}})
		})
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	return round(float64(s.shards())/time.Since(began).Seconds(), 1), nil
}
