package s3store

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/auth"
	"github.com/aws/smithy-go/encoding/httpbinding"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/millrace/millrace/loader/store/ranged"
)

const (
	// emptyHash is what a request without a body is signed with: the SHA-256 of nothing.
	emptyHash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	// maxErrorBytes bounds how much of an error's text is read.
	maxErrorBytes = 64 << 10
	userAgent     = "millrace"
	// schemeSigV4 is what the rules for endpoints call the common signatures.
	schemeSigV4 = "sigv4"
)

// place is where a bucket is, and what its requests are signed for: what the SDK works out anew for each request.
type place struct {
	learned *string // the region as it was known when this was worked out; nil: the configured one
	base    url.URL
	header  http.Header
	plain   bool // signatures are of the common kind, the only one that is made here
	// service and region are what signatures are for.
	service, region string
}

// place works out where the bucket is, once for each region that it turns out to be in.
func (b *Bucket) place(ctx context.Context) (*place, error) {
	learned := b.region.name.Load()
	if p := b.found.Load(); p != nil && p.learned == learned {
		return p, nil
	}
	o := b.client.Options()
	b.region.apply(&o)
	on := func(v bool) *bool { return &v }
	e, err := o.EndpointResolverV2.ResolveEndpoint(ctx, s3.EndpointParameters{
		Bucket: &b.name, Region: &o.Region, Endpoint: o.BaseEndpoint,
		UseFIPS:        on(o.EndpointOptions.UseFIPSEndpoint == aws.FIPSEndpointStateEnabled),
		UseDualStack:   on(o.EndpointOptions.UseDualStackEndpoint == aws.DualStackEndpointStateEnabled),
		ForcePathStyle: on(o.UsePathStyle), Accelerate: on(o.UseAccelerate), UseArnRegion: on(o.UseARNRegion),
		DisableMultiRegionAccessPoints: on(o.DisableMultiRegionAccessPoints), DisableS3ExpressSessionAuth: o.DisableS3ExpressSessionAuth,
	})
	if err != nil {
		return nil, fmt.Errorf("%s: where the bucket is can't be told: %w", b.uri(""), err)
	}
	p := &place{learned: learned, base: e.URI, header: e.Headers, service: "s3", region: o.Region}
	schemes, _ := auth.GetAuthOptions(&e.Properties)
	for _, s := range schemes {
		if s.SchemeID != schemeSigV4 && s.SchemeID != auth.SchemeIDSigV4 {
			continue
		}
		p.plain = true
		if name, ok := smithyhttp.GetSigV4SigningName(&s.SignerProperties); ok {
			p.service = name
		}
		if region, ok := smithyhttp.GetSigV4SigningRegion(&s.SignerProperties); ok {
			p.region = region
		}
		break
	}
	b.found.Store(p)
	return p, nil
}

// get asks for a range of an object. It is a GetObject of the SDK without the SDK, which takes 200 µs for each.
func (b *Bucket) get(ctx context.Context, p *place, key, etag string, off, n int64, used aws.Credentials) (*ranged.Reply, error) {
	u := p.base
	u.Path = smithyhttp.JoinPath(p.base.Path, "/"+key)
	u.RawPath = smithyhttp.JoinPath(p.base.EscapedPath(), "/"+httpbinding.EscapePath(key, false))
	r := (&http.Request{Method: http.MethodGet, URL: &u, Host: u.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: make(http.Header, 8)}).WithContext(ctx)
	maps.Copy(r.Header, p.header)
	r.Header["Range"] = []string{"bytes=" + strconv.FormatInt(off, 10) + "-" + strconv.FormatInt(off+n-1, 10)}
	r.Header["User-Agent"] = []string{userAgent}
	if etag != "" {
		r.Header["If-Match"] = []string{quote(etag)}
	}
	if b.payer != "" {
		r.Header["X-Amz-Request-Payer"] = []string{string(b.payer)}
	}
	if !b.identity.anonymous {
		r.Header["X-Amz-Content-Sha256"] = []string{emptyHash}
		at := time.Now().Add(time.Duration(b.skew.Load()))
		if err := b.signer.SignHTTP(ctx, used, r, emptyHash, p.service, p.region, at, unescaped); err != nil {
			return nil, fmt.Errorf("%s: signing a request: %w", b.uri(key), err)
		}
	}
	response, err := b.http.Do(r)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK && response.StatusCode != http.StatusPartialContent {
		return nil, b.answered(response)
	}
	return got(response)
}

// unescaped: the path of a request to S3 is signed as it is sent.
func unescaped(o *v4.SignerOptions) { o.DisableURIPathEscaping = true }

// got is an answer that brings bytes.
func got(response *http.Response) (*ranged.Reply, error) {
	r := &ranged.Reply{Body: response.Body, Length: response.ContentLength, Size: response.ContentLength, ETag: unquote(response.Header.Get("Etag"))}
	said := response.Header.Get("Content-Range")
	if said == "" { // The whole object.
		return r, nil
	}
	var err error
	if r.Off, r.Length, r.Size, err = ranged.ParseContentRange(said); err != nil {
		return nil, errors.Join(&ranged.Failure{Fault: ranged.Wrong, Err: err}, response.Body.Close())
	}
	return r, nil
}

// answered is an answer that brings none, as an error of the SDK.
func (b *Bucket) answered(response *http.Response) error {
	var said struct{ Code, Message string }
	text, err := io.ReadAll(io.LimitReader(response.Body, maxErrorBytes))
	_ = response.Body.Close() // All that can be said has been read.
	if err == nil {
		_ = xml.NewDecoder(bytes.NewReader(text)).Decode(&said) // Proxies answer in HTML, or with nothing.
	}
	if said.Code == "RequestTimeTooSkewed" {
		if theirs, err := http.ParseTime(response.Header.Get("Date")); err == nil {
			b.skew.Store(int64(time.Until(theirs)))
		}
	}
	return &awshttp.ResponseError{ResponseError: &smithyhttp.ResponseError{
		Response: &smithyhttp.Response{Response: response},
		Err:      &smithy.GenericAPIError{Code: said.Code, Message: said.Message},
	}}
}
