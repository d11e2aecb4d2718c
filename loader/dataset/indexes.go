package dataset

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset/index"
)

// index is the index of a shard: from memory, from the cache, or made again. Whichever it is, its hash
// is that of the manifest, and the shard still has its pin.
func (d *Dataset) index(ctx context.Context, shard int) (*shardIndex, error) {
	return d.indexes.get(ctx, shard, func(ctx context.Context) (*shardIndex, error) {
		s := &d.manifest.Shards[shard]
		d.stats.indexLoads.Add(1)
		folder := isFolder(d.manifest.Format)
		if !folder { // The files of a folder have their own pins.
			if err := d.verifyOnce(ctx, s); err != nil {
				return nil, err
			}
		}
		x := d.cache.index(s.URI, s.Pin, s.Index)
		if x == nil {
			var err error
			if x, err = d.rebuild(ctx, s, folder); err != nil {
				return nil, err
			}
		}
		if x.NumSamples() != s.NumSamples {
			return nil, errkind.Errorf(errkind.BadData, "%s: the manifest states %d samples, its index %d", s.URI, s.NumSamples, x.NumSamples())
		}
		x.sums = d.cache.sums(s, x)
		return x, nil
	})
}

// verifyOnce looks up a shard's version when it is opened, unless reading it proves the version anyway:
// that would be one more request for each shard.
func (d *Dataset) verifyOnce(ctx context.Context, s *Shard) error {
	o, err := openObject(ctx, d.resolver, s.URI, s.Pin, s.Size)
	if err != nil || o.checksPins() || compressionOf(s.URI) != uncompressed {
		return err
	}
	return o.verify(ctx)
}

// rebuild makes the index of a shard again, and compares it with the manifest's.
func (d *Dataset) rebuild(ctx context.Context, s *Shard, folder bool) (*shardIndex, error) {
	d.stats.indexRebuilds.Add(1)
	var out *scanned
	var err error
	switch {
	case d.manifest.Format == FormatList:
		out, _, _, err = listFiles(ctx, d.resolver, s.URI, d.opts.Concurrency)
	case folder:
		out, err = listFolder(ctx, d.resolver, s.URI, d.manifest.Format, len(d.manifest.Classes) == 0)
	default:
		// Tolerant, because the manifest may have tolerated damage: its hash decides.
		out, err = scanShard(ctx, d.resolver, listed{uri: s.URI, size: s.Size, pin: s.Pin}, nil, true)
	}
	if err != nil {
		return nil, err
	}
	raw, whole := out.raw, len(out.damage) == 0
	x, err := openIndex(s.URI, raw)
	if err != nil {
		return nil, fmt.Errorf("shard %s: %w", s.URI, err)
	}
	if index.Hash(raw) != s.Index {
		return nil, errkind.Errorf(errkind.Conflict, "%s changed since it was indexed: it held %d samples in %d bytes, holds %d in %d; run millrace index again",
			s.URI, s.NumSamples, s.DataBytes, out.samples, out.data)
	}
	// A cache that can't be written costs time, not correctness, and reading must go on.
	if err := d.cache.putIndex(s.URI, s.Pin, raw, whole); err != nil {
		d.stats.cacheErrors.Add(1)
	}
	return x, nil
}

// stats counts what reads cost.
type stats struct {
	requests, bytesRead, bytesWanted       atomic.Int64
	indexLoads, indexRebuilds, cacheErrors atomic.Int64
	sumMisses                              atomic.Int64
}

// Stats is what all reads of a dataset have cost so far.
type Stats struct {
	// Requests is the number of ranged reads of stores, BytesRead the bytes they brought, BytesWanted
	// those that were asked for: BytesRead/BytesWanted is the read amplification.
	Requests, BytesRead, BytesWanted int64
	// IndexLoads counts indexes brought into memory, IndexRebuilds those of them that were not in the cache.
	IndexLoads, IndexRebuilds int64
	// SumMisses counts fields whose checksum was wrong when they were first read.
	SumMisses int64
	// CacheErrors counts indexes that could not be kept in the cache.
	CacheErrors int64
	// IndexBytes is the memory that indexes take now, BlockBytes that of decoded pages which are kept, SpillBytes the
	// disk that decompressed shards take.
	IndexBytes, BlockBytes, SpillBytes int64
}

// Stats is what reads have cost so far.
func (d *Dataset) Stats() Stats {
	return Stats{
		Requests:      d.stats.requests.Load(),
		BytesRead:     d.stats.bytesRead.Load(),
		BytesWanted:   d.stats.bytesWanted.Load(),
		IndexLoads:    d.stats.indexLoads.Load(),
		IndexRebuilds: d.stats.indexRebuilds.Load(),
		CacheErrors:   d.stats.cacheErrors.Load(),
		SumMisses:     d.stats.sumMisses.Load(),
		IndexBytes:    d.indexes.held(),
		BlockBytes:    d.blocks.held(),
		SpillBytes:    d.spill.held(),
	}
}
