package memstore_test

import (
	"testing"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/store/memstore"
	"github.com/millrace/millrace/loader/store/storetest"
)

func TestMemoryKeepsTheLawsOfBuckets(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Subject {
		s := memstore.New()
		return storetest.Subject{
			Bucket: s,
			Put:    func(_ *testing.T, key string, data []byte) { s.Put(key, data) },
			Delete: func(_ *testing.T, key string) { s.Delete(key) },
		}
	})
}

func TestOpenerFindsStoresByName(t *testing.T) {
	s := memstore.New()
	open := memstore.Opener(map[string]*memstore.Store{"data": s})
	if b, err := open(t.Context(), "data"); err != nil || b != s {
		t.Errorf("open data: %v, %v", b, err)
	}
	if _, err := open(t.Context(), "other"); errkind.Of(err) != errkind.NotFound {
		t.Errorf("open other: %v, want NotFound", err)
	}
}
