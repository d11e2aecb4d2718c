package s3store_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/millrace/millrace/loader/store/s3store"
	"github.com/millrace/millrace/loader/store/storetest/faulthttp"
	"github.com/millrace/millrace/loader/store/storetest/s3servers"
)

// oddKeys are keys whose paths are easily escaped or signed wrongly.
var oddKeys = []string{
	"plain", "a/b/c.tar", "white space/x y", "plus+and%20", "ques?tion#hash&amp=1", "ümlaut/日本語", "a//b", "dots/../up/./x", "~tilde!*'();:@$,[]", "trailing ", `quo"te\back|{}^`,
}

// A read is asked for as the SDK's own GetObject asks for it: at the same host and path, for the same range and version, signed for
// the same scope.
func TestReadsAskAsTheSDKDoes(t *testing.T) {
	hermetic(t)
	var seen []*http.Request
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = append(seen, r.Clone(r.Context()))
		w.Header().Set("Content-Range", "bytes 3-12/100")
		w.Header().Set("Etag", `"e"`)
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write(make([]byte, 10))
	}))
	t.Cleanup(h.Close)
	b := open(t, s3store.Options{Endpoint: h.URL + "/below", Region: "eu-west-3", RequesterPays: true, Read: quick()}, "bucket")
	client := s3.New(s3.Options{
		BaseEndpoint: aws.String(h.URL + "/below"), Region: "eu-west-3", UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(s3servers.AccessKey, s3servers.SecretKey, ""),
	})
	for _, key := range append(oddKeys, "/leading", "dir/") {
		seen = nil
		if err := b.ReadPinned(t.Context(), key, "e", 3, make([]byte, 10)); err != nil {
			t.Fatalf("%q: %v", key, err)
		}
		out, err := client.GetObject(t.Context(), &s3.GetObjectInput{
			Bucket: aws.String("bucket"), Key: &key, Range: aws.String("bytes=3-12"), IfMatch: aws.String(`"e"`), RequestPayer: "requester",
		})
		if err != nil {
			t.Fatalf("%q: %v", key, err)
		}
		_ = out.Body.Close()
		ours, sdk := seen[0], seen[1]
		if strings.TrimSuffix(sdk.RequestURI, "?x-id=GetObject") != ours.RequestURI || ours.Host != sdk.Host {
			t.Errorf("%q: asks for %s, the SDK for %s", key, ours.RequestURI, sdk.RequestURI)
		}
		for _, name := range []string{"Range", "If-Match", "X-Amz-Request-Payer", "X-Amz-Content-Sha256"} {
			if ours.Header.Get(name) != sdk.Header.Get(name) {
				t.Errorf("%q: %s is %q, the SDK's %q", key, name, ours.Header.Get(name), sdk.Header.Get(name))
			}
		}
		scope := func(r *http.Request) string {
			s, _, _ := strings.Cut(r.Header.Get("Authorization"), ",")
			return s
		}
		if scope(ours) != scope(sdk) {
			t.Errorf("%q: signed for %s, the SDK for %s", key, scope(ours), scope(sdk))
		}
	}
}

// A real server finds the signatures of odd keys right.
func TestVersityAcceptsTheSignaturesOfOddKeys(t *testing.T) {
	path, ok := realServer(t, "versitygw")
	if !ok {
		return
	}
	hermetic(t)
	root := t.TempDir()
	server, err := s3servers.Versity(t.Context(), path, root, t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	b := open(t, s3store.Options{Endpoint: server.Endpoint, Read: quick()}, "bucket")
	for i, key := range oddKeys {
		if strings.Contains(key, "//") || strings.Contains(key, "..") {
			continue // this server keeps files, which can't have such names
		}
		file := filepath.Join(root, "bucket", filepath.FromSlash(key))
		if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
			t.Fatal(err)
		}
		data := content(1000, i)
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		dst := make([]byte, 900)
		if err := b.ReadRange(t.Context(), key, 100, dst); err != nil || !bytes.Equal(dst, data[100:]) {
			t.Errorf("%q: %v, or wrong bytes", key, err)
		}
	}
}

// A clock that is wrong is put right by the server's.
func TestAWrongClockIsPutRight(t *testing.T) {
	ahead := time.Now().Add(3 * time.Hour)
	b, server, faults := fake(t, s3store.Options{}, faulthttp.Rule{
		Match: func(r *http.Request) bool {
			at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
			return err != nil || ahead.Sub(at) > time.Hour
		},
		Fault: faulthttp.Fault{Status: http.StatusForbidden, Code: "RequestTimeTooSkewed", Header: http.Header{"Date": {ahead.UTC().Format(http.TimeFormat)}}},
	})
	server.Put("x", content(10, 1))
	for range 3 {
		if err := b.ReadRange(t.Context(), "x", 0, make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
	}
	if faults.Struck(0) != 1 {
		t.Errorf("%d requests had the wrong time, want 1", faults.Struck(0))
	}
}

// A bucket has no bytes; without a key, a GET would list it.
func TestABucketIsNoObject(t *testing.T) {
	b, _, _ := fake(t, s3store.Options{})
	if err := b.ReadRange(t.Context(), "", 0, make([]byte, 1)); err == nil || !strings.Contains(err.Error(), "not an object") {
		t.Errorf("%v, want that a bucket is no object", err)
	}
}
