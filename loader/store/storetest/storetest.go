// Package storetest holds the laws of store.Bucket as tests that run over any implementation.
package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/store"
)

// Subject is a bucket under test and the ways to change what it holds.
type Subject struct {
	// Bucket is empty at first.
	Bucket store.Bucket
	// Put writes a whole object.
	Put func(t *testing.T, key string, data []byte)
	// Delete removes an object.
	Delete func(t *testing.T, key string)
	// CannotList says that the store has no listings: asking for one is Invalid.
	CannotList bool
}

// Run tests every law, each on a new subject.
func Run(t *testing.T, newSubject func(t *testing.T) Subject) {
	t.Helper()
	for _, law := range []struct {
		name string
		run  func(t *testing.T, s Subject)
	}{
		{"a range is exactly the bytes that were written", rangesAreExact},
		{"a range beyond the end names the size found", shortObjects},
		{"an impossible range is invalid", impossibleRanges},
		{"what is not there is not found", missingObjects},
		{"a listing is sorted, complete and by text prefix", listings},
		{"an error of the callback stops the listing", stoppedListing},
		{"attributes agree with the listing", attributesAgree},
		{"a pin stays while the object stays, and changes with it", pins},
		{"a pinned read fails once the object has changed", pinnedReads},
		{"a stream is the object from its offset", streams},
		{"an ended context fails every call", endedContext},
		{"readers do not disturb each other", concurrentReads},
		{"many ranges at once are each exact, and fail together", manyRanges},
		{"an object is created once, whoever tries", createdOnce},
	} {
		t.Run(law.name, func(t *testing.T) {
			s := newSubject(t)
			t.Cleanup(func() {
				if err := s.Bucket.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			})
			law.run(t, s)
		})
	}
}

// content is n bytes that differ everywhere and by salt.
func content(n, salt int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*131 + i>>8*7 + salt) //nolint:gosec // wrapping is meant
	}
	return b
}

func wantKind(t *testing.T, what string, err error, want errkind.Kind) {
	t.Helper()
	if got := errkind.Of(err); err == nil || got != want {
		t.Errorf("%s: error %v of kind %v, want kind %v", what, err, got, want)
	}
}

func rangesAreExact(t *testing.T, s Subject) {
	t.Helper()
	data := content(100_000, 1)
	s.Put(t, "dir/object.bin", data)
	for _, r := range [][2]int{{0, 0}, {0, 1}, {0, len(data)}, {99_999, 1}, {100_000, 0}, {511, 513}, {4096, 65_536}} {
		dst := make([]byte, r[1])
		if err := s.Bucket.ReadRange(t.Context(), "dir/object.bin", int64(r[0]), dst); err != nil {
			t.Fatalf("ReadRange at %d of %d bytes: %v", r[0], r[1], err)
		}
		if !bytes.Equal(dst, data[r[0]:r[0]+r[1]]) {
			t.Errorf("ReadRange at %d of %d bytes: wrong bytes", r[0], r[1])
		}
	}
}

func shortObjects(t *testing.T, s Subject) {
	t.Helper()
	s.Put(t, "short", content(1234, 1))
	for _, r := range [][2]int{{0, 1235}, {1234, 1}, {1_000_000, 5}} {
		err := s.Bucket.ReadRange(t.Context(), "short", int64(r[0]), make([]byte, r[1]))
		wantKind(t, fmt.Sprintf("ReadRange at %d of %d bytes", r[0], r[1]), err, errkind.BadData)
		if err != nil && !strings.Contains(err.Error(), "1234") {
			t.Errorf("error %q does not say the size found, 1234", err)
		}
	}
}

func impossibleRanges(t *testing.T, s Subject) {
	t.Helper()
	s.Put(t, "x", content(10, 1))
	wantKind(t, "negative offset", s.Bucket.ReadRange(t.Context(), "x", -1, make([]byte, 1)), errkind.Invalid)
	wantKind(t, "overflow", s.Bucket.ReadRange(t.Context(), "x", 1<<63-1, make([]byte, 2)), errkind.Invalid)
}

