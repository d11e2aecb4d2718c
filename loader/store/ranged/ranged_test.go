package ranged_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/store"
	"github.com/millrace/millrace/loader/store/ranged"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// source answers by a function, which gets the number of the request, from 1.
type source struct {
	mu     sync.Mutex
	n      int
	answer func(ctx context.Context, n int, etag string, off, length int64) (*ranged.Reply, error)
}

func (s *source) Fetch(ctx context.Context, _, etag string, off, n int64) (*ranged.Reply, error) {
	s.mu.Lock()
	s.n++
	number := s.n
	s.mu.Unlock()
	return s.answer(ctx, number, etag, off, n)
}

// Head says what reply gives pieces of.
func (*source) Head(_ context.Context, key string) (store.Attributes, error) {
	return store.Attributes{Key: key, Size: 9 << 20, Pin: "v1"}, nil
}

func (s *source) requests() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}

func reply(off, n int64) *ranged.Reply {
	return &ranged.Reply{Body: io.NopCloser(bytes.NewReader(make([]byte, n))), Off: off, Length: n, Size: 9 << 20, ETag: "v1"}
}

// A store that throttles everything for ten seconds, and then recovers, costs no error: the time without progress
// counts, not the tries.
func TestTenSecondsOfThrottlingCostNoError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		s := &source{answer: func(_ context.Context, _ int, _ string, off, n int64) (*ranged.Reply, error) {
			if time.Since(began) < 10*time.Second {
				return nil, &ranged.Failure{Fault: ranged.Throttled, Err: errors.New("slow down")}
			}
			return reply(off, n), nil
		}}
		r := ranged.New(s, ranged.Options{})
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				if err := r.ReadPinned(t.Context(), "k", "", int64(i), make([]byte, 1000)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(began); took > 40*time.Second {
			t.Errorf("all was read after %v, want soon after 10 s", took)
		}
	})
}

// After 30 s in which a fifth of all answers asks to slow down, at least 90 % of the former rate is back within 30 s.
func TestTheRateComesBackAfterThrottling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const latency = 20 * time.Millisecond
		began := time.Now()
		var served [90]int
		s := &source{}
		s.answer = func(ctx context.Context, n int, _ string, off, length int64) (*ranged.Reply, error) {
			timer := time.NewTimer(latency)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			at := time.Since(began)
			if at > 20*time.Second && at < 50*time.Second && n%5 == 0 {
				return nil, &ranged.Failure{Fault: ranged.Throttled, Err: errors.New("slow down")}
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if second := int(at / time.Second); second < len(served) {
				served[second]++
			}
			return reply(off, length), nil
		}
		r := ranged.New(s, ranged.Options{InFlight: 16, HedgeShare: -1})
		var wg sync.WaitGroup
		for range 32 {
			wg.Go(func() {
				for time.Since(began) < 85*time.Second {
					if err := r.ReadPinned(t.Context(), "k", "", 0, make([]byte, 100)); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		before, after := served[15], served[79]
		if before == 0 || after*10 < before*9 {
			t.Errorf("%d answers a second before, %d a second 30 s after: want 90 %%", before, after)
		}
	})
}

// A server that never brings more than some bytes at a time is not asked for ever.
func TestCrumbsAreNoProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{answer: func(_ context.Context, _ int, _ string, off, n int64) (*ranged.Reply, error) {
			r := reply(off, n)
			r.Body = io.NopCloser(io.LimitReader(r.Body, 10))
			return r, nil
		}}
		began := time.Now()
		err := ranged.New(s, ranged.Options{}).ReadPinned(t.Context(), "k", "", 0, make([]byte, 1<<20))
		if errkind.Of(err) != errkind.Unavailable || time.Since(began) > 61*time.Second {
			t.Errorf("%v after %v, want that it gave up within a minute", err, time.Since(began))
		}
	})
}

func TestAWrongAddressIsReportedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{answer: func(context.Context, int, string, int64, int64) (*ranged.Reply, error) {
			return nil, &ranged.Failure{Fault: ranged.Unreachable, Err: errors.New("no such host")}
		}}
		began := time.Now()
		err := ranged.New(s, ranged.Options{Name: func(k string) string { return "x://" + k }}).ReadPinned(t.Context(), "k", "", 0, make([]byte, 1))
		if err == nil || !strings.Contains(err.Error(), "x://k: gave up") || time.Since(began) > 11*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// One reply in a hundred is 50 times slower than the others. Batches wait for none of them, and the requests that are
// made twice are at most 5 % of all.
func TestTheTailOfABatchIsHedged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{answer: func(ctx context.Context, n int, _ string, off, length int64) (*ranged.Reply, error) {
			wait := 10 * time.Millisecond
			if n%100 == 37 {
				wait *= 50
			}
			timer := time.NewTimer(wait)
			defer timer.Stop()
			select {
			case <-timer.C:
				return reply(off, length), nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}}
		r := ranged.New(s, ranged.Options{})
		slowest := time.Duration(0)
		for i := range 100 {
			began := time.Now()
			var ranges []store.Range
			for j := range 64 {
				ranges = append(ranges, store.Range{Key: fmt.Sprint(j), Dst: make([]byte, 10<<10)})
			}
			if err := r.ReadRanges(t.Context(), ranges); err != nil {
				t.Fatal(err)
			}
			if i >= 5 { // It has learned what is usual.
				slowest = max(slowest, time.Since(began))
			}
		}
		stats := r.Stats()
		if slowest > 30*time.Millisecond {
			t.Errorf("the slowest batch took %v where replies take 10 ms", slowest)
		}
		if extra := stats.Requests - 6400; extra*20 > 6400 || stats.HedgeWins == 0 {
			t.Errorf("%d extra requests of 6400, %d won", extra, stats.HedgeWins)
		}
	})
}

func TestStreamsReadOnTheirVersionAlone(t *testing.T) {
	s := &source{answer: func(_ context.Context, _ int, etag string, off, n int64) (*ranged.Reply, error) {
		if etag != "v1" {
			return nil, fmt.Errorf("asked for version %q", etag)
		}
		return reply(off, n), nil
	}}
	r := ranged.New(s, ranged.Options{})
	body, err := r.Open(t.Context(), "k", 100)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, body); err != nil || n != 9<<20-100 {
		t.Errorf("%d bytes, %v", n, err)
	}
	if err := body.Close(); err != nil {
		t.Error(err)
	}
	if s.requests() != 3 {
		t.Errorf("%d requests for 9 MiB, want 3", s.requests())
	}
	early, err := r.Open(t.Context(), "k", 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := early.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
	if err := early.Close(); err != nil {
		t.Error(err)
	}
}

func TestContentRanges(t *testing.T) {
	for text, want := range map[string][3]int64{"bytes 0-99/1234": {0, 100, 1234}, "bytes 7-7/*": {7, 1, -1}} {
		off, n, size, err := ranged.ParseContentRange(text)
		if got := [3]int64{off, n, size}; err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

func FuzzParseContentRange(f *testing.F) {
	for _, s := range []string{"bytes 0-99/1234", "bytes */5", "bytes 5-4/9", "bytes 0-9/9", "lines 1-2/3", "bytes -1-2/3", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		off, n, size, err := ranged.ParseContentRange(text)
		if err == nil && (off < 0 || n < 1 || size != -1 && off+n > size) {
			t.Errorf("%q is %d bytes at %d of %d", text, n, off, size)
		}
	})
}
