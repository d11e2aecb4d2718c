package fetch

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/lineage"
	"github.com/millrace/millrace/preprocess/partition"
)

// fakeFetcher answers when it is let, and keeps account.
type fakeFetcher struct {
	mu      sync.Mutex
	asked   []uint64 // source partitions, in the order in which they were asked for
	running int
	most    int
	gate    chan struct{} // a token lets one call go on; nil lets all
	fail    map[uint64]error
}

func (f *fakeFetcher) Fetch(ctx context.Context, t partition.Ticket, fn func(int, arrow.RecordBatch) error) error {
	f.mu.Lock()
	for _, s := range t.Slices {
		f.asked = append(f.asked, s.ID.Source)
	}
	f.running++
	f.most = max(f.most, f.running)
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.running--
		f.mu.Unlock()
	}()
	if f.gate != nil {
		select {
		case <-f.gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for i, s := range t.Slices {
		f.mu.Lock()
		err := f.fail[s.ID.Source]
		f.mu.Unlock()
		if err != nil {
			return err
		}
		rec := array.NewRecordBatch(arrow.NewSchema(nil, nil), nil, s.Rows)
		err = fn(i, rec)
		rec.Release()
		if err != nil {
			return err
		}
	}
	return nil
}

func (f *fakeFetcher) order() []uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.asked)
}

// bench is a queue in a bubble of synctest.
type bench struct {
	queue   *Queue
	mu      sync.Mutex
	arrived []uint64
}

func start(t *testing.T, f *fakeFetcher, streams int, budget int64) *bench {
	t.Helper()
	q, err := NewQueue(Config{
		Streams: streams, BudgetBytes: budget, Pool: partition.NewPool(0), Local: map[string]partition.Fetcher{"local:w": f},
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		q.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return &bench{queue: q}
}

// ask submits a request of slices of one byte each, of a batch that so many others are before.
func (b *bench) ask(ahead, bytes int64, sources ...uint64) *Pending {
	r := Request{Job: "job", Worker: "w", Address: "local:w", Ahead: func() int64 { return ahead }}
	for _, s := range sources {
		r.Slices = append(r.Slices, partition.Slice{ID: lineage.SourceID(0, s), Rows: 1})
		r.Bytes = append(r.Bytes, bytes)
	}
	r.Arrived = func(i int, _ arrow.RecordBatch) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.arrived = append(b.arrived, sources[i])
	}
	return b.queue.Submit(r)
}

func (b *bench) got() []uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.arrived)
}

// What a rank waits for soonest is fetched first, and no more at a time than there are streams.
func TestEarliestAwaitedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeFetcher{gate: make(chan struct{})}
		b := start(t, f, 2, 1<<20)
		b.ask(9, 1, 100)
		b.ask(9, 1, 101)
		synctest.Wait()
		for _, ahead := range []int64{3, 1, 2, 0} {
			b.ask(ahead, 1, uint64(ahead))
		}
		for range 6 {
			f.gate <- struct{}{}
			synctest.Wait()
		}
		if got := f.order()[2:]; !slices.Equal(got, []uint64{0, 1, 2, 3}) {
			t.Errorf("fetched in order %v", got)
		}
		if f.most != 2 {
			t.Errorf("%d ran at a time, want 2", f.most)
		}
	})
}

// The budget holds back what is not awaited yet, and never what a rank waits for next.
func TestBudgetHoldsBackAllButTheAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, &fakeFetcher{}, 4, 100)
		b.ask(1, 80, 1)
		synctest.Wait()
		b.ask(1, 80, 2)
		b.ask(0, 80, 3)
		synctest.Wait()
		if got := b.got(); !slices.Equal(got, []uint64{1, 3}) || b.queue.Used() != 160 {
			t.Fatalf("arrived %v with %d bytes", got, b.queue.Used())
		}
		b.queue.Add(-160)
		synctest.Wait()
		if got := b.got(); !slices.Equal(got, []uint64{1, 3, 2}) || b.queue.Used() != 80 || b.queue.Waiting() != 0 {
			t.Errorf("arrived %v with %d bytes, %d waiting", got, b.queue.Used(), b.queue.Waiting())
		}
	})
}

