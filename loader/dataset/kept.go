package dataset

import (
	"context"
	"fmt"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/order"
	"github.com/millrace/millrace/loader/store"
)

// keptPieces are the pieces of a shard that lie in blocks which are kept, and the chunks that this read must bring.
type keptPieces struct {
	pieces  []piece
	chunks  []*chunk // of each piece
	uses    []use
	claimed []*chunk // not yet published
}

// windowBytes is about what the blocks of a window take in memory: as many stored bytes as their samples have.
func (d *Dataset) windowBytes(blocks []order.Run) int64 {
	var total int64
	for _, r := range blocks {
		if r.First < 0 || r.First >= d.NumSamples() {
			continue
		}
		shard, _ := d.Locate(r.First)
		s := &d.manifest.Shards[shard]
		total += int64(float64(s.Size) / float64(max(1, s.NumSamples)) * float64(r.NumSamples))
	}
	return total
}

func usesOf(plans []*shardPlan) []use {
	var all []use
	for _, p := range plans {
		all = append(all, p.kept.uses...)
	}
	return all
}

// planKept takes from pieces those that lie in blocks of the window x, claims the blocks that nobody has read yet, and
// returns the others.
func (d *Dataset) planKept(p *shardPlan, x *window, o object, wanted []bool, pieces []piece) ([]piece, error) {
	_, dear := o.bucket.(store.RangesReader)
	if x == nil || !dear || len(pieces) == 0 || compressionOf(o.uri) != uncompressed {
		return pieces, nil
	}
	columns := columnSet(wanted)
	start, rows := d.starts[p.shard], d.starts[p.shard+1]-d.starts[p.shard]
	var c *chunk
	last := int64(-1)
	direct := pieces[:0]
	for _, q := range pieces {
		if q.unit != nil && q.unit.Count > 1 {
			direct = append(direct, q)
			continue
		}
		if q.row != last {
			last = q.row
			var claimed bool
			var first, n int64
			if c, claimed, first, n = d.opts.Blocks.take(x, p.shard, start, rows, q.row, columns); c != nil {
				p.kept.uses = append(p.kept.uses, use{c, q.row})
			}
			if claimed {
				p.kept.claimed = append(p.kept.claimed, c)
				c.object = o
				runs, err := d.chunkRuns(p, first, n, wanted)
				if err != nil {
					return nil, err
				}
				if !d.opts.Blocks.fill(x, c, runs) {
					p.kept.claimed = p.kept.claimed[:len(p.kept.claimed)-1]
				}
			}
		}
		if c == nil {
			direct = append(direct, q)
			continue
		}
		p.kept.pieces, p.kept.chunks = append(p.kept.pieces, q), append(p.kept.chunks, c)
	}
	return direct, nil
}

// chunkRuns are the runs of bytes that hold the wanted parts of n rows from first on.
func (d *Dataset) chunkRuns(p *shardPlan, first, n int64, wanted []bool) ([]run, error) {
	var pieces []piece
	if x := p.index.members; x != nil {
		for i := first; i < first+n; i++ {
			x.Spans(int(i), func(name int, off, length int64) {
				if wanted[name] {
					pieces = append(pieces, piece{off: off, length: length})
				}
			})
		}
		return coalesce(pieces), nil
	}
	rows := make([]int64, n)
	for i := range rows {
		rows[i] = first + int64(i)
	}
	units, err := p.index.shard.Units(rows, wanted)
	if err != nil {
		return nil, err
	}
	for _, u := range units {
		if u.Count > 1 {
			continue
		}
		for _, g := range u.Ranges {
			pieces = append(pieces, piece{off: g.Off, length: g.Len})
		}
	}
	return coalesce(pieces), nil
}

// batch is what one read asks of one bucket.
type batch struct {
	ranges []store.Range
	runs   []*run   // of the last ranges, those of no chunk
	chunks []*chunk // of the first ones
	plans  []*shardPlan
}

// batches collects them.
type batches struct {
	all []*batch
	by  map[store.RangesReader]*batch
}

