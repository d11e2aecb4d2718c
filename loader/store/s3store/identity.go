package s3store

import (
	"context"
	"sync/atomic"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/store/ranged"
)

// identity holds the credentials of one profile for all buckets of the process: they are fetched once, and again
// some minutes before they expire.
type identity struct {
	anonymous bool
	cache     *aws.CredentialsCache
	once      atomic.Bool // credentials were got at least once
}

// current is what the next request is signed with.
func (i *identity) current(ctx context.Context) (aws.Credentials, error) {
	if i.anonymous {
		return aws.Credentials{}, nil
	}
	c, err := i.cache.Retrieve(ctx)
	switch {
	case err == nil:
		i.once.Store(true)
		return c, nil
	case i.once.Load(): // Whoever hands out credentials may be away for a moment.
		return c, &ranged.Failure{Fault: ranged.Broken, Err: err}
	}
	return c, errkind.Errorf(errkind.Invalid, "no credentials for S3 are found (%w); set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile, or ask for a public bucket without them (anonymous)", cause(err))
}

// refused drops credentials that the store says are expired, unless somebody did so before.
func (i *identity) refused(ctx context.Context, used aws.Credentials) {
	if i.anonymous {
		return
	}
	if c, err := i.cache.Retrieve(ctx); err == nil && c.AccessKeyID == used.AccessKeyID && c.SessionToken == used.SessionToken && c.SecretAccessKey == used.SecretAccessKey {
		i.cache.Invalidate()
	}
}

// region is the one that a bucket turned out to be in.
type region struct{ name atomic.Pointer[string] }

// learn says whether name is news.
func (r *region) learn(name string) bool {
	old := r.name.Swap(&name)
	return old == nil || *old != name
}

func (r *region) apply(o *s3.Options) {
	if name := r.name.Load(); name != nil {
		o.Region = *name
	}
}
