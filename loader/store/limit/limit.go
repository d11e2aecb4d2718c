// Package limit learns how many requests a store bears at a time, for each prefix of its keys by itself.
//
// Object stores throttle by partitions of the key space that nobody outside can see. A [Limiter] starts with as many
// requests as it may have; an answer that says "slow down" cuts the prefix's share by a third, each full turn of
// successes adds one. So a throttled prefix slows down without holding up the others.
package limit

import (
	"container/list"
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
)

const (
	// cut is what is left of a window after "slow down".
	cut = 0.7
	// maxPrefixes bounds the prefixes that are told apart; those that come later share one window.
	maxPrefixes = 4096
	// depth is the number of leading path elements that make a prefix.
	depth = 2
)

// Limiter holds the windows of one bucket. It may be used by many goroutines at once.
type Limiter struct {
	most float64

	mu      sync.Mutex
	windows map[string]*Window
}

// New is a Limiter that allows up to most requests at a time for each prefix.
func New(most int) *Limiter {
	return &Limiter{most: float64(max(1, most)), windows: map[string]*Window{}}
}

// Window is the one of key's prefix: its directory, of which the first two elements count.
func (l *Limiter) Window(key string) *Window {
	prefix := prefixOf(key)
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.windows[prefix]
	if w == nil {
		if len(l.windows) >= maxPrefixes {
			prefix = "\x00others"
			w = l.windows[prefix]
		}
		if w == nil {
			w = &Window{most: l.most, size: l.most}
			l.windows[prefix] = w
		}
	}
	return w
}

func prefixOf(key string) string {
	end := 0
	for range depth {
		i := strings.IndexByte(key[end:], '/')
		if i < 0 {
			break
		}
		end += i + 1
	}
	return key[:end]
}

// Outcome is how a request ended.
type Outcome uint8

const (
	// OK is an answer.
	OK Outcome = iota
	// Throttled is an answer that asks for fewer requests.
	Throttled
	// Other says nothing about the load.
	Other
)

// Turn is the right to make one request.
type Turn struct{ number uint64 }

// Window is the share of one prefix. Those who wait for a turn get it in the order in which they came.
type Window struct {
	most float64

	mu      sync.Mutex
	size    float64
	running int
	next    uint64 // number of the next turn
	cutAt   uint64 // turns before this one were given before the last cut: their answers say nothing new
	waiting list.List
}

// Acquire waits for a turn.
func (w *Window) Acquire(ctx context.Context) (Turn, error) {
	if err := ctx.Err(); err != nil {
		return Turn{}, fmt.Errorf("waiting for a turn: %w", err)
	}
	w.mu.Lock()
	if w.free() {
		t := w.take()
		w.mu.Unlock()
		return t, nil
	}
	given := make(chan Turn, 1)
	place := w.waiting.PushBack(given)
	w.mu.Unlock()
	select {
	case t := <-given:
		return t, nil
	case <-ctx.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case t := <-given: // The turn came at the same moment.
		w.back(t, Other)
	default:
		w.waiting.Remove(place)
	}
	return Turn{}, fmt.Errorf("waiting for a turn: %w", ctx.Err())
}

// TryAcquire takes a turn if nobody has to wait for it.
func (w *Window) TryAcquire() (Turn, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.free() {
		return Turn{}, false
	}
	return w.take(), true
}

// Release ends a turn.
func (w *Window) Release(t Turn, o Outcome) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.back(t, o)
}

// Size is the number of requests that are allowed now.
func (w *Window) Size() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return int(math.Floor(w.size))
}

func (w *Window) free() bool {
	return w.waiting.Len() == 0 && float64(w.running+1) <= w.size
}

func (w *Window) take() Turn {
	w.running++
	w.next++
	return Turn{number: w.next - 1}
}

func (w *Window) back(t Turn, o Outcome) {
	w.running--
	switch {
	case o == OK:
		w.size = min(w.most, w.size+1/w.size)
	case o == Throttled && t.number >= w.cutAt:
		w.size = max(1, w.size*cut)
		w.cutAt = w.next
	}
	for w.waiting.Len() > 0 && float64(w.running+1) <= w.size {
		given, _ := w.waiting.Remove(w.waiting.Front()).(chan Turn)
		given <- w.take()
	}
}
