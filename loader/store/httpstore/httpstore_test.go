package httpstore_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/store/httpstore"
	"github.com/millrace/millrace/loader/store/ranged"
	"github.com/millrace/millrace/loader/store/storetest"
	"github.com/millrace/millrace/loader/store/storetest/faulthttp"
	"github.com/millrace/millrace/loader/store/storetest/s3fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func serve(t *testing.T, h http.Handler) *httpstore.Bucket {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	b, err := httpstore.New("http", strings.TrimPrefix(server.URL, "http://"), ranged.Options{
		Silence: 300 * time.Millisecond, RetryFor: 20 * time.Second, FirstRetryFor: 300 * time.Millisecond,
	})
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

func TestServersWithETagsKeepTheLawsOfBuckets(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Subject {
		t.Helper()
		s := s3fake.New("files")
		return storetest.Subject{
			Bucket: serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				r.URL.Path = "/files" + r.URL.Path
				s.ServeHTTP(w, r)
			})),
			Put:        func(t *testing.T, key string, data []byte) { t.Helper(); s.Put(key, data) },
			Delete:     func(t *testing.T, key string) { t.Helper(); s.Delete(key) },
			CannotList: true,
		}
	})
}

// A file server knows no etags: the time of the last change and the length stand in.
func TestServersWithDatesKeepTheLawsOfBuckets(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Subject {
		t.Helper()
		root, written := t.TempDir(), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		files := http.FileServer(http.Dir(root))
		return storetest.Subject{
			Bucket: serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if info, err := os.Stat(filepath.Join(root, filepath.FromSlash(r.URL.Path))); err == nil && info.IsDir() {
					http.NotFound(w, r)
					return
				}
				files.ServeHTTP(w, r)
			})),
			Put: func(t *testing.T, key string, data []byte) {
				t.Helper()
				path := filepath.Join(root, key)
				written = written.Add(2 * time.Second) // HTTP dates count seconds
				for _, err := range []error{os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o600), os.Chtimes(path, written, written)} {
					if err != nil {
						t.Fatal(err)
					}
				}
			},
			Delete: func(t *testing.T, key string) {
				t.Helper()
				if err := os.Remove(filepath.Join(root, key)); err != nil {
					t.Fatal(err)
				}
			},
			CannotList: true,
		}
	})
}

func TestAServerWithoutRangesIsAClearError(t *testing.T) {
	b := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1000)) }))
	if err := b.ReadRange(t.Context(), "x", 0, make([]byte, 10)); err != nil {
		t.Errorf("the head of a whole file: %v", err)
	}
	err := b.ReadRange(t.Context(), "x", 10, make([]byte, 10))
	if errkind.Of(err) != errkind.Invalid || !strings.Contains(err.Error(), "not ranges") {
		t.Errorf("%v, want Invalid that says so", err)
	}
}

func TestFaultsAreRiddenOut(t *testing.T) {
	s := s3fake.New("files")
	data := make([]byte, 300_000)
	for i := range data {
		data[i] = byte(i >> 8)
	}
	s.Put("x", data)
	faults := faulthttp.New(s)
	b := serve(t, faults)
	for name, f := range map[string]faulthttp.Fault{
		"busy":       {Status: http.StatusTooManyRequests},
		"broken":     {Status: http.StatusBadGateway},
		"cut":        {CutAfter: 100_001},
		"silent":     {Silent: true},
		"falls dumb": {Silent: true, CutAfter: 5},
		"elsewhere":  {Header: http.Header{"Content-Range": {"bytes 7-300006/400000"}}},
	} {
		t.Run(name, func(t *testing.T) {
			faults.Set(faulthttp.Rule{Method: http.MethodGet, Times: 2, Fault: f})
			dst := make([]byte, len(data))
			if err := b.ReadRange(t.Context(), "files/x", 0, dst); err != nil || string(dst) != string(data) {
				t.Errorf("%v, or wrong bytes", err)
			}
			if faults.Struck(0) != 2 {
				t.Errorf("the fault struck %d times, want 2", faults.Struck(0))
			}
		})
	}
}

func TestACertificateOfAStrangerIsNotTrusted(t *testing.T) {
	plain := httptest.NewServer(s3fake.New("x"))
	t.Cleanup(plain.Close)
	s := httptest.NewTLSServer(http.RedirectHandler(plain.URL+"/x/y", http.StatusFound))
	t.Cleanup(s.Close)
	b, err := httpstore.New("https", strings.TrimPrefix(s.URL, "https://"), ranged.Options{FirstRetryFor: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	err = b.ReadRange(t.Context(), "y", 0, make([]byte, 1))
	if errkind.Of(err) != errkind.Invalid || !strings.Contains(err.Error(), "not trusted") {
		t.Errorf("%v, want that the certificate of a stranger is not trusted", err)
	}
}
