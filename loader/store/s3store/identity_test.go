package s3store_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/loader/store/s3store"
	"github.com/millrace/millrace/loader/store/storetest/faulthttp"
)

func testContext(t *testing.T) (context.Context, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	return ctx, cancel
}

// office hands out credentials as a container's credential endpoint does: key1, key2, …, each for an hour.
func office(t *testing.T) *atomic.Int32 {
	t.Helper()
	var issued atomic.Int32
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n := issued.Add(1)
		_, _ = fmt.Fprintf(w, `{"AccessKeyId":"key%d","SecretAccessKey":"s","Token":"t%d","Expiration":%q}`, n, n, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	}))
	t.Cleanup(h.Close)
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", h.URL)
	return &issued
}

// Credentials end while an object is read: its body is cut, and the rest is refused. One fetch of new ones mends all
// reads that are under way.
func TestCredentialsThatExpireMidObjectAreRenewedOnce(t *testing.T) {
	hermetic(t)
	issued := office(t)
	b, server, faults := served(t, s3store.Options{})
	data := content(1<<20, 1)
	server.Put("x", data)
	var old atomic.Bool
	faults.Set(
		faulthttp.Rule{Method: http.MethodGet, While: old.Load, Match: func(r *http.Request) bool {
			return strings.Contains(r.Header.Get("Authorization"), "Credential=key1/")
		}, Fault: faulthttp.Fault{Status: http.StatusBadRequest, Code: "ExpiredToken"}},
		faulthttp.Rule{Method: http.MethodGet, Times: 1, Fault: faulthttp.Fault{CutAfter: 300_000}, Match: func(*http.Request) bool { old.Store(true); return true }},
	)
	dst := make([]byte, len(data))
	if err := b.ReadRange(t.Context(), "x", 0, dst); err != nil || !bytes.Equal(dst, data) {
		t.Fatalf("%v, or wrong bytes", err)
	}
	done := make(chan error, 20)
	for range cap(done) {
		go func() { done <- b.ReadRange(t.Context(), "x", 0, make([]byte, 1000)) }()
	}
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if issued.Load() != 2 || faults.Struck(0) == 0 {
		t.Errorf("credentials were fetched %d times, want at first and once again; %d refusals", issued.Load(), faults.Struck(0))
	}
	if s := b.Stats(); s.Received != s.Wanted {
		t.Errorf("received %d bytes where %d were wanted", s.Received, s.Wanted)
	}
}

func TestNoCredentialsIsAnErrorThatSaysWhatToDo(t *testing.T) {
	b, server, _ := fake(t, s3store.Options{})
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	server.Put("x", content(10, 1))
	lost := open(t, s3store.Options{Read: quick()}, "bucket?endpoint="+b.Endpoint())
	if err := lost.ReadRange(t.Context(), "x", 0, make([]byte, 1)); err == nil || !strings.Contains(err.Error(), "anonymous") {
		t.Errorf("%v, want what to do", err)
	}
	open := open(t, s3store.Options{Read: quick()}, "bucket?anonymous=true&endpoint="+b.Endpoint())
	if err := open.ReadRange(t.Context(), "x", 0, make([]byte, 1)); err != nil {
		t.Errorf("without credentials: %v", err)
	}
}