// A request that fails is tried again, later and later, for what has not arrived; meanwhile it says what is wrong.
func TestFailuresAreTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeFetcher{fail: map[uint64]error{2: errkind.Errorf(errkind.NotFound, "worker w does not hold it")}}
		b := start(t, f, 4, 100)
		p := b.ask(0, 1, 1, 2, 3)
		synctest.Wait()
		if text := p.Trouble(); !strings.Contains(text, "partition 0/2 from worker w (local:w): worker w does not hold it") || !strings.Contains(text, "next try in") {
			t.Errorf("trouble: %q", text)
		}
		time.Sleep(time.Minute)
		if tries := len(f.order()); tries < 10 || tries > 60 {
			t.Errorf("%d slices were asked for within a minute", tries)
		}
		f.mu.Lock()
		f.fail = nil
		f.mu.Unlock()
		time.Sleep(lastPause)
		synctest.Wait()
		if got := b.got(); !slices.Equal(got, []uint64{1, 2, 3}) {
			t.Errorf("arrived %v", got)
		}
		if p.Trouble() != "" || b.queue.Waiting() != 0 || b.queue.Used() != 3 {
			t.Errorf("after the end: trouble %q, %d waiting, %d bytes", p.Trouble(), b.queue.Waiting(), b.queue.Used())
		}
	})
}

// What was cancelled or forgotten does not arrive, is not tried again, and gives its bytes back.
func TestCancelGivesEverythingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeFetcher{gate: make(chan struct{}), fail: map[uint64]error{7: errors.New("broken")}}
		b := start(t, f, 1, 100)
		running := b.ask(0, 10, 1, 2)
		synctest.Wait()
		queued := b.ask(1, 10, 3)
		part := b.ask(2, 10, 4, 5)
		part.Forget(0)
		queued.Cancel()
		running.Cancel()
		synctest.Wait()
		f.gate <- struct{}{}
		synctest.Wait()
		if got := b.got(); !slices.Equal(got, []uint64{5}) || b.queue.Used() != 10 || b.queue.Waiting() != 0 {
			t.Errorf("arrived %v with %d bytes, %d waiting", got, b.queue.Used(), b.queue.Waiting())
		}
		failing := b.ask(0, 10, 7)
		f.gate <- struct{}{}
		synctest.Wait()
		failing.Forget(0)
		if b.queue.Waiting() != 0 || b.queue.Used() != 10 {
			t.Errorf("%d waiting, %d bytes", b.queue.Waiting(), b.queue.Used())
		}
	})
}

// A worker of this process that is not there is trouble, not a wait without a cause.
func TestUnknownLocalWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, &fakeFetcher{}, 1, 100)
		p := b.queue.Submit(Request{
			Job: "job", Worker: "x", Address: "local:x", Slices: []partition.Slice{{ID: lineage.SourceID(0, 1), Rows: 1}}, Bytes: []int64{1},
			Ahead: func() int64 { return 0 }, Arrived: func(int, arrow.RecordBatch) {},
		})
		synctest.Wait()
		if !strings.Contains(p.Trouble(), "not in this process") {
			t.Errorf("trouble %q", p.Trouble())
		}
		p.Cancel()
	})
}

// Settings that cannot work are refused.
func TestConfigIsChecked(t *testing.T) {
	pool := partition.NewPool(0)
	for _, c := range []Config{{BudgetBytes: 1}, {Pool: pool}, {Pool: pool, BudgetBytes: 1, Streams: -1}, {Pool: pool, BudgetBytes: 1, IdleTimeout: -1}} {
		if _, err := NewQueue(c); err == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
}
