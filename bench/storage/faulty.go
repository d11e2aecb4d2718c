package storage

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/order"
	"github.com/millrace/millrace/loader/store/ranged"
	"github.com/millrace/millrace/loader/store/storetest/faulthttp"
)

const (
	tailBatch   = 64
	tailBatches = 200
	// plainBatches are read without second requests, each of which mostly waits for a slow reply.
	plainBatches = 60
	tailWarm     = 20
	// latency is that of a reply; one in slowEvery takes slowTimes as long.
	latency   = 20 * time.Millisecond
	slowEvery = 100
	slowTimes = 50
)

// tail reads batches of single samples, first without second requests, then with them.
func tail(ctx context.Context, b *bench) (*Result, error) {
	s := set{prefix: "tail", samples: 50_000, bytes: 10 * kib, shard: shardBytes}
	if err := b.lay(ctx, s); err != nil {
		return nil, err
	}
	f, at, err := b.proxy(ctx)
	if err != nil {
		return nil, err
	}
	r := &Result{}
	for _, share := range []float64{-1, 0} {
		c, err := b.client(ctx, at, ranged.Options{HedgeShare: share})
		if err != nil {
			return nil, err
		}
		d, err := b.open(ctx, c, s)
		if err != nil {
			return nil, err
		}
		f.Set(faulthttp.Rule{Method: http.MethodGet, Every: slowEvery, Fault: faulthttp.Fault{Delay: slowTimes * latency}},
			faulthttp.Rule{Method: http.MethodGet, Fault: faulthttp.Fault{Delay: latency}})
		n := tailBatches
		if share < 0 {
			n = plainBatches
		}
		times, stats, err := b.batches(ctx, c, d, n/int(b.Scale), tailWarm/int(b.Scale))
		if err != nil {
			return nil, err
		}
		f.Set()
		b.logf("p50 %.1f ms, p99 %.1f ms, %d requests, %d of them second ones, %d of which were faster", quantile(times, 0.5), quantile(times, 0.99), stats.Requests, stats.Hedges, stats.HedgeWins)
		if share < 0 {
			r.UnhedgedP99 = quantile(times, 0.99)
			continue
		}
		r.P50, r.P99 = quantile(times, 0.5), quantile(times, 0.99)
		r.Requests, r.Samples = stats.Requests, int64(len(times)*tailBatch)
		r.ExtraRequests = round(float64(stats.Hedges)/float64(stats.Requests-stats.Hedges), 4)
		r.Ratio = round(r.P99/r.P50, 3)
	}
	return r, nil
}

// batches reads batches of a full shuffle, one after the other. The first ones, warm of them, do not count.
func (b *bench) batches(ctx context.Context, c *client, d *dataset.Dataset, n, warm int) (times []time.Duration, stats ranged.Stats, err error) {
	l, err := layout(d.Manifest(), order.ShuffleFull)
	if err != nil {
		return nil, stats, err
	}
	e := l.Epoch(seed, 0)
	var before ranged.Stats
	n, warm = max(1, n), max(1, warm)
	for i := range warm + n {
		if i == warm {
			before = c.bucket.Stats()
		}
		ordinals := make([]int64, tailBatch)
		for j := range ordinals {
			ordinals[j] = e.Sample(int64(i*tailBatch + j))
		}
		began := time.Now()
		samples, release, err := d.Read(ctx, ordinals, nil)
		took := time.Since(began)
		if err == nil {
			err = check(samples, nil)
		}
		release()
		if err != nil {
			return nil, stats, err
		}
		if i >= warm {
			times = append(times, took)
		}
	}
	stats = c.bucket.Stats()
	stats.Requests -= before.Requests
	stats.Hedges -= before.Hedges
	stats.HedgeWins -= before.HedgeWins
	return times, stats, nil
}

// faults reads two prefixes at the same time, one of which fails. How long the other takes is compared with a run in which both are well.
func faults(ctx context.Context, b *bench) (*Result, error) {
	bad := set{prefix: "faults/bad", samples: 60_000 / b.Scale, bytes: 10 * kib, shard: shardBytes}
	good := set{prefix: "faults/good", samples: 60_000 / b.Scale, bytes: 10 * kib, shard: shardBytes}
	for _, s := range []set{bad, good} {
		if err := b.lay(ctx, s); err != nil {
			return nil, err
		}
	}
	f, at, err := b.proxy(ctx)
	if err != nil {
		return nil, err
	}
	c, err := b.client(ctx, at, ranged.Options{})
	if err != nil {
		return nil, err
	}
	var sets [2]*dataset.Dataset
	for i, s := range []set{bad, good} {
		if sets[i], err = b.open(ctx, c, s); err != nil {
			return nil, err
		}
	}
	var well, beside []time.Duration
	r := &Result{Samples: bad.samples + good.samples}
	for turn := range 2 * turns {
		rules, before := []faulthttp.Rule{}, c.bucket.Stats()
		if turn%2 == 1 {
			rules = faultRules(bad.prefix)
		}
		f.Set(rules...)
		took, err := b.both(ctx, sets, uint64(turn))
		if err != nil {
			r.Errors++
			b.logf("an error surfaced: %v", err)
		}
		after := c.bucket.Stats()
		if turn%2 == 0 {
			well = append(well, took)
			continue
		}
		beside = append(beside, took)
		r.Cut += int64(f.Struck(0))
		r.Throttled += int64(f.Struck(1))
		r.Requests += after.Requests - before.Requests
		r.ExtraRequests += float64(after.Hedges - before.Hedges)
		r.Reread = max(r.Reread, round(float64(after.Received-before.Received)/float64(after.Wanted-before.Wanted)-1, 5))
	}
	r.ExtraRequests = round(r.ExtraRequests/float64(r.Requests), 4)
	slower := round(quantile(beside, 0.5)/quantile(well, 0.5)-1, 4)
	r.OtherSlower = &slower
	b.logf("the other prefix: %v where both are well, %v beside the faulty one", well, beside)
	return r, nil
}

// faultRules cut one body in a hundred somewhere, and throttle one request in twenty.
func faultRules(prefix string) []faulthttp.Rule {
	random := rand.New(rand.NewPCG(seed, 0))
	after := func() int64 { return 1 + random.Int64N(mib) }
	return []faulthttp.Rule{
		{Path: prefix, Method: http.MethodGet, Every: 100, Fault: faulthttp.Fault{CutAfter: after()}},
		{Path: prefix, Method: http.MethodGet, Every: 20, Fault: faulthttp.Fault{Status: http.StatusServiceUnavailable, Code: "SlowDown"}},
	}
}

// both reads an epoch of each set, at the same time; it tells how long the second one took.
func (b *bench) both(ctx context.Context, sets [2]*dataset.Dataset, number uint64) (time.Duration, error) {
	var took time.Duration
	var g errgroup.Group
	for i, d := range sets {
		l, err := layout(d.Manifest(), order.ShuffleBlock)
		if err != nil {
			return 0, err
		}
		g.Go(func() error {
			began := time.Now()
			err := epoch(ctx, d, l.Epoch(seed, number), nil)
			if i == 1 {
				took = time.Since(began)
			}
			if err != nil {
				return fmt.Errorf("reading set %d: %w", i, err)
			}
			return nil
		})
	}
	err := g.Wait()
	return took, err
}
