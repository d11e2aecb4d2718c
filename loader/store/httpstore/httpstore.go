// Package httpstore is a store.Bucket over plain HTTP servers that serve ranges.
//
// The key of an object is the rest of its URL, path and query. HTTP has no listings. An object is pinned by its strong
// etag, else by its Last-Modified and length.
package httpstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/store"
	"github.com/millrace/millrace/loader/store/ranged"
)

// Bucket reads the objects of one host.
type Bucket struct {
	*ranged.Reader

	base   string // scheme://host/
	client *http.Client
}

var (
	_ store.Bucket  = (*Bucket)(nil)
	_ ranged.Source = (*Bucket)(nil)
)

// Opener is the store.OpenFunc of scheme, "http" or "https".
func Opener(scheme string, o ranged.Options) store.OpenFunc {
	return func(_ context.Context, authority string) (store.Bucket, error) {
		return New(scheme, authority, o)
	}
}

// New is the bucket of a host, which may be followed by a port.
func New(scheme, host string, o ranged.Options) (*Bucket, error) {
	base := scheme + "://" + host + "/"
	if _, err := url.Parse(base); err != nil {
		return nil, errkind.Errorf(errkind.Invalid, "%s://%.100s: not the address of a host", scheme, host)
	}
	t := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSHandshakeTimeout: 10 * time.Second}
	ranged.Pool(t, o.InFlight)
	b := &Bucket{base: base, client: &http.Client{Transport: t, CheckRedirect: checkRedirect}}
	o.Name = b.uri
	b.Reader = ranged.New(b, o)
	return b, nil
}

const maxRedirects = 10

func checkRedirect(r *http.Request, via []*http.Request) error {
	if len(via) >= maxRedirects {
		return errors.New("redirected too often")
	}
	if via[len(via)-1].URL.Scheme == "https" && r.URL.Scheme != "https" {
		return fmt.Errorf("a redirect to %s would give up encryption", r.URL.Redacted())
	}
	return nil
}

// uri names an object without what may be secret: passwords and signed queries.
func (b *Bucket) uri(key string) string {
	key, _, _ = strings.Cut(key, "?")
	if u, err := url.Parse(b.base + key); err == nil {
		return u.Redacted()
	}
	return key
}

// Fetch implements ranged.Source.
func (b *Bucket) Fetch(ctx context.Context, key, pin string, off, n int64) (*ranged.Reply, error) {
	r, err := b.request(ctx, http.MethodGet, key)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", off, off+n-1))
	if isETag(pin) {
		r.Header.Set("If-Match", pin)
	}
	response, err := b.do(r, key)
	if err != nil {
		return nil, err
	}
	reply, err := b.reply(response, key, pin, off, n)
	if err != nil {
		return nil, errors.Join(err, response.Body.Close())
	}
	return reply, nil
}

func (b *Bucket) reply(r *http.Response, key, pin string, off, n int64) (*ranged.Reply, error) {
	out := &ranged.Reply{Body: r.Body, Length: r.ContentLength, Size: r.ContentLength}
	switch r.StatusCode {
	case http.StatusOK:
		if off > 0 {
			return nil, errkind.Errorf(errkind.Invalid, "%s: the server sends whole files, not ranges; copy the data to one that serves ranges", b.uri(key))
		}
		if out.Size < 0 {
			out.Length = n
		}
	case http.StatusPartialContent:
		var err error
		if out.Off, out.Length, out.Size, err = ranged.ParseContentRange(r.Header.Get("Content-Range")); err != nil {
			return nil, &ranged.Failure{Fault: ranged.Wrong, Err: err}
		}
	case http.StatusPreconditionFailed:
		return nil, store.Changed(b.uri(key), pin, pinOf(r.Header, -1))
	case http.StatusRequestedRangeNotSatisfiable:
		return nil, b.short(r, key, off, n)
	}
	out.ETag = pinOf(r.Header, out.Size)
	return out, nil
}

// short reads the size of an object from an answer that says a range is beyond it.
func (b *Bucket) short(r *http.Response, key string, off, n int64) error {
	_, total, _ := strings.Cut(r.Header.Get("Content-Range"), "/")
	size, err := strconv.ParseInt(total, 10, 64)
	if err != nil {
		return errkind.Errorf(errkind.BadData, "%s: the object ends before %d bytes at offset %d", b.uri(key), n, off)
	}
	return store.ShortRead(b.uri(key), off, n, size)
}

