package s3store_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/store"
	"github.com/millrace/millrace/loader/store/ranged"
	"github.com/millrace/millrace/loader/store/s3store"
	"github.com/millrace/millrace/loader/store/storetest/faulthttp"
	"github.com/millrace/millrace/loader/store/storetest/s3fake"
)

func content(n, salt int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*131 + i>>8*7 + salt)
	}
	return b
}

// Each of these, twice in a row, costs time but no error and no wrong byte.
func TestFaultsAreRiddenOut(t *testing.T) {
	data := content(1<<20, 1)
	for name, f := range map[string]faulthttp.Fault{
		"slow down":           {Status: http.StatusServiceUnavailable, Code: "SlowDown"},
		"slow down, and when": {Status: http.StatusServiceUnavailable, Code: "SlowDown", Header: http.Header{"Retry-After": {"0"}, "X-Amz-Retry-After": {"20"}}},
		"internal error":      {Status: http.StatusInternalServerError, Code: "InternalError"},
		"request timeout":     {Status: http.StatusBadRequest, Code: "RequestTimeout"},
		"bad gateway":         {Status: http.StatusBadGateway},
		"cut":                 {CutAfter: 300_000},
		"cut at once":         {CutAfter: 1},
		"silent":              {Silent: true},
		"falls silent":        {Silent: true, CutAfter: 300_000},
		"another range":       {Header: http.Header{"Content-Range": {"bytes 5-1048580/2000000"}}},
		"no range at all":     {Header: http.Header{"Content-Range": {"lines 5-7"}}},
	} {
		t.Run(name, func(t *testing.T) {
			rule := faulthttp.Rule{Method: http.MethodGet, Times: 2, Fault: f}
			b, server, faults := fake(t, s3store.Options{}, rule)
			server.Put("dir/x", data)
			dst := make([]byte, len(data))
			if err := b.ReadRange(t.Context(), "dir/x", 0, dst); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(dst, data) {
				t.Error("wrong bytes")
			}
			if faults.Struck(0) != 2 {
				t.Errorf("the fault struck %d times, want 2", faults.Struck(0))
			}
			faults.Set(rule)
			if err := b.List(t.Context(), "dir/", func(store.Attributes) error { return nil }); err != nil && f.CutAfter == 0 && f.Header == nil {
				t.Errorf("listing: %v", err)
			}
		})
	}
}

