package store_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/store"
	"github.com/millrace/millrace/loader/store/filestore"
	"github.com/millrace/millrace/loader/store/memstore"
)

func TestResolveFindsBucketAndKey(t *testing.T) {
	mem := memstore.New()
	r := store.NewResolver(map[string]store.OpenFunc{
		"file": filestore.Open,
		"mem":  memstore.Opener(map[string]*memstore.Store{"data": mem}),
	})
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	dir := t.TempDir()
	t.Chdir(dir)
	cwd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for uri, want := range map[string]string{
		"mem://data/a/b.tar":         "a/b.tar",
		"MEM://data/":                "",
		"x.tar":                      strings.TrimPrefix(filepath.Join(cwd, "x.tar"), "/"),
		"../x.tar":                   strings.TrimPrefix(filepath.Join(filepath.Dir(cwd), "x.tar"), "/"),
		"/abs/x.tar":                 "abs/x.tar",
		"file:///abs/x.tar":          "abs/x.tar",
		"file://localhost/abs/x.tar": "abs/x.tar",
	} {
		b, key, err := r.Resolve(t.Context(), uri)
		if err != nil || key != want {
			t.Errorf("Resolve(%q): key %q, %v; want %q", uri, key, err, want)
		}
		if isMem := b == mem; isMem != (store.Scheme(uri) == "mem") {
			t.Errorf("Resolve(%q) gave the wrong bucket", uri)
		}
	}
	for uri, want := range map[string]string{
		"s3://b/k":      `unknown scheme "s3"; known are file, mem`,
		"mem://":        "no bucket is named",
		"mem://other/k": "no store in memory",
		"file://host/k": "file:///absolute/path",
		"":              "empty URI",
		"a\x00b":        "zero byte",
	} {
		_, _, err := r.Resolve(t.Context(), uri)
		if err == nil || !strings.Contains(err.Error(), want) || errkind.Of(err) == errkind.Unknown {
			t.Errorf("Resolve(%q): %v, want a classed error with %q", uri, err, want)
		}
	}
}

func TestCanonicalIsOneSpellingPerObject(t *testing.T) {
	for uri, want := range map[string]string{
		"/a/./b/../c.tar":  "/a/c.tar",
		"file:///a/c.tar":  "/a/c.tar",
		"/a/dir/":          "/a/dir",
		"S3://Bucket/Key/": "s3://Bucket/Key",
		"mem://data":       "mem://data",
		// Options of a bucket move to where they survive what is done to keys.
		"s3://b/k.tar?endpoint=http://h:9000":                          "s3://b?endpoint=http%3A%2F%2Fh%3A9000/k.tar",
		"s3://b/k.tar?region=eu-west-1&endpoint=http://h:9000":         "s3://b?endpoint=http%3A%2F%2Fh%3A9000&region=eu-west-1/k.tar",
		"s3://b?endpoint=http%3A%2F%2Fh%3A9000&region=eu-west-1/k.tar": "s3://b?endpoint=http%3A%2F%2Fh%3A9000&region=eu-west-1/k.tar",
		"s3://b?endpoint=http://h:9000":                                "s3://b?endpoint=http%3A%2F%2Fh%3A9000",
		"s3://b?anonymous=true":                                        "s3://b?anonymous=true",
		"s3://b/who?.tar":                                              "s3://b/who?.tar",
		"s3://b/a?x=1/k":                                               "s3://b/a?x=1/k",
		"https://h/k?signature=1":                                      "https://h/k?signature=1",
	} {
		if got, err := store.Canonical(uri); err != nil || got != want {
			t.Errorf("Canonical(%q) = %q, %v; want %q", uri, got, err, want)
		}
	}
	if _, err := store.Canonical("s3://b/k?endpoint=http://h&color=red"); errkind.Of(err) != errkind.Invalid {
		t.Errorf("an unknown option beside a known one: %v, want Invalid", err)
	}
	if got := store.Base("s3://b/dir/x.tar"); got != "x.tar" {
		t.Errorf("Base = %q", got)
	}
}

// FakeBucket counts how often it is opened and closed.
type FakeBucket struct {
	store.Bucket

	closed int
}

// Close implements store.Bucket.
func (b *FakeBucket) Close() error { b.closed++; return nil }

func TestBucketsAreOpenedOnceAndClosedOnce(t *testing.T) {
	b, opened, fail := &FakeBucket{}, 0, true
	r := store.NewResolver(map[string]store.OpenFunc{"x": func(context.Context, string) (store.Bucket, error) {
		if fail {
			return nil, errkind.With(errkind.Unavailable, errors.New("no network yet"))
		}
		opened++
		return b, nil
	}})
	if _, _, err := r.Resolve(t.Context(), "x://b/k"); errkind.Of(err) != errkind.Unavailable {
		t.Errorf("Resolve while the store is away: %v", err)
	}
	fail = false
	for range 3 {
		if _, _, err := r.Resolve(t.Context(), "x://b/k"); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Close(); err != nil || opened != 1 || b.closed != 1 {
		t.Errorf("opened %d times, closed %d times, %v", opened, b.closed, err)
	}
	if _, _, err := r.Resolve(t.Context(), "x://b/k"); err == nil {
		t.Error("a closed resolver resolves")
	}
}
