package dataset

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/dataset/format"
	"github.com/millrace/millrace/loader/dataset/index"
	"github.com/millrace/millrace/loader/dataset/tarscan"
	"github.com/millrace/millrace/loader/store"
)

// scanned is the index of one shard.
type scanned struct {
	raw     []byte
	samples int64
	data    int64
	skipped int64   // regular members that belong to no sample
	damage  []error // what was left out
}

// scanShard indexes a shard. Damage ends it, unless tolerant: then the samples before a cut stay and
// samples that contradict themselves are left out.
func scanShard(ctx context.Context, r *store.Resolver, s listed, beside *neighbours, tolerant bool) (*scanned, error) {
	o, err := openObject(ctx, r, s.uri, s.pin, s.size)
	if err != nil {
		return nil, err
	}
	var out *scanned
	if t := typeOf(s.uri); t.format != nil {
		out, err = scanFormat(ctx, source{o, beside}, t.format, tolerant)
	} else {
		out, err = scanObject(ctx, o, tolerant)
	}
	if err != nil {
		return nil, fmt.Errorf("shard %s: %w", s.uri, err)
	}
	if !o.checksPins() || compressionOf(s.uri) != uncompressed { // It may have changed under the scan.
		if err := o.verify(ctx); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func scanObject(ctx context.Context, o object, tolerant bool) (out *scanned, err error) {
	c := compressionOf(o.uri)
	if o.size == 0 {
		c = uncompressed // Whatever its name says, the message is that it is empty.
	}
	if c == uncompressed {
		from := tarscan.Ranged
		if _, dear := o.bucket.(store.RangesReader); dear {
			from = tarscan.Far
		}
		return scan(ctx, from(o.size, o.read), o.size, tolerant)
	}
	d, err := decompress(ctx, o, c)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return scan(ctx, &drained{Source: tarscan.Stream(d), stream: d}, 0, tolerant)
}

// scanFormat indexes a shard of a format other than tar.
func scanFormat(ctx context.Context, o source, f format.Format, tolerant bool) (*scanned, error) {
	out := &scanned{}
	x, err := f.Index(ctx, o, func(err error) error {
		if !tolerant || errkind.Of(err) != errkind.BadData {
			return err
		}
		out.damage = append(out.damage, err)
		return nil
	})
	if err != nil {
		return nil, err
	}
	out.raw, out.samples, out.data = sealIndex(x), x.Samples, x.DataBytes
	return out, nil
}

// source is an object as formats see it.
type source struct {
	o      object
	beside *neighbours
}

// Neighbour implements format.Neighbour.
func (s source) Neighbour(ctx context.Context, name string, parse func([]byte) (any, error)) (any, error) {
	return s.beside.of(ctx, s.o, name, parse)
}

func (s source) Name() string { return s.o.uri }

func (s source) Size() int64 { return s.o.size }

func (s source) ReadAt(ctx context.Context, off int64, dst []byte) error {
	return s.o.read(ctx, off, dst)
}

func (s source) Open(ctx context.Context) (io.ReadCloser, error) {
	return decompress(ctx, s.o, compressionOf(s.o.uri))
}

// drained is a Source of a compressed archive. Reading it to its end proves the checksums behind the tar.
type drained struct {
	tarscan.Source
	stream *decompressed
}

// end is the size of the archive: of all of it, or of what was understood where it is cut or its end is damaged.
func (d *drained) end(cut bool, understood int64, tolerate func(error) error) (int64, error) {
	if cut {
		return understood, nil
	}
	if _, err := io.Copy(io.Discard, d.stream); err != nil {
		return understood, tolerate(err)
	}
	return d.stream.out, nil
}

// scan groups the members of src. The size of a compressed archive is found out by reading to its end.
func scan(ctx context.Context, src tarscan.Source, size int64, tolerant bool) (*scanned, error) {
	g, out := &grouper{}, &scanned{}
	tolerate := func(err error) error {
		if err == nil || !tolerant || errkind.Of(err) != errkind.BadData {
			return err
		}
		out.damage = append(out.damage, err)
		return nil
	}
	s := tarscan.New(src)
	cut, err := group(ctx, s, g, tolerate)
	if err != nil {
		return nil, err
	}
	if d, ok := src.(*drained); ok {
		if size, err = d.end(cut, s.Pos(), tolerate); err != nil {
			return nil, err
		}
	}
	out.raw = g.builder.Bytes(size)
	out.samples, out.data, out.skipped = g.builder.NumSamples(), g.builder.DataBytes(), g.skipped
	return out, nil
}

// group adds all members of s to g. Where the archive is cut, and that is tolerated, the sample that
// was cut is left out: nobody knows what else belonged to it.
func group(ctx context.Context, s *tarscan.Scanner, g *grouper, tolerate func(error) error) (cut bool, err error) {
	for {
		m, err := s.Next(ctx)
		if errors.Is(err, io.EOF) {
			return false, tolerate(g.flush())
		}
		if err != nil {
			g.drop()
			return true, tolerate(err)
		}
		if err := tolerate(g.add(m)); err != nil {
			return false, err
		}
	}
}

// shardOf is the manifest's line for a shard that was scanned.
func shardOf(s listed, raw []byte, samples, data int64) Shard {
	return Shard{URI: s.uri, Size: s.size, Pin: s.pin, NumSamples: samples, DataBytes: data, Index: index.Hash(raw)}
}
