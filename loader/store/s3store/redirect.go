package s3store

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// maxRedirects is how often one request is sent elsewhere.
const maxRedirects = 4

// redirecting follows temporary redirects. A request is signed for its host, so each needs a signature of its own.
type redirecting struct {
	transport *http.Transport
	identity  *identity
	region    string
}

// Do implements the SDK's HTTPClient.
func (c *redirecting) Do(r *http.Request) (*http.Response, error) {
	for range maxRedirects {
		response, err := c.transport.RoundTrip(r)
		if err != nil || response.StatusCode != http.StatusTemporaryRedirect && response.StatusCode != http.StatusPermanentRedirect && response.StatusCode != http.StatusFound {
			return response, err
		}
		to, err := response.Location()
		if err != nil {
			return response, nil //nolint:nilerr // an answer without a place to go to is for the SDK to report
		}
		if err := response.Body.Close(); err != nil {
			return nil, fmt.Errorf("closing a redirect: %w", err)
		}
		if r, err = c.again(r, to); err != nil {
			return nil, err
		}
	}
	return nil, errors.New("redirected too often")
}

// again is r for another place.
func (c *redirecting) again(r *http.Request, to *url.URL) (*http.Request, error) {
	if r.URL.Scheme == "https" && to.Scheme != "https" {
		return nil, fmt.Errorf("a redirect to %s would give up encryption", to.Redacted())
	}
	out := r.Clone(r.Context())
	out.URL, out.Host = to, to.Host
	if r.Header.Get("Authorization") == "" || to.Host == r.URL.Host && to.Path == r.URL.Path {
		return out, nil
	}
	out.Header.Del("Authorization")
	credentials, err := c.identity.current(r.Context())
	if err != nil {
		return nil, err
	}
	signer := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	hash := r.Header.Get("X-Amz-Content-Sha256")
	if err := signer.SignHTTP(r.Context(), credentials, out, hash, "s3", c.region, time.Now()); err != nil {
		return nil, fmt.Errorf("signing a redirected request: %w", err)
	}
	return out, nil
}
