package dataset

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Read reads the samples of the given ordinals, in any order and also repeatedly, and of each only the
// fields that want selects by name; a nil want selects all. The samples come in the order asked for.
//
// Their bytes lie in one buffer that is used again after release is called; release is never nil and
// may be called more than once. Data of neighbouring samples is read together, in file order; what is
// read along but not wanted is at most 15 % in larger gaps, beside gaps of up to 4 KiB that are always bridged.
//
// A shard that is not the version that was indexed is an error of kind Conflict.
func (d *Dataset) Read(ctx context.Context, ordinals []int64, want func(field string) bool) (samples []Sample, release func(), err error) {
	return d.read(ctx, nil, ordinals, want)
}

// ReadWindow is Read for samples of a window. From stores where a request is dear, blocks that hold them are read whole
// and kept for the reads that follow, as far as there is room. Others, and shards that are compressed as a whole, are
// read as Read does.
func (d *Dataset) ReadWindow(ctx context.Context, w *Window, ordinals []int64, want func(field string) bool) (samples []Sample, release func(), err error) {
	if w == nil || d.opts.Blocks == nil || len(w.Blocks) == 0 {
		return d.read(ctx, nil, ordinals, want)
	}
	x := d.opts.Blocks.enter(d, w, int64(len(ordinals)), d.windowBytes)
	return d.read(ctx, x, ordinals, want)
}

// read reads samples, of the window x if that is not nil: a read of it has been entered, and is left here or by release.
func (d *Dataset) read(ctx context.Context, x *window, ordinals []int64, want func(field string) bool) (samples []Sample, release func(), err error) {
	var plans []*shardPlan
	leave := func(read bool) {
		if x != nil {
			d.opts.Blocks.leave(x, usesOf(plans), read)
		}
	}
	defer func() {
		if err != nil {
			leave(false)
		}
	}()
	plans, err = d.shardPlans(ordinals)
	if err != nil {
		return nil, func() {}, err
	}
	defer func() { d.abandon(x, plans) }()
	want = serial(want)
	samples = make([]Sample, len(ordinals))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(d.opts.Concurrency)
	for _, p := range plans {
		g.Go(func() error { return d.plan(gctx, p, x, ordinals, samples, want) })
	}
	if err := g.Wait(); err != nil {
		return nil, func() {}, err
	}
	var total int64
	for _, p := range plans {
		if total += p.bytes; total > d.opts.ReadBytes {
			return nil, func() {}, tooMuch(samples[p.order[0]].Key, total, d.opts.ReadBytes)
		}
	}
	arena := d.arena(total)
	if err := d.fetch(ctx, x, plans, *arena, samples); err != nil {
		d.free(arena)
		return nil, func() {}, err
	}
	if err := d.decode(ctx, plans, ordinals, samples); err != nil {
		d.free(arena)
		return nil, func() {}, err
	}
	var once sync.Once
	return samples, func() { once.Do(func() { d.free(arena); leave(true) }) }, nil
}

// serial asks want from one goroutine at a time; shards are planned by several.
func serial(want func(string) bool) func(string) bool {
	if want == nil {
		return func(string) bool { return true }
	}
	var mu sync.Mutex
	return func(name string) bool {
		mu.Lock()
		defer mu.Unlock()
		return want(name)
	}
}

// maxPooled is the largest arena that is kept for the next read: one huge read must not hold memory for ever.
const maxPooled = 256 << 20

func (d *Dataset) arena(n int64) *[]byte {
	if a, ok := d.arenas.Get().(*[]byte); ok && int64(cap(*a)) >= n {
		*a = (*a)[:n]
		return a
	}
	a := make([]byte, n)
	return &a
}

func (d *Dataset) free(a *[]byte) {
	if cap(*a) <= maxPooled {
		d.arenas.Put(a)
	}
}

// fetch reads all runs into arena, and the chunks that this read claimed into their memory, and points the fields of
// samples at their bytes.
func (d *Dataset) fetch(ctx context.Context, x *window, plans []*shardPlan, arena []byte, samples []Sample) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(d.opts.Concurrency)
	batches := &batches{}
	for _, p := range plans {
		batches.addChunks(p)
	}
	at := int64(0)
	for _, p := range plans {
		for i := range p.runs {
			r := &p.runs[i]
			dst := arena[at : at+r.length : at+r.length]
			at += r.length
			for _, c := range r.pieces {
				from := c.off - r.off
				c.deliver(samples, dst[from:from+c.length:from+c.length])
				d.stats.bytesWanted.Add(c.length)
			}
			if r.archive == 0 && batches.addRun(r, dst) {
				continue
			}
			for from := int64(0); from < r.length; from += d.opts.RequestBytes {
				part := dst[from:min(r.length, from+d.opts.RequestBytes)]
				g.Go(func() error {
					if gctx.Err() != nil {
						return context.Cause(gctx)
					}
					return d.request(gctx, r, r.off+from, part, samples)
				})
			}
		}
	}
	for _, b := range batches.all {
		g.Go(func() error { return d.batch(gctx, x, b, samples) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := d.serveKept(ctx, plans, samples); err != nil {
		return err
	}
	return d.checkSums(ctx, plans, samples)
}

// deliver says where the bytes of a piece lie.
func (c *piece) deliver(samples []Sample, data []byte) {
	if c.unit != nil {
		c.unit.bytes[c.field] = data
	} else {
		samples[c.sample].Fields[c.field].Data = data
	}
}

// request reads dst at off from the object of r.
func (d *Dataset) request(ctx context.Context, r *run, off int64, dst []byte, samples []Sample) error {
	return r.failed(d.transfer(ctx, r, off, dst), off, dst, samples)
}

// failed says what could not be read for which sample.
func (r *run) failed(err error, off int64, dst []byte, samples []Sample) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("reading %s (%d bytes at offset %d of %s): %w", samples[r.pieces[0].sample].Key, len(dst), off, r.object.uri, err)
}

func (d *Dataset) transfer(ctx context.Context, r *run, off int64, dst []byte) error {
	d.stats.requests.Add(1)
	d.stats.bytesRead.Add(int64(len(dst)))
	if r.archive == 0 {
		return r.object.read(ctx, off, dst)
	}
	return d.spill.with(ctx, r.shard, r.archive,
		func(w io.Writer) error { return d.decompressTo(ctx, r, w) },
		func(f io.ReaderAt) error {
			_, err := f.ReadAt(dst, off)
			return err
		})
}

// decompressTo writes the whole content of a compressed shard, and proves that it is the one indexed.
func (d *Dataset) decompressTo(ctx context.Context, r *run, w io.Writer) (err error) {
	s, err := decompress(ctx, r.object, compressionOf(r.object.uri))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if _, err := io.CopyN(w, s, r.archive); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if !d.damaged[r.object.uri] {
		if _, err := io.Copy(w, s); err != nil { // Writes nothing, but checks what is behind the last byte.
			return err
		}
	}
	return r.object.verify(ctx)
}