// What came before a cut is not read again.
func TestACutBodyGoesOnWhereItStopped(t *testing.T) {
	b, server, faults := fake(t, s3store.Options{}, faulthttp.Rule{Method: http.MethodGet, Every: 2, Fault: faulthttp.Fault{CutAfter: 200_000}})
	server.Put("x", content(1<<20, 1))
	for range 10 {
		if err := b.ReadRange(t.Context(), "x", 0, make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	if faults.Struck(0) == 0 {
		t.Fatal("nothing was cut")
	}
	if s := b.Stats(); s.Received != s.Wanted {
		t.Errorf("received %d bytes where %d were wanted", s.Received, s.Wanted)
	}
}

func TestAChangedObjectIsNamed(t *testing.T) {
	b, server, faults := fake(t, s3store.Options{})
	server.Put("x", content(1<<20, 1))
	a, err := b.Attributes(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	// It changes while it is read: the body is cut, and the rest is that of another version.
	var requests atomic.Int32
	faults.Set(faulthttp.Rule{Match: func(r *http.Request) bool {
		if r.Method == http.MethodGet && requests.Add(1) == 2 {
			server.Put("x", content(1<<20, 2))
		}
		return false
	}}, faulthttp.Rule{Method: http.MethodGet, Times: 1, Fault: faulthttp.Fault{CutAfter: 100_000}})
	if err := b.ReadRange(t.Context(), "x", 0, make([]byte, 1<<20)); errkind.Of(err) != errkind.Conflict {
		t.Errorf("%v, want a Conflict", err)
	}
	err = b.ReadPinned(t.Context(), "x", a.Pin, 0, make([]byte, 10))
	if errkind.Of(err) != errkind.Conflict || !strings.Contains(err.Error(), "s3://bucket/x") || !strings.Contains(err.Error(), a.Pin) {
		t.Errorf("%v, want a Conflict that names object and version", err)
	}
	// A server that ignores If-Match is found out by the etag of its answer.
	faults.Set(faulthttp.Rule{Fault: faulthttp.Fault{Header: http.Header{"Etag": {`"third"`}}}})
	a, err = b.Attributes(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	faults.Set()
	if err := b.ReadPinned(t.Context(), "x", a.Pin, 0, make([]byte, 10)); errkind.Of(err) != errkind.Conflict {
		t.Errorf("%v, want a Conflict", err)
	}
}

func TestRefusalsAreErrorsAtOnce(t *testing.T) {
	for _, c := range []struct {
		fault faulthttp.Fault
		kind  errkind.Kind
		text  string
	}{
		{faulthttp.Fault{Status: http.StatusForbidden, Code: "AccessDenied"}, errkind.Invalid, "access is denied"},
		{faulthttp.Fault{Status: http.StatusNotFound, Code: "NoSuchBucket"}, errkind.NotFound, "no bucket bucket"},
		{faulthttp.Fault{Status: http.StatusBadRequest, Code: "InvalidRequest"}, errkind.Invalid, "InvalidRequest"},
		{faulthttp.Fault{Status: http.StatusForbidden, Code: "ExpiredToken"}, errkind.Unavailable, "credentials expired"},
		{faulthttp.Fault{Status: http.StatusBadRequest, Code: "ExpiredToken"}, errkind.Unavailable, "credentials expired"},
		{faulthttp.Fault{Header: http.Header{"Content-Range": {"bytes 5-14/100"}}}, errkind.BadData, "answered with"},
	} {
		b, server, _ := fake(t, s3store.Options{}, faulthttp.Rule{Method: http.MethodGet, Fault: c.fault})
		server.Put("x", content(100, 1))
		err := b.ReadRange(t.Context(), "x", 0, make([]byte, 10))
		if errkind.Of(err) != c.kind || !strings.Contains(err.Error(), c.text) || !strings.Contains(err.Error(), "s3://bucket/x") {
			t.Errorf("%+v: %v of kind %v, want %v with %q", c.fault, err, errkind.Of(err), c.kind, c.text)
		}
	}
}

func TestNobodyAnswersAtAWrongAddress(t *testing.T) {
	hermetic(t)
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for _, endpoint := range []string{gone.URL, "http://no-such-host.invalid"} {
		b := open(t, s3store.Options{Endpoint: endpoint, Read: quick()}, "bucket")
		err := b.ReadRange(t.Context(), "x", 0, make([]byte, 10))
		if errkind.Of(err) != errkind.Unavailable || !strings.Contains(err.Error(), "gave up") {
			t.Errorf("%s: %v, want that it gave up", endpoint, err)
		}
	}
}

// A server that is restarted, on the same port, is found again.
func TestARestartedServerIsFoundAgain(t *testing.T) {
	hermetic(t)
	data := content(1<<20, 1)
	server := s3fake.New("bucket")
	server.Put("x", data)
	listen := func(address string) *httptest.Server {
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		h := &httptest.Server{Listener: l, Config: &http.Server{Handler: server, ReadHeaderTimeout: time.Minute}}
		h.Start()
		return h
	}
	first := listen("127.0.0.1:0")
	address := strings.TrimPrefix(first.URL, "http://")
	b := open(t, s3store.Options{Endpoint: first.URL, Read: quick()}, "bucket")
	read := func() error {
		dst := make([]byte, len(data))
		err := b.ReadRange(t.Context(), "x", 0, dst)
		if err == nil && !bytes.Equal(dst, data) {
			err = errors.New("wrong bytes")
		}
		return err
	}
	if err := read(); err != nil {
		t.Fatal(err)
	}
	first.Close()
	done := make(chan error)
	go func() { done <- read() }()
	for tick := time.NewTicker(time.Millisecond); b.Stats().Retries == 0; <-tick.C {
		select {
		case err := <-done:
			t.Fatalf("%v while the server is away", err)
		default:
		}
	}
	defer listen(address).Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A redirect to another host gets a signature for that host, and credentials go nowhere else.
func TestTemporaryRedirectsAreFollowed(t *testing.T) {
	data := content(100_000, 1)
	var host atomic.Value
	real := s3fake.New("bucket")
	real.Put("x y", data)
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host.Store(r.Host + " " + r.Header.Get("Authorization"))
		real.ServeHTTP(w, r)
	}))
	t.Cleanup(target.Close)
	b, _, faults := fake(t, s3store.Options{}, faulthttp.Rule{Fault: faulthttp.Fault{Status: http.StatusTemporaryRedirect, Location: target.URL + "/bucket/x%20y"}})
	dst := make([]byte, len(data))
	if err := b.ReadRange(t.Context(), "x y", 0, dst); err != nil || !bytes.Equal(dst, data) {
		t.Fatalf("%v, or wrong bytes", err)
	}
	if got, _ := host.Load().(string); !strings.HasPrefix(got, strings.TrimPrefix(target.URL, "http://")+" AWS4-HMAC-SHA256") {
		t.Errorf("the target saw %q, want a signature for its own host", got)
	}
	faults.Set(faulthttp.Rule{Fault: faulthttp.Fault{Status: http.StatusTemporaryRedirect, Location: "/bucket/x"}})
	b2 := open(t, s3store.Options{Read: ranged.Options{FirstRetryFor: 50 * time.Millisecond, RetryFor: 50 * time.Millisecond}}, "bucket?endpoint="+b.Endpoint())
	if err := b2.ReadRange(t.Context(), "x", 0, dst); err == nil || !strings.Contains(err.Error(), "redirected too often") {
		t.Errorf("%v, want that a loop of redirects ends", err)
	}
}

// The region of a bucket elsewhere is learned from the server's answer.
func TestTheRegionOfABucketIsFoundOut(t *testing.T) {
	b, server, faults := fake(t, s3store.Options{}, faulthttp.Rule{
		Match: func(r *http.Request) bool { return !strings.Contains(r.Header.Get("Authorization"), "/eu-north-1/") },
		Fault: faulthttp.Fault{Status: http.StatusBadRequest, Code: "AuthorizationHeaderMalformed", Header: http.Header{"X-Amz-Bucket-Region": {"eu-north-1"}}},
	})
	server.Put("x", content(10, 1))
	for range 3 {
		if err := b.ReadRange(t.Context(), "x", 0, make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
	}
	if faults.Struck(0) != 1 {
		t.Errorf("%d requests went to the wrong region, want 1", faults.Struck(0))
	}
}

func TestOptionsReachRequests(t *testing.T) {
	var seen atomic.Value
	b, server, _ := fake(t, s3store.Options{Anonymous: true, RequesterPays: true}, faulthttp.Rule{Match: func(r *http.Request) bool {
		seen.Store(fmt.Sprint(r.Header.Get("X-Amz-Request-Payer"), " ", r.Header.Get("Authorization")))
		return false
	}})
	server.Put("x", content(10, 1))
	if err := b.ReadRange(t.Context(), "x", 0, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	if seen.Load() != "requester " {
		t.Errorf("payer and authorization are %q, want that the requester pays, and no signature", seen.Load())
	}
	for _, authority := range []string{"bucket?endpoint=ftp%3A%2F%2Fx", "bucket?anonymous=perhaps", "bucket?color=red"} {
		if _, err := s3store.New(s3store.Options{}).Bucket(t.Context(), authority); errkind.Of(err) != errkind.Invalid {
			t.Errorf("%s: %v, want Invalid", authority, err)
		}
	}
}

// One prefix that is throttled all the time does not hold up another one.
func TestThrottlingStaysInItsPrefix(t *testing.T) {
	b, server, faults := fake(t, s3store.Options{Read: ranged.Options{Silence: time.Second, RetryFor: 300 * time.Millisecond}},
		faulthttp.Rule{Path: "/slow/", Fault: faulthttp.Fault{Status: http.StatusServiceUnavailable, Code: "SlowDown"}})
	server.Put("slow/x", content(10, 1))
	server.Put("fast/x", content(10, 1))
	var wg sync.WaitGroup
	var failed atomic.Int32
	for range 50 {
		wg.Go(func() {
			if err := b.ReadRange(t.Context(), "slow/x", 0, make([]byte, 10)); errkind.Of(err) == errkind.Unavailable {
				failed.Add(1)
			}
		})
		wg.Go(func() {
			for range 5 {
				if err := b.ReadRange(t.Context(), "fast/x", 0, make([]byte, 10)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if failed.Load() != 50 || faults.Struck(0) == 0 {
		t.Errorf("%d of 50 reads of the throttled prefix failed", failed.Load())
	}
	if s := b.Stats(); s.Throttled != int64(faults.Struck(0)) {
		t.Errorf("%d answers count as throttled, %d were", s.Throttled, faults.Struck(0))
	}
}

// A reply that holds up a batch is asked for again; the first one is cut off.
func TestTheReplyThatBlocksIsAskedForAgain(t *testing.T) {
	b, server, faults := fake(t, s3store.Options{Read: ranged.Options{Silence: 20 * time.Second, HedgeShare: 0.5}})
	data := content(64<<10, 1)
	server.Put("x", data)
	for range 40 { // It learns what is usual, and earns hedges.
		if err := b.ReadRange(t.Context(), "x", 0, make([]byte, 1<<10)); err != nil {
			t.Fatal(err)
		}
	}
	faults.Set(faulthttp.Rule{Times: 1, Fault: faulthttp.Fault{Silent: true}})
	var ranges []store.Range
	for i := range 32 {
		ranges = append(ranges, store.Range{Key: "x", Off: int64(i << 10), Dst: make([]byte, 1<<10)})
	}
	if err := b.ReadRanges(t.Context(), ranges); err != nil { // Without a second request: silence, and a failure of the test.
		t.Fatal(err)
	}
	for i, r := range ranges {
		if !bytes.Equal(r.Dst, data[i<<10:(i+1)<<10]) {
			t.Errorf("range %d: wrong bytes", i)
		}
	}
	if s := b.Stats(); s.HedgeWins < 1 || s.Retries > 0 {
		t.Errorf("stats %+v, want a hedge that won and no retry", s)
	}
}

func TestACallerWhoLeavesEndsTheRead(t *testing.T) {
	b, server, faults := fake(t, s3store.Options{Read: ranged.Options{Silence: time.Minute}}, faulthttp.Rule{Fault: faulthttp.Fault{Silent: true, CutAfter: 10}})
	server.Put("x", content(100, 1))
	ctx, cancel := testContext(t)
	faults.Set(faulthttp.Rule{Fault: faulthttp.Fault{Silent: true}, Match: func(*http.Request) bool { cancel(); return true }})
	if err := b.ReadRange(ctx, "x", 0, make([]byte, 100)); !errors.Is(err, ctx.Err()) || ctx.Err() == nil {
		t.Errorf("%v, want the caller's reason", err)
	}
}