// Head implements ranged.Source.
func (b *Bucket) Head(ctx context.Context, key string) (store.Attributes, error) {
	r, err := b.request(ctx, http.MethodHead, key)
	if err != nil {
		return store.Attributes{}, err
	}
	response, err := b.do(r, key)
	if errkind.Of(err) == errkind.Invalid { // Signed URLs are for one method.
		return b.probe(ctx, key)
	}
	if err != nil {
		return store.Attributes{}, err
	}
	_ = response.Body.Close() // A HEAD has none.
	if response.ContentLength < 0 {
		return store.Attributes{}, errkind.Errorf(errkind.Invalid, "%s: the server does not say how long the object is", b.uri(key))
	}
	return store.Attributes{Key: key, Size: response.ContentLength, Pin: pinOf(response.Header, response.ContentLength)}, nil
}

func (b *Bucket) probe(ctx context.Context, key string) (store.Attributes, error) {
	reply, err := b.Fetch(ctx, key, "", 0, 1)
	if err != nil {
		return store.Attributes{}, err
	}
	_ = reply.Body.Close() // One byte that nobody wants.
	if reply.Size < 0 {
		return store.Attributes{}, errkind.Errorf(errkind.Invalid, "%s: the server does not say how long the object is", b.uri(key))
	}
	return store.Attributes{Key: key, Size: reply.Size, Pin: reply.ETag}, nil
}

// List implements store.Bucket: there is no listing.
func (b *Bucket) List(ctx context.Context, prefix string, _ func(store.Attributes) error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("listing %s: %w", b.uri(prefix), err)
	}
	return errkind.Errorf(errkind.Invalid, "%s: HTTP servers have no listings; name the files, or a pattern such as train-{000000..000099}.tar", b.uri(prefix))
}

// Close implements store.Bucket.
func (b *Bucket) Close() error {
	b.client.CloseIdleConnections()
	return nil
}

func (b *Bucket) request(ctx context.Context, method, key string) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, method, b.base+key, http.NoBody)
	if err != nil {
		return nil, errkind.Errorf(errkind.Invalid, "%s: not a URL", b.uri(key))
	}
	return r, nil
}

// do makes a request and classes its errors; the answers that are left are those that a caller can make sense of.
func (b *Bucket) do(r *http.Request, key string) (*http.Response, error) {
	response, err := b.client.Do(r)
	if err != nil {
		return nil, b.unanswered(r.Context(), key, err)
	}
	status := response.StatusCode
	switch status {
	case http.StatusOK, http.StatusPartialContent, http.StatusPreconditionFailed, http.StatusRequestedRangeNotSatisfiable:
		return response, nil
	}
	_ = response.Body.Close() // The status says it all.
	said := errors.New(response.Status)
	switch {
	case status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable:
		return nil, &ranged.Failure{Fault: ranged.Throttled, After: retryAfter(response.Header), Err: said}
	case status >= 500 || status == http.StatusRequestTimeout || status < 300:
		return nil, &ranged.Failure{Err: said}
	case status == http.StatusNotFound || status == http.StatusGone:
		return nil, errkind.Errorf(errkind.NotFound, "%s: no such object (%w)", b.uri(key), said)
	}
	return nil, errkind.Errorf(errkind.Invalid, "%s: the server refuses: %w", b.uri(key), said)
}

func (b *Bucket) unanswered(ctx context.Context, key string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", b.uri(key), context.Cause(ctx))
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err // It repeats the URL, and with it what may be secret.
	}
	if bad, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return errkind.Errorf(errkind.Invalid, "%s: the server's certificate is not trusted: %w", b.uri(key), bad)
	}
	op, ok := errors.AsType[*net.OpError](err)
	if _, dns := errors.AsType[*net.DNSError](err); dns || ok && op.Op == "dial" {
		return &ranged.Failure{Fault: ranged.Unreachable, Err: err}
	}
	return &ranged.Failure{Err: err}
}

func retryAfter(h http.Header) time.Duration {
	if s, err := strconv.Atoi(h.Get("Retry-After")); err == nil && s > 0 {
		return min(30*time.Second, time.Duration(s)*time.Second)
	}
	return 0
}

// pinOf is the version of an answer's object, of that size.
func pinOf(h http.Header, size int64) string {
	if etag := h.Get("Etag"); isETag(etag) {
		return etag
	}
	modified := h.Get("Last-Modified")
	if modified == "" || size < 0 {
		return ""
	}
	return modified + ", " + strconv.FormatInt(size, 10) + " bytes"
}

// isETag says whether a pin is an etag that If-Match can compare; weak ones never match.
func isETag(pin string) bool { return strings.HasPrefix(pin, `"`) }
