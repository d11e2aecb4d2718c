package dataset

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset/format"
	"github.com/millrace/millrace/loader/store"
)

// unitRead is a unit that a read needs.
type unitRead struct {
	format.Unit
	object object
	wanted []bool
	shard  format.Shard
	bytes  [][]byte // of its ranges
	block  format.Block
	// entry is the unit's place among the blocks that reads share, nil for units of one sample. What this read
	// claimed it must make; what another one claimed it waits for.
	entry   *blockEntry
	claimed bool
}

// planUnits finds the units of a shard, and the pieces that bring those which no other read has or makes.
func (d *Dataset) planUnits(p *shardPlan, o object, wanted []bool, ordinals []int64, samples []Sample) ([]piece, error) {
	base := store.Base(o.uri)
	rows := make([]int64, 0, len(p.order))
	for _, at := range p.order {
		row := ordinals[at] - d.starts[p.shard]
		samples[at] = Sample{Ordinal: ordinals[at], Key: base + "!" + strconv.FormatInt(row, 10), URI: o.uri}
		if len(rows) == 0 || rows[len(rows)-1] != row {
			rows = append(rows, row)
		}
	}
	units, err := p.index.shard.Units(rows, wanted)
	if err != nil {
		return nil, err
	}
	columns := columnSet(wanted)
	p.units = make([]*unitRead, 0, len(units))
	var pieces []piece
	for _, u := range units {
		r := &unitRead{Unit: u, object: o, wanted: wanted, shard: p.index.shard}
		p.units = append(p.units, r)
		if u.Count > 1 {
			r.entry, r.claimed = d.blocks.claim(blockKey{shard: p.shard, unit: u.ID, columns: columns})
			if !r.claimed {
				continue
			}
		}
		r.bytes = make([][]byte, len(u.Ranges))
		for i, g := range u.Ranges {
			pieces = append(pieces, piece{off: g.Off, length: g.Len, sample: p.order[0], field: i, row: u.First, unit: r})
		}
	}
	return pieces, nil
}

// columnSet names a choice of columns.
func columnSet(wanted []bool) string {
	var b strings.Builder
	for i, w := range wanted {
		if w {
			b.WriteString(strconv.Itoa(i))
			b.WriteByte(',')
		}
	}
	return b.String()
}

// decode makes the blocks of the units that were fetched, awaits those that other reads make, and gives the samples their fields.
func (d *Dataset) decode(ctx context.Context, plans []*shardPlan, ordinals []int64, samples []Sample) error {
	left := newBudget(d.opts.ReadBytes)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(d.opts.Concurrency)
	for _, p := range plans {
		for _, u := range p.units {
			if u.entry != nil && !u.claimed {
				continue
			}
			g.Go(func() error { return d.decodeUnit(gctx, u, left) })
		}
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, p := range plans {
		if err := d.await(ctx, p); err != nil {
			return err
		}
		d.fields(p, ordinals, samples)
	}
	return nil
}

func (d *Dataset) decodeUnit(ctx context.Context, u *unitRead, left *budget) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	u.block, err = u.shard.Decode(ctx, u.Unit, u.wanted, u.bytes, left.left())
	if err == nil {
		err = left.take(u.block.MemoryBytes())
	}
	if err != nil {
		return fmt.Errorf("reading samples %d to %d of %s: %w", u.First, u.First+u.Count-1, u.object.uri, err)
	}
	u.bytes = nil
	if u.entry != nil {
		d.blocks.publish(u.entry, u.block)
		u.claimed = false
	}
	return nil
}

// await has the blocks that other reads claimed. Where one of them failed, this read makes the block itself.
func (d *Dataset) await(ctx context.Context, p *shardPlan) error {
	for _, u := range p.units {
		for u.block == nil {
			select {
			case <-u.entry.done:
			case <-ctx.Done():
				return fmt.Errorf("waiting for samples of %s: %w", u.object.uri, ctx.Err())
			}
			if u.block = u.entry.block; u.block != nil {
				break
			}
			u.entry, u.claimed = d.blocks.claim(u.entry.key)
			if !u.claimed {
				continue
			}
			if err := d.alone(ctx, p, u); err != nil {
				return err
			}
		}
	}
	return nil
}

// alone fetches and decodes one unit.
func (d *Dataset) alone(ctx context.Context, p *shardPlan, u *unitRead) error {
	u.bytes = make([][]byte, len(u.Ranges))
	for i, g := range u.Ranges {
		u.bytes[i] = make([]byte, g.Len)
		r := run{object: u.object, shard: p.shard}
		if compressionOf(u.object.uri) != uncompressed {
			r.archive = p.index.content
		}
		d.stats.bytesWanted.Add(g.Len)
		if err := d.transfer(ctx, &r, g.Off, u.bytes[i]); err != nil {
			return fmt.Errorf("reading samples %d to %d of %s: %w", u.First, u.First+u.Count-1, u.object.uri, err)
		}
	}
	return d.decodeUnit(ctx, u, newBudget(d.opts.ReadBytes))
}

// abandon gives back what a read claimed and did not make, so that nobody waits for it.
func (d *Dataset) abandon(x *window, plans []*shardPlan) {
	for _, p := range plans {
		for _, c := range p.kept.claimed {
			d.opts.Blocks.publish(x, c, false)
		}
		for _, u := range p.units {
			if u.claimed && u.entry != nil {
				d.blocks.publish(u.entry, nil)
			}
		}
	}
}

// fields gives the samples of a plan their fields, from all units that hold their rows.
func (d *Dataset) fields(p *shardPlan, ordinals []int64, samples []Sample) {
	if len(p.units) == 0 {
		return
	}
	columns := p.index.shard.Columns()
	start := d.starts[p.shard]
	first := func(at int) int64 { return ordinals[at] - start }
	// Units of one column follow each other by row; columns follow each other.
	for _, u := range p.units {
		at, _ := slices.BinarySearchFunc(p.order, u.First, func(at int, row int64) int { return cmp.Compare(first(at), row) })
		where := u.Ranges[len(u.Ranges)-1]
		for ; at < len(p.order) && first(p.order[at]) < u.First+u.Count; at++ {
			s := &samples[p.order[at]]
			err := u.block.Values(first(p.order[at]), func(column int, data []byte) {
				s.Fields = append(s.Fields, Field{Name: columns[column].Name, Type: columns[column].Type, Data: data, Offset: where.Off, Length: where.Len})
			})
			if err != nil {
				s.Fields, s.Err = nil, errkind.With(errkind.BadData, fmt.Errorf("sample %s (%d bytes at offset %d of %s): %w", s.Key, where.Len, where.Off, s.URI, err))
			}
		}
	}
}
