package dataset

import (
	"compress/bzip2"
	"context"
	"errors"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/store"
)

// compression is how a shard is stored.
type compression uint8

const (
	notShard compression = iota
	uncompressed
	gzipped
	zstandard
	bzipped
)

// Limits of decompression: a shard may unfold to maxRatio times its size, and to freeBytes in any case.
const (
	maxRatio  = 200
	freeBytes = 64 << 20
)

// zstdWindow bounds the memory of a zstd decoder; it is the largest window of zstd --ultra.
const zstdWindow = 128 << 20

// decompressed streams the content of a compressed shard. Data that does not decompress, or unfolds
// too far, is an error of kind BadData; errors of the store keep their own.
type decompressed struct {
	source  *counted
	decoder io.Reader
	free    func()
	out     int64
}

func decompress(ctx context.Context, o object, c compression) (*decompressed, error) {
	body, err := store.OpenStream(ctx, o.bucket, o.key, 0, o.size)
	if err != nil {
		return nil, err
	}
	d := &decompressed{source: &counted{ctx: ctx, body: body}, free: func() {}}
	switch c {
	case notShard, uncompressed:
		d.decoder = d.source
		return d, nil
	case bzipped:
		d.decoder = bzip2.NewReader(d.source)
		return d, nil
	case zstandard:
		z, err := zstd.NewReader(d.source, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(zstdWindow))
		if err != nil {
			return nil, errors.Join(errkind.Errorf(errkind.Internal, "making a zstd decoder: %w", err), body.Close())
		}
		d.decoder, d.free = z, z.Close
		return d, nil
	case gzipped:
	}
	z, err := gzip.NewReader(d.source)
	if err != nil {
		return nil, errors.Join(d.classify(err), body.Close())
	}
	d.decoder = z
	return d, nil
}

func (d *decompressed) Read(p []byte) (int, error) {
	n, err := d.decoder.Read(p)
	d.out += int64(n)
	if d.out > freeBytes && d.out/maxRatio > d.source.n {
		return n, errkind.Errorf(errkind.BadData, "%d compressed bytes unfold to more than %d, over %d times as many; store it uncompressed", d.source.n, d.out, maxRatio)
	}
	if err == nil || errors.Is(err, io.EOF) {
		return n, err
	}
	return n, d.classify(err)
}

// classify tells damage of the data from failures to get it.
func (d *decompressed) classify(err error) error {
	if d.source.err != nil {
		return d.source.err
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return errkind.Errorf(errkind.BadData, "the compressed data breaks off after %d bytes", d.source.n)
	}
	return errkind.Errorf(errkind.BadData, "the compressed data is damaged near byte %d: %w", d.source.n, err)
}

// Close frees the decoder and closes the object.
func (d *decompressed) Close() error {
	d.free()
	return d.source.body.Close()
}

// counted counts the bytes read from body and remembers why reading it failed.
type counted struct {
	ctx  context.Context //nolint:containedctx // io.Reader has no other way to be cancelled; lives as long as one scan
	body io.ReadCloser
	n    int64
	err  error
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := 0, c.ctx.Err()
	if err == nil {
		n, err = c.body.Read(p)
	}
	c.n += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		c.err = err
	}
	return n, err
}
