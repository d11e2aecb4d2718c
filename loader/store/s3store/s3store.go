// Package s3store is a store.Bucket over S3 and what speaks its protocol.
//
// The AWS SDK signs, and makes all requests but those for ranges, of which there are many: these are plain HTTP. Reads,
// retries and limits are those of the package ranged, because the SDK's own stop at the headers of an answer, share one
// budget of retries, and never give up on a connection that went silent.
package s3store

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/store"
	"github.com/millrace/millrace/loader/store/ranged"
)

// Bucket reads one bucket.
type Bucket struct {
	*ranged.Reader

	name      string
	client    *s3.Client
	identity  *identity
	transport *http.Transport
	http      *redirecting
	payer     types.RequestPayer
	region    region
	signer    *v4.Signer
	found     atomic.Pointer[place]
	skew      atomic.Int64 // how far the server's clock is ahead, in nanoseconds
}

var (
	_ store.Bucket  = (*Bucket)(nil)
	_ ranged.Source = (*Bucket)(nil)
)

func (b *Bucket) uri(key string) string { return "s3://" + b.name + "/" + key }

// Fetch implements ranged.Source.
func (b *Bucket) Fetch(ctx context.Context, key, etag string, off, n int64) (*ranged.Reply, error) {
	if key == "" {
		return nil, errkind.Errorf(errkind.NotFound, "%s is a bucket, not an object", b.uri(key))
	}
	used, err := b.identity.current(ctx)
	if err != nil {
		return nil, err
	}
	p, err := b.place(ctx)
	if err != nil {
		return nil, err
	}
	var r *ranged.Reply
	if p.plain {
		r, err = b.get(ctx, p, key, etag, off, n, used)
	} else {
		r, err = b.getBySDK(ctx, key, etag, off, n)
	}
	if err == nil {
		return r, nil
	}
	if _, known := errors.AsType[*ranged.Failure](err); known {
		return nil, err
	}
	switch fault := b.classify(ctx, key, used, err); statusOf(fault) {
	case statusPrecondition:
		return nil, b.changed(ctx, key, etag)
	case statusRange:
		return nil, b.short(ctx, key, off, n)
	default:
		return nil, fault
	}
}

// getBySDK is for buckets that want signatures of another kind: S3 Express, access points of several regions.
func (b *Bucket) getBySDK(ctx context.Context, key, etag string, off, n int64) (*ranged.Reply, error) {
	in := &s3.GetObjectInput{Bucket: &b.name, Key: &key, RequestPayer: b.payer, Range: aws.String(fmt.Sprintf("bytes=%d-%d", off, off+n-1))}
	if etag != "" {
		in.IfMatch = aws.String(quote(etag))
	}
	out, err := b.client.GetObject(ctx, in, b.region.apply)
	if err != nil {
		return nil, err
	}
	return reply(out)
}

func reply(out *s3.GetObjectOutput) (*ranged.Reply, error) {
	r := &ranged.Reply{Body: out.Body, Length: aws.ToInt64(out.ContentLength), Size: aws.ToInt64(out.ContentLength), ETag: unquote(aws.ToString(out.ETag))}
	if out.ContentRange == nil { // The whole object.
		return r, nil
	}
	var err error
	if r.Off, r.Length, r.Size, err = ranged.ParseContentRange(*out.ContentRange); err != nil {
		return nil, errors.Join(&ranged.Failure{Fault: ranged.Wrong, Err: err}, out.Body.Close())
	}
	return r, nil
}

// changed says what the object is now that it is no longer the version etag.
func (b *Bucket) changed(ctx context.Context, key, etag string) error {
	a, err := b.Head(ctx, key)
	if err != nil {
		return err
	}
	return store.Changed(b.uri(key), etag, a.Pin)
}

// short says how large the object is that has no range of n bytes at off.
func (b *Bucket) short(ctx context.Context, key string, off, n int64) error {
	a, err := b.Head(ctx, key)
	if err != nil {
		return err
	}
	return store.ShortRead(b.uri(key), off, n, a.Size)
}

// Head implements ranged.Source.
func (b *Bucket) Head(ctx context.Context, key string) (store.Attributes, error) {
	if key == "" || strings.HasSuffix(key, "/") {
		return store.Attributes{}, errkind.Errorf(errkind.NotFound, "%s is a prefix, not an object", b.uri(key))
	}
	used, err := b.identity.current(ctx)
	if err != nil {
		return store.Attributes{}, err
	}
	out, err := b.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &b.name, Key: &key, RequestPayer: b.payer}, b.region.apply)
	if err == nil {
		return store.Attributes{Key: key, Size: aws.ToInt64(out.ContentLength), Pin: unquote(aws.ToString(out.ETag))}, nil
	}
	err = b.classify(ctx, key, used, err)
	if s := statusOf(err); s == http.StatusBadRequest || s == http.StatusForbidden {
		return b.probe(ctx, key, err)
	}
	return store.Attributes{}, err
}

// probe asks for the first byte of an object whose HEAD was refused: the answer to a HEAD has no body that could say why.
func (b *Bucket) probe(ctx context.Context, key string, refusal error) (store.Attributes, error) {
	used, err := b.identity.current(ctx)
	if err != nil {
		return store.Attributes{}, err
	}
	out, err := b.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &b.name, Key: &key, RequestPayer: b.payer, Range: aws.String("bytes=0-0")}, b.region.apply)
	if err != nil {
		if err = b.classify(ctx, key, used, err); statusOf(err) == statusRange {
			err = refusal // An empty object: no byte, no attributes.
		}
		return store.Attributes{}, err
	}
	r, err := reply(out)
	if err != nil {
		return store.Attributes{}, err
	}
	_ = r.Body.Close() // One byte that nobody wants.
	return store.Attributes{Key: key, Size: r.Size, Pin: r.ETag}, nil
}

// List implements store.Bucket. It holds one page of up to 1,000 objects in memory. Keys that end in a slash, by which
// some tools mark directories, are left out.
func (b *Bucket) List(ctx context.Context, prefix string, fn func(store.Attributes) error) error {
	var token *string
	for {
		var page *s3.ListObjectsV2Output
		err := b.Do(ctx, prefix, func(ctx context.Context) (err error) {
			used, err := b.identity.current(ctx)
			if err != nil {
				return err
			}
			in := &s3.ListObjectsV2Input{Bucket: &b.name, Prefix: &prefix, ContinuationToken: token, RequestPayer: b.payer}
			if page, err = b.client.ListObjectsV2(ctx, in, b.region.apply); err != nil {
				return b.classify(ctx, prefix, used, err)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("listing %s: %w", b.uri(prefix), err)
		}
		for i := range page.Contents {
			o := &page.Contents[i]
			key := aws.ToString(o.Key)
			if strings.HasSuffix(key, "/") {
				continue
			}
			if err := fn(store.Attributes{Key: key, Size: aws.ToInt64(o.Size), Pin: unquote(aws.ToString(o.ETag))}); err != nil {
				return err
			}
		}
		if !aws.ToBool(page.IsTruncated) || page.NextContinuationToken == nil {
			return nil
		}
		token = page.NextContinuationToken
	}
}

// Close implements store.Bucket. It closes idle connections; other buckets that share them open new ones.
func (b *Bucket) Close() error {
	b.transport.CloseIdleConnections()
	return nil
}

func quote(etag string) string   { return `"` + etag + `"` }
func unquote(etag string) string { return strings.Trim(etag, `"`) }
