package s3store_test

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"go.uber.org/goleak"

	"github.com/millrace/millrace/loader/store/ranged"
	"github.com/millrace/millrace/loader/store/s3store"
	"github.com/millrace/millrace/loader/store/storetest"
	"github.com/millrace/millrace/loader/store/storetest/faulthttp"
	"github.com/millrace/millrace/loader/store/storetest/s3fake"
	"github.com/millrace/millrace/loader/store/storetest/s3servers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hermetic keeps the credentials of whoever runs the tests out of them.
func hermetic(t *testing.T) {
	t.Helper()
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": s3servers.AccessKey, "AWS_SECRET_ACCESS_KEY": s3servers.SecretKey, "AWS_SESSION_TOKEN": "",
		"AWS_CONFIG_FILE": filepath.Join(t.TempDir(), "none"), "AWS_SHARED_CREDENTIALS_FILE": filepath.Join(t.TempDir(), "none"),
		"AWS_EC2_METADATA_DISABLED": "true", "AWS_PROFILE": "", "AWS_REGION": "", "AWS_ENDPOINT_URL": "", "AWS_ENDPOINT_URL_S3": "",
	} {
		t.Setenv(name, value)
	}
}

// quick has the bounds of a Reader in times that tests can wait for.
func quick() ranged.Options {
	return ranged.Options{Silence: 300 * time.Millisecond, RetryFor: 20 * time.Second, FirstRetryFor: 500 * time.Millisecond}
}

func open(t *testing.T, o s3store.Options, authority string) *s3store.Bucket {
	t.Helper()
	b, err := s3store.New(o).Bucket(t.Context(), authority)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// fake is a bucket over a server in memory that rules make fail.
func fake(t *testing.T, o s3store.Options, rules ...faulthttp.Rule) (testBucket, *s3fake.Server, *faulthttp.Server) {
	t.Helper()
	hermetic(t)
	return served(t, o, rules...)
}

// testBucket is a bucket and where it is served.
type testBucket struct {
	*s3store.Bucket
	endpoint string
}

// Endpoint is the server's URL, escaped for a URI.
func (b testBucket) Endpoint() string { return url.QueryEscape(b.endpoint) }

func served(t *testing.T, o s3store.Options, rules ...faulthttp.Rule) (testBucket, *s3fake.Server, *faulthttp.Server) {
	t.Helper()
	server := s3fake.New("bucket")
	faults := faulthttp.New(server, rules...)
	h := httptest.NewServer(faults)
	t.Cleanup(h.Close)
	o.Endpoint = h.URL
	if o.Read.Silence == 0 {
		o.Read = quick()
	}
	return testBucket{open(t, o, "bucket"), h.URL}, server, faults
}

func TestTheFakeServerKeepsTheLawsOfBuckets(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Subject {
		t.Helper()
		b, server, _ := fake(t, s3store.Options{})
		return storetest.Subject{
			Bucket: b.Bucket,
			Put:    func(t *testing.T, key string, data []byte) { t.Helper(); server.Put(key, data) },
			Delete: func(t *testing.T, key string) { t.Helper(); server.Delete(key) },
		}
	})
}

// realServer is the path of a server's program. `make unit` builds them and names their folder; plain `go test` has the fake.
func realServer(t *testing.T, name string) (path string, ok bool) {
	t.Helper()
	dir := os.Getenv("MILLRACE_S3_SERVERS")
	if dir == "" {
		return "", false
	}
	path = filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v; `make setup-servers` builds it", err)
	}
	return path, true
}

// conform runs the laws over a server, each in a bucket of its own.
func conform(t *testing.T, server *s3servers.Server) {
	t.Helper()
	hermetic(t)
	client := admin(server.Endpoint)
	n := 0
	storetest.Run(t, func(t *testing.T) storetest.Subject {
		t.Helper()
		n++
		bucket := "laws-" + string(rune('a'+n))
		if _, err := client.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: &bucket}); err != nil {
			t.Fatal(err)
		}
		read := quick()
		read.Silence = 5 * time.Second
		return storetest.Subject{
			Bucket: open(t, s3store.Options{Read: read}, bucket+"?endpoint="+url.QueryEscape(server.Endpoint)),
			Put: func(t *testing.T, key string, data []byte) {
				t.Helper()
				put(t, client, bucket, key, data)
			},
			Delete: func(t *testing.T, key string) {
				t.Helper()
				if _, err := client.DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: &bucket, Key: &key}); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}

func admin(endpoint string) *s3.Client {
	return s3.New(s3.Options{
		BaseEndpoint: aws.String(endpoint), Region: "us-east-1", UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(s3servers.AccessKey, s3servers.SecretKey, ""),
		HTTPClient:  &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
	})
}

func put(t *testing.T, client *s3.Client, bucket, key string, data []byte) {
	t.Helper()
	if _, err := client.PutObject(t.Context(), &s3.PutObjectInput{Bucket: &bucket, Key: &key, Body: bytes.NewReader(data)}); err != nil {
		t.Fatal(err)
	}
}

func TestVersityKeepsTheLawsOfBuckets(t *testing.T) {
	path, ok := realServer(t, "versitygw")
	if !ok {
		return
	}
	server, err := s3servers.Versity(context.WithoutCancel(t.Context()), path, t.TempDir(), t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	conform(t, server)
}

// This server answers If-Match as if it were not there: the reader compares the etags of answers by itself.
func TestGoFakeS3KeepsTheLawsOfBuckets(t *testing.T) {
	path, ok := realServer(t, "gofakes3")
	if !ok {
		return
	}
	server, err := s3servers.GoFakeS3(context.WithoutCancel(t.Context()), path, "first")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	conform(t, server)
}
