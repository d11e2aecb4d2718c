package limit_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/loader/store/limit"
)

func acquire(t *testing.T, w *limit.Window) limit.Turn {
	t.Helper()
	turn, err := w.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return turn
}

func TestAThrottledPrefixLeavesTheOthersAlone(t *testing.T) {
	l := limit.New(64)
	slow, fast := l.Window("train/a/x.tar"), l.Window("val/a/x.tar")
	for range 50 {
		slow.Release(acquire(t, slow), limit.Throttled)
	}
	if slow.Size() != 1 || fast.Size() != 64 {
		t.Errorf("sizes %d and %d, want 1 and 64", slow.Size(), fast.Size())
	}
	if l.Window("train/a/y.tar") != slow || l.Window("train/a/deeper/y.tar") != slow || l.Window("train/b/y.tar") == slow {
		t.Error("a prefix is the first two elements of the directory")
	}
}

func TestAnswersToOneRoundCutOnce(t *testing.T) {
	w := limit.New(10).Window("k")
	var turns []limit.Turn
	for range 10 {
		turns = append(turns, acquire(t, w))
	}
	for _, turn := range turns {
		w.Release(turn, limit.Throttled)
	}
	if w.Size() != 7 {
		t.Errorf("size %d after one round of throttling, want 7", w.Size())
	}
}

// From one request at a time, n rounds of successes bring n more: so a window of 64 is whole again after some 2,100
// answers, whatever the latency.
func TestSuccessesBringTheWindowBack(t *testing.T) {
	w := limit.New(64).Window("k")
	for range 50 {
		w.Release(acquire(t, w), limit.Throttled)
	}
	for range 2100 {
		w.Release(acquire(t, w), limit.OK)
	}
	if w.Size() < 63 {
		t.Errorf("size %d after 2100 successes, want at least 63", w.Size())
	}
}

func TestWaitersComeInOrderAndMayGiveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := limit.New(1).Window("k")
		first := acquire(t, w)
		if _, ok := w.TryAcquire(); ok {
			t.Error("a second turn was given where one is allowed")
		}
		var got []int
		ctx, cancel := context.WithCancel(t.Context())
		for i := range 3 {
			wait := t.Context()
			if i == 1 {
				wait = ctx
			}
			go func() {
				turn, err := w.Acquire(wait)
				if err != nil {
					if !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
					return
				}
				got = append(got, i)
				w.Release(turn, limit.OK)
			}()
			synctest.Wait()
		}
		cancel()
		synctest.Wait()
		w.Release(first, limit.OK)
		synctest.Wait()
		if fmt.Sprint(got) != "[0 2]" {
			t.Errorf("turns came to %v, want 0 and 2", got)
		}
		if turn, ok := w.TryAcquire(); !ok {
			t.Error("the turn of the one who gave up is lost")
		} else {
			w.Release(turn, limit.OK)
		}
	})
}

// Whatever the answers, the running requests never pass the size, and the size stays within 1 and the limit.
func TestBoundsHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(1, 20).Draw(t, "most")
		w := limit.New(most).Window("k")
		var running []limit.Turn
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "start") {
				before := w.Size()
				turn, ok := w.TryAcquire()
				if ok != (len(running) < before) {
					t.Fatalf("%d running of %d: a turn was given: %v", len(running), before, ok)
				}
				if ok {
					running = append(running, turn)
				}
			} else if len(running) > 0 {
				i := rapid.IntRange(0, len(running)-1).Draw(t, "which")
				w.Release(running[i], limit.Outcome(rapid.IntRange(0, 2).Draw(t, "outcome")))
				running = append(running[:i], running[i+1:]...)
			}
			if s := w.Size(); s < 1 || s > most {
				t.Fatalf("size %d is outside 1 to %d", s, most)
			}
		}
	})
}