func (s *batches) of(o object) *batch {
	r, ok := o.bucket.(store.RangesReader)
	if !ok {
		return nil
	}
	b := s.by[r]
	if b == nil {
		if s.by == nil {
			s.by = map[store.RangesReader]*batch{}
		}
		b = &batch{}
		s.by[r], s.all = b, append(s.all, b)
	}
	return b
}

func (s *batches) addChunks(p *shardPlan) {
	for _, c := range p.kept.claimed {
		b := s.of(c.object)
		b.chunks, b.plans = append(b.chunks, c), append(b.plans, p)
		for _, r := range c.runs {
			b.ranges = append(b.ranges, store.Range{Key: c.object.key, Pin: c.object.pin, Off: r.off, Dst: c.mem[r.at : r.at+r.length : r.at+r.length]})
		}
	}
}

// addRun adds a run, if its bucket takes batches.
func (s *batches) addRun(r *run, dst []byte) bool {
	b := s.of(r.object)
	if b == nil {
		return false
	}
	b.runs = append(b.runs, r)
	b.ranges = append(b.ranges, store.Range{Key: r.object.key, Pin: r.object.pin, Off: r.off, Dst: dst})
	return true
}

// batch reads what a batch asks for, and publishes its chunks.
func (d *Dataset) batch(ctx context.Context, x *window, b *batch, samples []Sample) error {
	for _, q := range b.ranges {
		d.stats.requests.Add(1)
		d.stats.bytesRead.Add(int64(len(q.Dst)))
	}
	object, reader := b.first()
	err := reader.ReadRanges(ctx, b.ranges)
	if errkind.Of(err) == errkind.Conflict { // Say which object it is, and in which way it has changed.
		err = b.conflict(ctx, err)
	}
	if err != nil {
		if len(b.ranges) == 1 && len(b.runs) == 1 {
			return b.runs[0].failed(err, b.ranges[0].Off, b.ranges[0].Dst, samples)
		}
		return fmt.Errorf("reading %d ranges of %s and others: %w", len(b.ranges), object.uri, err)
	}
	for i, c := range b.chunks {
		d.opts.Blocks.publish(x, c, true)
		if i+1 == len(b.chunks) || b.plans[i+1] != b.plans[i] {
			b.plans[i].kept.claimed = nil
		}
	}
	return nil
}

func (b *batch) first() (object, store.RangesReader) {
	o := object{}
	if len(b.chunks) > 0 {
		o = b.chunks[0].object
	} else {
		o = b.runs[0].object
	}
	r, _ := o.bucket.(store.RangesReader)
	return o, r
}

// conflict asks each object of the batch whether it is still what was indexed.
func (b *batch) conflict(ctx context.Context, err error) error {
	for _, c := range b.chunks {
		if err := c.object.verify(ctx); err != nil {
			return err
		}
	}
	for _, r := range b.runs {
		if err := r.object.verify(ctx); err != nil {
			return err
		}
	}
	return err
}

// serveKept points samples at bytes in blocks, when these are there. What another read was to bring and failed to is read alone.
func (d *Dataset) serveKept(ctx context.Context, plans []*shardPlan, samples []Sample) error {
	for _, p := range plans {
		for i := range p.kept.pieces {
			q, c := &p.kept.pieces[i], p.kept.chunks[i]
			select {
			case <-c.done:
			case <-ctx.Done():
				return fmt.Errorf("waiting for a block of %s: %w", d.manifest.Shards[p.shard].URI, ctx.Err())
			}
			d.stats.bytesWanted.Add(q.length)
			var data []byte
			if !c.failed {
				data = c.at(q.off, q.length)
			}
			if data == nil {
				data = make([]byte, q.length)
				r := run{object: c.object, shard: p.shard, pieces: []piece{*q}}
				if err := d.request(ctx, &r, q.off, data, samples); err != nil {
					return err
				}
			}
			q.deliver(samples, data)
		}
	}
	return nil
}
