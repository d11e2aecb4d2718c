package storage

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/order"
	"github.com/millrace/millrace/loader/store/ranged"
)

const (
	kib = 1 << 10
	mib = 1 << 20
	// shardBytes is the size of shards that WebDataset's users mostly have.
	shardBytes = 64 * 1000 * 1000
	// turns is how often a side is measured; the least counts, since whatever else runs only adds.
	turns = 3
)

func shuffled10k(ctx context.Context, b *bench) (*Result, error) {
	return b.shuffled(ctx, set{prefix: "s3-10k", samples: 200_000 / b.Scale, bytes: 10 * kib, shard: shardBytes}, false)
}

func shuffled100k(ctx context.Context, b *bench) (*Result, error) {
	return b.shuffled(ctx, set{prefix: "s3-100k", samples: 20_000 / b.Scale, bytes: 100 * kib, shard: shardBytes}, true)
}

// shuffled reads epochs of a set in the default block shuffle. The first, in which connections are made, does not count.
func (b *bench) shuffled(ctx context.Context, s set, beside bool) (*Result, error) {
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
	r := &Result{Samples: s.samples, SampleRequests: s.samples, Blocks: s.samples / l.BlockSamples}
	for turn := range turns + 1 {
		if beside && turn > 0 {
			if err := b.plain(ctx, s, r); err != nil {
				return nil, err
			}
		}
		if err := b.turn(ctx, c, d, l.Epoch(seed, uint64(turn)), turn > 0, r); err != nil {
			return nil, err
		}
	}
	if beside {
		r.Ratio = round(r.CPU/r.PlainCPU, 3)
	}
	return r, nil
}

func (b *bench) turn(ctx context.Context, c *client, d *dataset.Dataset, e *order.Epoch, counts bool, r *Result) error {
	before, first := d.Stats(), c.bucket.Stats()
	u, err := measure(func() error { return epoch(ctx, d, e, nil) })
	if err != nil {
		return err
	}
	after, last := d.Stats(), c.bucket.Stats()
	n := float64(r.Samples)
	each := float64(u.cpu.Nanoseconds()) / 1e3 / n
	b.logf("%.2f µs of CPU for a sample, %.0f samples/s, %d requests", each, n/u.wall.Seconds(), last.Requests-first.Requests)
	if !counts || r.CPU != 0 && each >= r.CPU {
		return nil
	}
	r.CPU, r.SamplesPerS = round(each, 2), round(n/u.wall.Seconds(), 0)
	r.Requests = last.Requests - first.Requests
	r.Amplification = round(float64(last.Received-first.Received)/float64(after.BytesWanted-before.BytesWanted), 4)
	r.ExtraRequests = round(float64(last.Hedges-first.Hedges)/float64(max(1, r.Requests)), 4)
	return nil
}

// plain downloads the shards whole with net/http and nothing else, as many at a time as partitions are read.
func (b *bench) plain(ctx context.Context, s set, r *Result) error {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: readers, DisableCompression: true, ReadBufferSize: 64 * kib}}
	defer client.CloseIdleConnections()
	u, err := measure(func() error {
		g, gctx := errgroup.WithContext(ctx)
		g.SetLimit(readers)
		for i := range s.shards() {
			g.Go(func() error { return b.download(gctx, client, s.key(i)) })
		}
		return g.Wait()
	})
	if err != nil {
		return err
	}
	each := float64(u.cpu.Nanoseconds()) / 1e3 / float64(s.samples)
	b.logf("%.2f µs of CPU for a sample in a plain download (%.1f s)", each, u.wall.Seconds())
	if r.PlainCPU == 0 || each < r.PlainCPU {
		r.PlainCPU = round(each, 2)
	}
	return nil
}

func (b *bench) download(ctx context.Context, client *http.Client, key string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, b.server.Endpoint+"/"+bucket+"/"+key, http.NoBody)
	if err != nil {
		return fmt.Errorf("asking for %s: %w", key, err)
	}
	sign(r, time.Now())
	response, err := client.Do(r)
	if err != nil {
		return fmt.Errorf("asking for %s: %w", key, err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return errkind.Errorf(errkind.Invalid, "asking for %s: %s", key, response.Status)
	}
	buf := make([]byte, mib)
	for {
		if _, err = io.ReadFull(response.Body, buf); err != nil {
			break
		}
	}
	if err != io.EOF && err != io.ErrUnexpectedEOF { //nolint:errorlint // as io.ReadFull has them
		return fmt.Errorf("downloading %s: %w", key, err)
	}
	return nil
}
