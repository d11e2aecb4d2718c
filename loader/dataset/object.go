package dataset

import (
	"context"
	"fmt"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/store"
)

// object is one version of a stored object.
type object struct {
	bucket   store.Bucket
	key, uri string
	pin      string // empty: any version
	size     int64
}

func openObject(ctx context.Context, r *store.Resolver, uri, pin string, size int64) (object, error) {
	b, key, err := r.Resolve(ctx, uri)
	if err != nil {
		return object{}, err
	}
	return object{bucket: b, key: key, uri: uri, pin: pin, size: size}, nil
}

// checksPins says whether every read of o proves that its version is still the pinned one.
func (o object) checksPins() bool {
	_, ok := o.bucket.(store.PinReader)
	return ok && o.pin != ""
}

func (o object) read(ctx context.Context, off int64, dst []byte) error {
	p, ok := o.bucket.(store.PinReader)
	if !ok || o.pin == "" {
		return o.bucket.ReadRange(ctx, o.key, off, dst)
	}
	err := p.ReadPinned(ctx, o.key, o.pin, off, dst)
	if errkind.Of(err) == errkind.Conflict {
		if err := o.verify(ctx); err != nil {
			return err
		}
	}
	return err
}

// verify compares the pin with the object as it is now.
func (o object) verify(ctx context.Context) error {
	a, err := o.bucket.Attributes(ctx, o.key)
	if err != nil {
		return fmt.Errorf("looking up %s: %w", o.uri, err)
	}
	switch {
	case o.pin == "" && a.Size == o.size || a.Pin == o.pin && o.pin != "":
		return nil
	case a.Size != o.size:
		return errkind.Errorf(errkind.Conflict, "%s changed since it was indexed: size was %d, is %d; run millrace index again", o.uri, o.size, a.Size)
	default:
		return errkind.Errorf(errkind.Conflict, "%s changed since it was indexed: version was %s, is %s; run millrace index again", o.uri, o.pin, a.Pin)
	}
}