func missingObjects(t *testing.T, s Subject) {
	t.Helper()
	s.Put(t, "dir/there", content(10, 1))
	s.Put(t, "deleted", content(10, 1))
	s.Delete(t, "deleted")
	for _, key := range []string{"nothing", "dir/nothing", "dir/there/below", "dir", "deleted"} {
		wantKind(t, "ReadRange of "+key, s.Bucket.ReadRange(t.Context(), key, 0, make([]byte, 1)), errkind.NotFound)
		_, err := s.Bucket.Attributes(t.Context(), key)
		wantKind(t, "Attributes of "+key, err, errkind.NotFound)
	}
	if s.CannotList {
		return
	}
	if got := list(t, s.Bucket, "nothing/"); len(got) != 0 {
		t.Errorf("List of a prefix without objects: %v", got)
	}
}

func list(t *testing.T, b store.Bucket, prefix string) []string {
	t.Helper()
	var keys []string
	if err := b.List(t.Context(), prefix, func(a store.Attributes) error {
		keys = append(keys, a.Key)
		return nil
	}); err != nil {
		t.Fatalf("List %q: %v", prefix, err)
	}
	return keys
}

func listings(t *testing.T, s Subject) {
	t.Helper()
	if s.CannotList {
		err := s.Bucket.List(t.Context(), "", func(store.Attributes) error { t.Error("something was listed"); return nil })
		wantKind(t, "List of a store without listings", err, errkind.Invalid)
		return
	}
	// "a.b" < "a/x" < "a0" by bytes: an implementation that sorts per directory gets this wrong.
	keys := []string{"a/x", "a/y/z", "a.b", "a0", "a-1/q", "train-000001.tar", "train-000000.tar", "träin/ü.jpg", "b/c/d/e", "b/c.d"}
	for i, k := range keys {
		s.Put(t, k, content(i, i))
	}
	for _, prefix := range []string{"", "a", "a/", "a/y", "train-", "train-000001.tar", "b/c", "b/c/", "z", "b/c/d/e"} {
		var want []string
		for _, k := range keys {
			if strings.HasPrefix(k, prefix) {
				want = append(want, k)
			}
		}
		slices.Sort(want)
		if diff := cmp.Diff(want, list(t, s.Bucket, prefix)); diff != "" {
			t.Errorf("List %q (-want +got):\n%s", prefix, diff)
		}
	}
}

func stoppedListing(t *testing.T, s Subject) {
	t.Helper()
	if s.CannotList {
		return
	}
	for i := range 10 {
		s.Put(t, fmt.Sprintf("k%d", i), content(1, i))
	}
	stop, calls := errors.New("enough"), 0
	err := s.Bucket.List(t.Context(), "k", func(store.Attributes) error {
		if calls++; calls == 3 {
			return stop
		}
		return nil
	})
	if !errors.Is(err, stop) || calls != 3 {
		t.Errorf("List returned %v after %d calls, want the callback's error after 3", err, calls)
	}
}

func attributesAgree(t *testing.T, s Subject) {
	t.Helper()
	s.Put(t, "p/one", content(7, 1))
	s.Put(t, "p/two", nil)
	var listed []store.Attributes
	if err := s.Bucket.List(t.Context(), "p/", func(a store.Attributes) error {
		listed = append(listed, a)
		return nil
	}); err != nil && !s.CannotList {
		t.Fatal(err)
	}
	for i, want := range []store.Attributes{{Key: "p/one", Size: 7}, {Key: "p/two", Size: 0}} {
		a, err := s.Bucket.Attributes(t.Context(), want.Key)
		if err != nil {
			t.Fatal(err)
		}
		want.Pin = a.Pin
		if diff := cmp.Diff(want, a); diff != "" {
			t.Errorf("Attributes of %s (-want +got):\n%s", want.Key, diff)
		}
		if s.CannotList {
			continue
		}
		if diff := cmp.Diff(a, listed[i]); diff != "" {
			t.Errorf("listing against Attributes of %s (-want +got):\n%s", want.Key, diff)
		}
	}
}

