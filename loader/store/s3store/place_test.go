package s3store

import (
	"testing"

	"github.com/millrace/millrace/loader/store/storetest/s3servers"
)

// Where buckets of AWS are follows the SDK's own rules. Signatures of another kind than the common one are left to the SDK.
func TestPlacesOfBuckets(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", s3servers.AccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", s3servers.SecretKey)
	for _, name := range []string{"AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"} {
		t.Setenv(name, "/dev/null")
	}
	for _, name := range []string{"AWS_PROFILE", "AWS_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_SESSION_TOKEN"} {
		t.Setenv(name, "")
	}
	for _, c := range []struct {
		bucket, base, service, region string
		env                           string // set to true
		plain                         bool
	}{
		{"pictures", "https://pictures.s3.eu-west-1.amazonaws.com", "s3", "eu-west-1", "", true},
		{"a.b", "https://s3.eu-west-1.amazonaws.com/a.b", "s3", "eu-west-1", "", true},
		{"pictures", "https://pictures.s3.dualstack.eu-west-1.amazonaws.com", "s3", "eu-west-1", "AWS_USE_DUALSTACK_ENDPOINT", true},
		{"pictures", "https://pictures.s3-fips.eu-west-1.amazonaws.com", "s3", "eu-west-1", "AWS_USE_FIPS_ENDPOINT", true},
		{"fast--euw1-az1--x-s3", "https://fast--euw1-az1--x-s3.s3express-euw1-az1.eu-west-1.amazonaws.com", "s3", "eu-west-1", "", false},
	} {
		t.Run(c.bucket+" "+c.env, func(t *testing.T) {
			if c.env != "" {
				t.Setenv(c.env, "true")
			}
			b, err := New(Options{Region: "eu-west-1"}).Bucket(t.Context(), c.bucket)
			if err != nil {
				t.Fatal(err)
			}
			p, err := b.place(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if p.base.String() != c.base || p.plain != c.plain || c.plain && (p.service != c.service || p.region != c.region) {
				t.Errorf("%s, plain %v, signed for %s in %s; want %+v", p.base.String(), p.plain, p.service, p.region, c)
			}
			if again, err := b.place(t.Context()); err != nil || again != p {
				t.Errorf("%v; the place is worked out anew", err)
			}
			b.region.learn("us-west-2")
			if moved, err := b.place(t.Context()); err != nil || moved.learned == p.learned || c.plain && moved.region != "us-west-2" {
				t.Errorf("%v; a bucket that turns out to be elsewhere is still looked for at %s", err, moved.base.String())
			}
		})
	}
}
