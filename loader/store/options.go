package store

import (
	"net/url"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/errkind"
)

// bucketOptions are the names that the URI of an S3 bucket may set: s3://bucket/key?endpoint=http://host:9000.
var bucketOptions = []string{"anonymous", "endpoint", "profile", "region", "requester_pays", "virtual_host"}

// hoist moves the options at the end of an S3 URI to behind the bucket, escaped, where they stay when keys are cut,
// joined and compared: s3://bucket?endpoint=http%3A%2F%2Fhost%3A9000/key. A question mark that does not begin options
// belongs to the key. rest is the URI without its scheme.
func hoist(rest string) (string, error) {
	if authority, _, _ := strings.Cut(rest, "/"); strings.Contains(authority, "?") && !strings.HasSuffix(authority, ":") {
		return rest, nil // Hoisted already.
	}
	i := strings.LastIndexByte(rest, '?')
	if i < 0 {
		return rest, nil
	}
	values, err := url.ParseQuery(rest[i+1:])
	if err != nil {
		return rest, nil //nolint:nilerr // then it is part of the key
	}
	known := 0
	for name := range values {
		if slices.Contains(bucketOptions, name) {
			known++
		}
	}
	if known == 0 {
		return rest, nil
	}
	if known < len(values) {
		return "", errkind.Errorf(errkind.Invalid, "s3://%s: the options of a bucket are %s", rest, strings.Join(bucketOptions, ", "))
	}
	bucket, key, found := strings.Cut(rest[:i], "/")
	out := bucket + "?" + values.Encode()
	if found {
		out += "/" + key
	}
	return out, nil
}

// BucketOptions splits the authority of an S3 URI into the bucket's name and its options.
func BucketOptions(authority string) (bucket string, options url.Values, err error) {
	bucket, query, _ := strings.Cut(authority, "?")
	options, err = url.ParseQuery(query)
	if err != nil {
		return "", nil, errkind.Errorf(errkind.Invalid, "options of bucket %s: %w", bucket, err)
	}
	for name := range options {
		if !slices.Contains(bucketOptions, name) {
			return "", nil, errkind.Errorf(errkind.Invalid, "bucket %s has no option %q; there are %s", bucket, name, strings.Join(bucketOptions, ", "))
		}
	}
	return bucket, options, nil
}