func pinOfX(t *testing.T, b store.Bucket) string {
	t.Helper()
	a, err := b.Attributes(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	return a.Pin
}

func pins(t *testing.T, s Subject) {
	t.Helper()
	s.Put(t, "x", content(100, 1))
	first := pinOfX(t, s.Bucket)
	if first == "" || pinOfX(t, s.Bucket) != first {
		t.Errorf("pin %q is empty or does not stay", first)
	}
	s.Put(t, "x", content(100, 2))
	if second := pinOfX(t, s.Bucket); second == first {
		t.Errorf("pin %q is that of the former content", second)
	}
}

func pinnedReads(t *testing.T, s Subject) {
	t.Helper()
	p, ok := s.Bucket.(store.PinReader)
	if !ok {
		return // An optional interface.
	}
	data := content(100, 1)
	s.Put(t, "x", data)
	pin, dst := pinOfX(t, s.Bucket), make([]byte, 10)
	if err := p.ReadPinned(t.Context(), "x", pin, 20, dst); err != nil || !bytes.Equal(dst, data[20:30]) {
		t.Errorf("ReadPinned: %v, bytes %v", err, dst)
	}
	s.Put(t, "x", content(100, 2))
	wantKind(t, "ReadPinned of another version", p.ReadPinned(t.Context(), "x", pin, 20, dst), errkind.Conflict)
	s.Delete(t, "x")
	wantKind(t, "ReadPinned of a deleted object", p.ReadPinned(t.Context(), "x", pin, 20, dst), errkind.NotFound)
}

func streams(t *testing.T, s Subject) {
	t.Helper()
	data := content(3<<20+17, 1)
	s.Put(t, "big", data)
	for _, off := range []int{0, 1, 1 << 20, len(data) - 1, len(data)} {
		r, err := store.OpenStream(t.Context(), s.Bucket, "big", int64(off), int64(len(data)))
		if err != nil {
			t.Fatalf("OpenStream at %d: %v", off, err)
		}
		got, err := io.ReadAll(r)
		if err := errors.Join(err, r.Close()); err != nil {
			t.Fatalf("reading the stream at %d: %v", off, err)
		}
		if !bytes.Equal(got, data[off:]) {
			t.Errorf("stream at %d: wrong bytes", off)
		}
	}
}

func endedContext(t *testing.T, s Subject) {
	t.Helper()
	s.Put(t, "x", content(10, 1))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, attrErr := s.Bucket.Attributes(ctx, "x")
	for what, err := range map[string]error{
		"ReadRange":  s.Bucket.ReadRange(ctx, "x", 0, make([]byte, 1)),
		"Attributes": attrErr,
		"List":       s.Bucket.List(ctx, "", func(store.Attributes) error { return nil }),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s with an ended context: %v, want context.Canceled", what, err)
		}
	}
}

func concurrentReads(t *testing.T, s Subject) {
	t.Helper()
	data := content(64<<10, 1)
	s.Put(t, "shared", data)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for j := range 20 {
				off := (i*977 + j*3001) % 60_000
				dst := make([]byte, 4000)
				if err := s.Bucket.ReadRange(t.Context(), "shared", int64(off), dst); err != nil || !bytes.Equal(dst, data[off:off+4000]) {
					t.Errorf("reader %d at %d: %v or wrong bytes", i, off, err)
				}
			}
		})
	}
	wg.Wait()
}

func manyRanges(t *testing.T, s Subject) {
	t.Helper()
	many, ok := s.Bucket.(store.RangesReader)
	if !ok {
		return // An optional interface.
	}
	one, two := content(70_000, 1), content(50_000, 2)
	s.Put(t, "one", one)
	s.Put(t, "two", two)
	var ranges []store.Range
	var want [][]byte
	for i := range 40 {
		key, data := "one", one
		if i%3 == 0 {
			key, data = "two", two
		}
		off, n := i*1000, i*100
		ranges = append(ranges, store.Range{Key: key, Off: int64(off), Dst: make([]byte, n)})
		want = append(want, data[off:off+n])
	}
	if err := many.ReadRanges(t.Context(), ranges); err != nil {
		t.Fatalf("ReadRanges: %v", err)
	}
	for i, r := range ranges {
		if !bytes.Equal(r.Dst, want[i]) {
			t.Errorf("range %d: wrong bytes", i)
		}
	}
	if err := many.ReadRanges(t.Context(), nil); err != nil {
		t.Errorf("ReadRanges of nothing: %v", err)
	}
	wantKind(t, "a missing object among others", many.ReadRanges(t.Context(), append(ranges, store.Range{Key: "none", Dst: make([]byte, 1)})), errkind.NotFound)
	wantKind(t, "another version among others", many.ReadRanges(t.Context(), append(ranges, store.Range{Key: "one", Pin: "old", Dst: make([]byte, 1)})), errkind.Conflict)
}
