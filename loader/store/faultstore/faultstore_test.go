package faultstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/store"
	"github.com/millrace/millrace/loader/store/faultstore"
	"github.com/millrace/millrace/loader/store/memstore"
	"github.com/millrace/millrace/loader/store/storetest"
)

func awake(ctx context.Context, _ time.Duration) error { return ctx.Err() }

func TestWithoutRulesItIsTheBucketItself(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Subject {
		s := memstore.New()
		return storetest.Subject{
			Bucket: faultstore.New(s, 1, awake),
			Put:    func(_ *testing.T, key string, data []byte) { s.Put(key, data) },
			Delete: func(_ *testing.T, key string) { s.Delete(key) },
		}
	})
}

func subject(rules ...faultstore.Rule) *faultstore.Bucket {
	s := memstore.New()
	s.Put("a.tar", []byte("0123456789"))
	s.Put("b.tar", []byte("0123456789"))
	return faultstore.New(s, 7, awake, rules...)
}

func TestEachEffectDoesWhatItSays(t *testing.T) {
	read := func(b *faultstore.Bucket) ([]byte, error) {
		dst := make([]byte, 10)
		return dst, b.ReadRange(t.Context(), "a.tar", 0, dst)
	}
	for _, c := range []struct {
		name   string
		effect faultstore.Effect
		want   errkind.Kind
	}{
		{"error", faultstore.Effect{Err: errkind.Unavailable}, errkind.Unavailable},
		{"gone", faultstore.Effect{Gone: true}, errkind.NotFound},
		{"short", faultstore.Effect{Short: true}, errkind.BadData},
	} {
		b := subject(faultstore.Rule{Op: faultstore.ReadRange, Effect: c.effect})
		if _, err := read(b); errkind.Of(err) != c.want || b.Fired(0) != 1 {
			t.Errorf("%s: %v, fired %d times, want kind %v, once", c.name, err, b.Fired(0), c.want)
		}
	}
	got, err := read(subject(faultstore.Rule{Effect: faultstore.Effect{Flip: true}}))
	if err != nil || bytes.Equal(got, []byte("0123456789")) {
		t.Errorf("flip: %q, %v, want other bytes and no error", got, err)
	}
}

func TestRulesChooseByOpKeyAndCount(t *testing.T) {
	b := subject(faultstore.Rule{Op: faultstore.Attributes, Key: "a*", Nth: 2, Effect: faultstore.Effect{Err: errkind.Unavailable}})
	var failed []string
	for i := range 3 {
		for _, key := range []string{"a.tar", "b.tar"} {
			if _, err := b.Attributes(t.Context(), key); err != nil {
				failed = append(failed, fmt.Sprint(key, i))
			}
			if err := b.ReadRange(t.Context(), key, 0, nil); err != nil {
				t.Errorf("ReadRange %s: %v", key, err)
			}
		}
	}
	if !slices.Equal(failed, []string{"a.tar1"}) {
		t.Errorf("failed %v, want only the second look at a.tar", failed)
	}
}

func TestChanceIsFixedBySeedNotByOrder(t *testing.T) {
	draw := func(backwards bool) []bool {
		b := subject(faultstore.Rule{Probability: 0.3, Effect: faultstore.Effect{Err: errkind.Unavailable}})
		out := make([]bool, 10)
		for i := range out {
			if backwards {
				i = len(out) - 1 - i
			}
			out[i] = b.ReadRange(t.Context(), "a.tar", int64(i), nil) != nil
		}
		return out
	}
	if a, b := draw(false), draw(true); !slices.Equal(a, b) || !slices.Contains(a, true) || !slices.Contains(a, false) {
		t.Errorf("forwards %v, backwards %v: want equal, and some of both", a, b)
	}
}

func TestDelayEndsWithTheContext(t *testing.T) {
	var mu sync.Mutex
	var slept time.Duration
	ctx, cancel := context.WithCancel(t.Context())
	b := faultstore.New(memstore.New(), 1, func(ctx context.Context, d time.Duration) error {
		mu.Lock()
		defer mu.Unlock()
		slept += d
		cancel()
		return ctx.Err()
	}, faultstore.Rule{Effect: faultstore.Effect{Delay: time.Hour}})
	err := b.List(ctx, "", func(store.Attributes) error { return nil })
	if !errors.Is(err, context.Canceled) || slept != time.Hour {
		t.Errorf("List: %v after sleeping %v", err, slept)
	}
}

func TestStreamsBreakOffAndFlip(t *testing.T) {
	for _, c := range []struct {
		effect faultstore.Effect
		want   string
		err    error
	}{
		{faultstore.Effect{Short: true}, "", io.ErrUnexpectedEOF},
		{faultstore.Effect{Flip: true}, "1123456789", nil},
	} {
		r, err := subject(faultstore.Rule{Op: faultstore.Open, Effect: c.effect}).Open(t.Context(), "a.tar", 0)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if string(got) != c.want || !errors.Is(err, c.err) {
			t.Errorf("%+v: %q, %v; want %q, %v", c.effect, got, err, c.want, c.err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}
