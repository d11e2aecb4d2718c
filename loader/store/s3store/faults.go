package s3store

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/store/ranged"
)

// Error codes that mean the same whatever their status.
var (
	throttleCodes = []string{"SlowDown", "ServiceUnavailable", "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequests", "TooManyRequestsException", "BandwidthLimitExceeded"}
	expiredCodes  = []string{"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"}
	passingCodes  = []string{"RequestTimeout", "RequestTimeTooSkewed", "InternalError", "OperationAborted", "IncompleteBody"}
)

// refusal is an answer with an error status that is worth no other try.
type refusal struct {
	status int
	err    error
}

func (e *refusal) Error() string { return e.err.Error() }
func (e *refusal) Unwrap() error { return e.err }

// statusOf is the status of a refusal; 0 for all else.
func statusOf(err error) int {
	if r, ok := errors.AsType[*refusal](err); ok {
		return r.status
	}
	return 0
}

const (
	statusPrecondition = http.StatusPreconditionFailed
	statusRange        = http.StatusRequestedRangeNotSatisfiable
)

// classify gives an error of the SDK its meaning. used are the credentials of the request.
func (b *Bucket) classify(ctx context.Context, key string, used aws.Credentials, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", b.uri(key), context.Cause(ctx))
	}
	response, answered := errors.AsType[*awshttp.ResponseError](err)
	if !answered || response.HTTPStatusCode() == 0 { // The SDK wraps errors of connections in an empty answer.
		return b.unanswered(key, err)
	}
	status, header := response.HTTPStatusCode(), response.Response.Header
	code, text := codeOf(err)
	if r := header.Get("X-Amz-Bucket-Region"); r != "" && status >= 300 && b.region.learn(r) {
		return &ranged.Failure{Fault: ranged.Wrong, Err: fmt.Errorf("the bucket is in region %s", r)}
	}
	said := fmt.Errorf("%d %s", status, strings.TrimSpace(code+" "+text))
	switch {
	case slices.Contains(expiredCodes, code):
		b.identity.refused(ctx, used)
		return &ranged.Failure{Fault: ranged.Expired, Err: fmt.Errorf("credentials expired (%w)", said)}
	case slices.Contains(throttleCodes, code), status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable:
		return &ranged.Failure{Fault: ranged.Throttled, After: retryAfter(header), Err: said}
	case status >= 500, status < 300, status == http.StatusRequestTimeout, slices.Contains(passingCodes, code):
		return &ranged.Failure{Fault: ranged.Broken, After: retryAfter(header), Err: said}
	}
	return &refusal{status: status, err: b.refused(key, status, code, said)}
}

// refused says what a refusal means for the user.
func (b *Bucket) refused(key string, status int, code string, said error) error {
	switch {
	case code == "NoSuchBucket":
		return errkind.Errorf(errkind.NotFound, "%s: there is no bucket %s (%w)", b.uri(key), b.name, said)
	case status == http.StatusNotFound:
		return errkind.Errorf(errkind.NotFound, "%s: no such object", b.uri(key))
	case status == http.StatusForbidden && b.identity.anonymous:
		return errkind.Errorf(errkind.Invalid, "%s: access is denied to requests without credentials (%w)", b.uri(key), said)
	case status == http.StatusForbidden:
		return errkind.Errorf(errkind.Invalid, "%s: access is denied (%w); check the credentials, or ask for a public bucket without them (anonymous)", b.uri(key), said)
	case status >= 300 && status < 400:
		return errkind.Errorf(errkind.Invalid, "%s: the server leads elsewhere (%w); check endpoint and region", b.uri(key), said)
	}
	return errkind.Errorf(errkind.Invalid, "%s: %w", b.uri(key), said)
}

// unanswered classes an error without an answer.
func (b *Bucket) unanswered(key string, err error) error {
	if bad, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return errkind.Errorf(errkind.Invalid, "%s: the server's certificate is not trusted: %w", b.uri(key), bad)
	}
	if net, ok := errors.AsType[*net.OpError](err); ok && net.Op == "dial" {
		return &ranged.Failure{Fault: ranged.Unreachable, Err: net}
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return &ranged.Failure{Fault: ranged.Unreachable, Err: dns}
	}
	if invalid, ok := errors.AsType[*smithy.InvalidParamsError](err); ok {
		return errkind.Errorf(errkind.Invalid, "%s: %w", b.uri(key), invalid)
	}
	return &ranged.Failure{Fault: ranged.Broken, Err: cause(err)}
}

// cause is the innermost error: the SDK's layers say nothing that a user could act on.
func cause(err error) error {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		err = next
	}
}

func codeOf(err error) (code, text string) {
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		code, text = api.ErrorCode(), api.ErrorMessage()
	}
	if code == "UnknownError" {
		code = ""
	}
	return code, text
}

// retryAfter is how long the server asks to wait, at most 30 s.
func retryAfter(h http.Header) time.Duration {
	if ms, err := strconv.Atoi(h.Get("X-Amz-Retry-After")); err == nil && ms > 0 {
		return min(30*time.Second, time.Duration(ms)*time.Millisecond)
	}
	if s, err := strconv.Atoi(h.Get("Retry-After")); err == nil && s > 0 {
		return min(30*time.Second, time.Duration(s)*time.Second)
	}
	return 0
}
