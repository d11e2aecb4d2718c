package dataset

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/store"
)

// Checksums of a shard lie beside its index: the CRC32C of each field, in the order of the index. They are no part of the
// manifest's id, since they say nothing that the shard does not.

const sumsMagic = "MRCK"

func encodeSums(sums []uint32) []byte {
	b := binary.LittleEndian.AppendUint32(append(make([]byte, 0, 12+4*len(sums)), sumsMagic...), uint32(len(sums))) //nolint:gosec // an index has fewer fields
	for _, s := range sums {
		b = binary.LittleEndian.AppendUint32(b, s)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// decodeSums reads the checksums of n fields. Anything else is nil.
func decodeSums(b []byte, n int) []uint32 {
	if len(b) != 12+4*n || string(b[:4]) != sumsMagic || binary.LittleEndian.Uint32(b[4:]) != uint32(n) || //nolint:gosec // not negative
		binary.LittleEndian.Uint32(b[len(b)-4:]) != crc32.Checksum(b[:len(b)-4], castagnoli) {
		return nil
	}
	sums := make([]uint32, n)
	for i := range sums {
		sums[i] = binary.LittleEndian.Uint32(b[8+4*i:])
	}
	return sums
}

func (c *Cache) sumsPath(uri, pin string, hash [16]byte) string {
	n := name(uri, pin, string(hash[:]))
	return filepath.Join(c.dir, "checksums", n[:2], n[2:])
}

// sums are the checksums of a tar shard's fields; nil if they are not known.
func (c *Cache) sums(s *Shard, x *shardIndex) []uint32 {
	if c == nil || x.members == nil {
		return nil
	}
	b, err := os.ReadFile(c.sumsPath(s.URI, s.Pin, s.Index))
	if err != nil {
		return nil
	}
	return decodeSums(b, x.members.NumFields())
}

// VerifyOptions say what is looked at.
type VerifyOptions struct {
	// Fill keeps the checksums of shards that have none yet.
	Fill bool
	// Check indexes each shard again, and compares that and its checksums with what is kept.
	Check bool
	// Concurrency is the number of shards at a time; default 32.
	Concurrency int
	// OnProgress is called after each shard, by one goroutine at a time. It must not block.
	OnProgress func(Progress)
}

// Verified is what was found.
type Verified struct {
	// Filled counts shards whose checksums were filled in, Checked those that have been compared, Summed those whose
	// bytes were.
	Filled, Checked, Summed int
	// Wrong says what is not as it was, a line each, in the order of the manifest.
	Wrong []string
}

// Verify reads the shards of m, and fills in or compares what is kept of them in cache. What is wrong with shards is no
// error of Verify. Checksums are kept for tar shards; other formats have their own, or none.
func Verify(ctx context.Context, r *store.Resolver, m *Manifest, cache *Cache, o VerifyOptions) (*Verified, error) {
	if o.Concurrency <= 0 {
		o.Concurrency = 32
	}
	d, err := Open(m, r, cache, OpenOptions{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }() // It holds nothing.
	p := progress{fn: o.OnProgress, now: Progress{ShardsTotal: len(m.Shards)}}
	wrong := make([][]string, len(m.Shards))
	out := &Verified{}
	var mu sync.Mutex
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(o.Concurrency)
	for i := range m.Shards {
		g.Go(func() error {
			v := &Verified{}
			if err := d.verifyShard(gctx, i, o, v); err != nil {
				return err
			}
			mu.Lock()
			out.Filled, out.Checked, out.Summed = out.Filled+v.Filled, out.Checked+v.Checked, out.Summed+v.Summed
			wrong[i] = v.Wrong
			mu.Unlock()
			p.add(1, m.Shards[i].NumSamples, m.Shards[i].Size)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for _, w := range wrong {
		out.Wrong = append(out.Wrong, w...)
	}
	p.now.Done = true
	p.report()
	return out, nil
}

func (d *Dataset) verifyShard(ctx context.Context, i int, o VerifyOptions, v *Verified) error {
	s := &d.manifest.Shards[i]
	if o.Check {
		v.Checked++
		if _, err := d.rebuild(ctx, s, isFolder(d.manifest.Format)); err != nil {
			return v.note(ctx, err)
		}
	}
	if d.manifest.Format != FormatWebDataset {
		return nil
	}
	x, err := d.index(ctx, i)
	if err != nil {
		return v.note(ctx, err)
	}
	if x.sums == nil && !o.Fill || x.sums != nil && !o.Check {
		return nil
	}
	sums, err := d.sumShard(ctx, s, x)
	if err != nil {
		return v.note(ctx, err)
	}
	if x.sums == nil {
		v.Filled++
		return d.cache.putSums(s, sums)
	}
	v.Summed++
	for sample := range x.members.NumSamples() {
		j := x.members.FirstField(sample)
		x.members.Spans(sample, func(name int, off, length int64) {
			if sums[j] != x.sums[j] {
				v.Wrong = append(v.Wrong, fmt.Sprintf("%s!%s: the %d bytes of %s at offset %d are not those that were there: their checksum is %08x, was %08x",
					s.URI, x.members.Key(sample), length, x.Names()[name], off, sums[j], x.sums[j]))
			}
			j++
		})
	}
	return nil
}

// note keeps what is wrong with a shard; that it could not be read, or the user has left, is an error.
func (v *Verified) note(ctx context.Context, err error) error {
	switch errkind.Of(err) {
	case errkind.BadData, errkind.Conflict, errkind.NotFound:
		if ctx.Err() == nil {
			v.Wrong = append(v.Wrong, err.Error())
			return nil
		}
	default:
	}
	return err
}

func (c *Cache) putSums(s *Shard, sums []uint32) error {
	if c == nil {
		return nil
	}
	return c.put(c.sumsPath(s.URI, s.Pin, s.Index), encodeSums(sums))
}

// sumShard reads a tar shard from its beginning to its end.
func (d *Dataset) sumShard(ctx context.Context, s *Shard, x *shardIndex) (sums []uint32, err error) {
	o, err := openObject(ctx, d.resolver, s.URI, s.Pin, s.Size)
	if err != nil {
		return nil, err
	}
	stream, err := decompress(ctx, o, compressionOf(s.URI))
	if err != nil {
		return nil, fmt.Errorf("shard %s: %w", s.URI, err)
	}
	defer func() { err = errors.Join(err, stream.Close()) }()
	type place struct {
		off, length int64
		field       int
	}
	var places []place
	for i := range x.members.NumSamples() {
		x.members.Spans(i, func(_ int, off, length int64) { places = append(places, place{off, length, len(places)}) })
	}
	slices.SortFunc(places, func(a, b place) int { return cmp.Compare(a.off, b.off) })
	sums = make([]uint32, len(places))
	in, at := bufio.NewReaderSize(stream, 256<<10), int64(0)
	for _, p := range places {
		if p.off < at {
			return nil, errkind.Errorf(errkind.BadData, "shard %s: two fields lie at offset %d", s.URI, p.off)
		}
		if _, err := io.CopyN(io.Discard, in, p.off-at); err != nil {
			return nil, fmt.Errorf("reading to offset %d of shard %s: %w", p.off, s.URI, err)
		}
		h := crc32.New(castagnoli)
		if _, err := io.CopyN(h, in, p.length); err != nil {
			return nil, fmt.Errorf("reading %d bytes at offset %d of shard %s: %w", p.length, p.off, s.URI, err)
		}
		sums[p.field], at = h.Sum32(), p.off+p.length
	}
	return sums, o.verify(ctx)
}

// checkSums compares the pieces that a read has brought with their checksums, where these are known. What does not fit is
// read once more; if it still does not fit, the sample is bad.
func (d *Dataset) checkSums(ctx context.Context, plans []*shardPlan, samples []Sample) error {
	for _, p := range plans {
		if p.index == nil || p.index.sums == nil {
			continue
		}
		for i := range p.runs {
			r := &p.runs[i]
			for _, q := range r.pieces {
				if err := d.checkSum(ctx, p, *r, q, samples); err != nil {
					return err
				}
			}
		}
		for i, q := range p.kept.pieces {
			if err := d.checkSum(ctx, p, run{object: p.kept.chunks[i].object, shard: p.shard}, q, samples); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *Dataset) checkSum(ctx context.Context, p *shardPlan, from run, q piece, samples []Sample) error {
	s := &samples[q.sample]
	f := &s.Fields[q.field]
	want := p.index.sums[p.index.members.FirstField(int(q.row))+q.part]
	if crc32.Checksum(f.Data, castagnoli) == want {
		return nil
	}
	d.stats.sumMisses.Add(1)
	again := make([]byte, q.length)
	from.pieces = []piece{q}
	if err := d.request(ctx, &from, q.off, again, samples); err != nil {
		return err
	}
	f.Data = again
	if got := crc32.Checksum(again, castagnoli); got != want {
		s.Err = errkind.Errorf(errkind.BadData, "sample %s (%d bytes at offset %d of %s): the bytes of %s are damaged: their checksum is %08x, was %08x when it was taken",
			s.Key, q.length, q.off, s.URI, f.Name, got, want)
	}
	return nil
}
