package s3store

import (
	"bytes"
	"context"
	"net/http"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/store"
)

var _ store.Creator = (*Bucket)(nil)

// Create implements store.Creator by a conditional write (If-None-Match: *). An answer that was lost on its way is looked
// up before it is called a conflict: an object of the very same bytes is taken for the one that was written.
func (b *Bucket) Create(ctx context.Context, key string, data []byte) error {
	tried := 0
	return b.Do(ctx, key, func(ctx context.Context) error {
		used, err := b.identity.current(ctx)
		if err != nil {
			return err
		}
		tried++
		_, err = b.client.PutObject(ctx, &s3.PutObjectInput{
			Bucket: &b.name, Key: &key, Body: bytes.NewReader(data), ContentLength: aws.Int64(int64(len(data))),
			IfNoneMatch: aws.String("*"), RequestPayer: b.payer,
		}, b.region.apply)
		if err == nil {
			return nil
		}
		err = b.classify(ctx, key, used, err)
		// 409: another write of this key is under way, which may fail yet.
		switch s := statusOf(err); {
		case s != statusPrecondition && s != http.StatusConflict:
			return err
		case s == statusPrecondition && tried > 1 && b.holds(ctx, key, data):
			return nil
		case s == http.StatusConflict && !b.there(ctx, key):
			return err
		}
		return store.Exists(b.uri(key))
	})
}

// holds says whether the object key is these bytes.
func (b *Bucket) holds(ctx context.Context, key string, data []byte) bool {
	a, err := b.Head(ctx, key)
	if err != nil || a.Size != int64(len(data)) {
		return false
	}
	got := make([]byte, len(data))
	return b.ReadRange(ctx, key, 0, got) == nil && bytes.Equal(got, data)
}

func (b *Bucket) there(ctx context.Context, key string) bool {
	_, err := b.Head(ctx, key)
	return err == nil
}

// Remove implements store.Creator.
func (b *Bucket) Remove(ctx context.Context, key string) error {
	err := b.Do(ctx, key, func(ctx context.Context) error {
		used, err := b.identity.current(ctx)
		if err != nil {
			return err
		}
		if _, err := b.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &b.name, Key: &key, RequestPayer: b.payer}, b.region.apply); err != nil {
			return b.classify(ctx, key, used, err)
		}
		return nil
	})
	if errkind.Of(err) == errkind.NotFound {
		return nil
	}
	return err
}
