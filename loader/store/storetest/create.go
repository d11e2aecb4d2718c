package storetest

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/store"
)

// createdOnce is the law of store.Creator; buckets that only read have no part in it.
func createdOnce(t *testing.T, s Subject) {
	t.Helper()
	c, ok := s.Bucket.(store.Creator)
	if !ok {
		return
	}
	read := func(key string, n int) []byte {
		t.Helper()
		got := make([]byte, n)
		if err := s.Bucket.ReadRange(t.Context(), key, 0, got); err != nil {
			t.Fatal(err)
		}
		return got
	}
	first := content(3000, 1)
	if err := c.Create(t.Context(), "log/1", first); err != nil {
		t.Fatal(err)
	}
	wantKind(t, "creating what is there", c.Create(t.Context(), "log/1", content(3000, 2)), errkind.Conflict)
	wantKind(t, "creating the very same once more", c.Create(t.Context(), "log/1", first), errkind.Conflict)
	if !bytes.Equal(read("log/1", len(first)), first) {
		t.Error("the second of two creations has changed the object")
	}
	a, err := s.Bucket.Attributes(t.Context(), "log/1")
	if err != nil || a.Size != int64(len(first)) {
		t.Errorf("attributes %+v, error %v", a, err)
	}

	// Of many who create one key at once exactly one succeeds, and the object is that one's.
	const writers = 8
	var winners atomic.Int64
	var winner atomic.Int64
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() {
			err := c.Create(t.Context(), "log/2", content(500, i))
			switch {
			case err == nil:
				winners.Add(1)
				winner.Store(int64(i))
			case errkind.Of(err) != errkind.Conflict:
				t.Errorf("writer %d: %v", i, err)
			}
		})
	}
	all.Wait()
	if winners.Load() != 1 {
		t.Fatalf("%d of %d writers created the object, want 1", winners.Load(), writers)
	}
	if !bytes.Equal(read("log/2", 500), content(500, int(winner.Load()))) {
		t.Error("the object is not that of the writer who created it")
	}

	// Nothing but whole objects is listed, and what was removed can be created anew.
	for range 2 {
		if err := c.Remove(t.Context(), "log/1"); err != nil {
			t.Fatal(err)
		}
	}
	var keys []string
	if !s.CannotList {
		if err := s.Bucket.List(t.Context(), "", func(a store.Attributes) error { keys = append(keys, a.Key); return nil }); err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(keys) != "[log/2]" {
			t.Errorf("after a removal there are %v", keys)
		}
	}
	if err := c.Create(t.Context(), "log/1", nil); err != nil {
		t.Errorf("creating what was removed: %v", err)
	}
}
