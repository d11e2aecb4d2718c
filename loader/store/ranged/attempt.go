package ranged

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/millrace/millrace/loader/store"
)

// fetch reads q, as often as it takes, each time going on behind the bytes that have come. begun is called when the first
// request is about to be made.
func (r *Reader) fetch(ctx context.Context, q store.Range, begun func()) error {
	w, t := r.limits.Window(q.Key), newTries(r)
	for {
		turn, err := w.Acquire(ctx)
		if err != nil {
			return err
		}
		begun()
		n, etag, err := r.attempt(ctx, q)
		w.Release(turn, r.outcome(err))
		if err == nil {
			return nil
		}
		if n > 0 { // The rest must be of the same version.
			q.Off, q.Dst, q.Pin = q.Off+int64(n), q.Dst[n:], etag
		}
		if err := t.next(ctx, q.Key, err, n); err != nil {
			return err
		}
	}
}

// attempt makes one request for q. It returns how many bytes came, of which version, and why not all.
func (r *Reader) attempt(ctx context.Context, q store.Range) (n int, etag string, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(r.opts.Silence, func() { cancel(errSilent) })
	defer watchdog.Stop()
	r.stats.requests.Add(1)
	reply, err := r.source.Fetch(ctx, q.Key, q.Pin, q.Off, int64(len(q.Dst)))
	if err != nil {
		return 0, "", r.silenced(ctx, err)
	}
	defer func() { _ = reply.Body.Close() }() // All that was wanted has been read, or the connection is of no use.
	etag = reply.ETag
	if etag == "" {
		etag = q.Pin
	}
	if err := r.check(q, reply); err != nil {
		return 0, "", err
	}
	for n < len(q.Dst) {
		m, err := reply.Body.Read(q.Dst[n:])
		n += m
		r.stats.received.Add(int64(m))
		if n == len(q.Dst) {
			break
		}
		if err != nil {
			return n, etag, r.silenced(ctx, cutOff(ctx, q, n, err))
		}
		watchdog.Reset(r.opts.Silence)
	}
	return n, etag, nil
}

// cutOff classes an error in the midst of a body.
func cutOff(ctx context.Context, q store.Range, n int, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("reading %s: %w", q.Key, context.Cause(ctx))
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return &Failure{Err: fmt.Errorf("the body broke off after %d of %d bytes: %w", n, len(q.Dst), err)}
}

// check says whether reply is the answer to q.
func (r *Reader) check(q store.Range, reply *Reply) error {
	want := int64(len(q.Dst))
	if q.Pin != "" && reply.ETag != "" && reply.ETag != q.Pin {
		return store.Changed(r.opts.Name(q.Key), q.Pin, reply.ETag)
	}
	if reply.Size >= 0 && q.Off+want > reply.Size {
		return store.ShortRead(r.opts.Name(q.Key), q.Off, want, reply.Size)
	}
	if reply.Off != q.Off || reply.Length < want {
		return &Failure{Fault: Wrong, Err: fmt.Errorf("the server answered with %d bytes at offset %d, asked for %d at %d", reply.Length, reply.Off, want, q.Off)}
	}
	return nil
}
