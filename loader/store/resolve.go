package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/millrace/millrace/internal/errkind"
)

// OpenFunc opens the bucket that the authority of a URI names: "bucket" in s3://bucket/key. For files it is empty.
type OpenFunc func(ctx context.Context, authority string) (Bucket, error)

// Resolver finds the bucket and key of a URI. It opens each bucket once, on first use, and owns them.
// It may be used by many goroutines at once.
type Resolver struct {
	openers map[string]OpenFunc

	mu      sync.Mutex
	buckets map[string]*openBucket
	closed  bool
}

type openBucket struct {
	mu     sync.Mutex
	bucket Bucket
}

// NewResolver is a Resolver for the schemes of openers, each written without "://". Plain paths have the scheme "file".
func NewResolver(openers map[string]OpenFunc) *Resolver {
	return &Resolver{openers: maps.Clone(openers), buckets: map[string]*openBucket{}}
}

// Resolve finds the bucket and the key of uri. An unknown scheme is an error that names those known.
func (r *Resolver) Resolve(ctx context.Context, uri string) (Bucket, string, error) {
	scheme, authority, key, err := split(uri)
	if err != nil {
		return nil, "", err
	}
	open, ok := r.openers[scheme]
	if !ok {
		return nil, "", errkind.Errorf(errkind.Invalid, "%s: unknown scheme %q; known are %s",
			uri, scheme, strings.Join(slices.Sorted(maps.Keys(r.openers)), ", "))
	}
	b, err := r.bucket(ctx, scheme+"://"+authority, authority, open)
	if err != nil {
		return nil, "", fmt.Errorf("opening the store of %s: %w", uri, err)
	}
	return b, key, nil
}

func (r *Resolver) bucket(ctx context.Context, name, authority string, open OpenFunc) (Bucket, error) {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil, errkind.Errorf(errkind.Internal, "the resolver is closed")
	}
	e := r.buckets[name]
	if e == nil {
		e = &openBucket{}
		r.buckets[name] = e
	}
	r.mu.Unlock()

	// Opening may ask the network for credentials: only those who want the same bucket wait for it.
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.bucket != nil {
		return e.bucket, nil
	}
	b, err := open(ctx, authority)
	if err != nil {
		return nil, err
	}
	e.bucket = b
	return b, nil
}

// Close closes every bucket that was opened. The resolver can't be used afterwards.
func (r *Resolver) Close() error {
	r.mu.Lock()
	r.closed = true
	buckets := r.buckets
	r.buckets = nil
	r.mu.Unlock()
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(buckets)) {
		e := buckets[name]
		e.mu.Lock()
		if e.bucket != nil {
			errs = append(errs, e.bucket.Close())
			e.bucket = nil
		}
		e.mu.Unlock()
	}
	return errors.Join(errs...)
}

// Scheme is the scheme of uri, in lower case; "file" for a plain path.
func Scheme(uri string) string {
	if i := strings.Index(uri, "://"); i > 0 && isScheme(uri[:i]) {
		return strings.ToLower(uri[:i])
	}
	return "file"
}

// Canonical is the one spelling of uri under which objects are remembered: files as absolute, cleaned
// paths without scheme, all else with the scheme in lower case and without a trailing slash.
func Canonical(uri string) (string, error) {
	scheme, authority, key, err := split(uri)
	if err != nil {
		return "", err
	}
	if scheme == "file" {
		return "/" + key, nil
	}
	return strings.TrimRight(scheme+"://"+authority+"/"+key, "/"), nil
}

// Base is the last element of uri's path, by which messages and sample keys name a shard.
func Base(uri string) string {
	uri = strings.TrimRight(uri, "/")
	return uri[strings.LastIndexByte(uri, '/')+1:]
}

func isScheme(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || (c < '0' || c > '9') && c != '+' && c != '-' && c != '.') {
			return false
		}
	}
	return s != ""
}

func split(uri string) (scheme, authority, key string, err error) {
	if uri == "" {
		return "", "", "", errkind.Errorf(errkind.Invalid, "empty URI: a path or scheme://… is needed")
	}
	if strings.IndexByte(uri, 0) >= 0 {
		return "", "", "", errkind.Errorf(errkind.Invalid, "%q: a URI can't hold a zero byte", uri)
	}
	scheme = Scheme(uri)
	rest := uri
	if i := strings.Index(uri, "://"); i >= 0 && i == len(scheme) {
		rest = uri[i+3:]
		if scheme == "s3" {
			if rest, err = hoist(rest); err != nil {
				return "", "", "", err
			}
		}
		if scheme != "file" {
			authority, key, _ = strings.Cut(rest, "/")
			if authority == "" {
				return "", "", "", errkind.Errorf(errkind.Invalid, "%s: no bucket is named; write %s://bucket/key", uri, scheme)
			}
			return scheme, authority, key, nil
		}
		host, path, found := strings.Cut(rest, "/")
		if !found || host != "" && host != "localhost" {
			return "", "", "", errkind.Errorf(errkind.Invalid, "%s: a file URI is file:///absolute/path", uri)
		}
		rest = "/" + path
	}
	abs, err := filepath.Abs(filepath.FromSlash(rest))
	if err != nil {
		return "", "", "", errkind.Errorf(errkind.Invalid, "%s: finding the working directory: %w", uri, err)
	}
	return scheme, "", strings.TrimPrefix(filepath.ToSlash(abs), "/"), nil
}
