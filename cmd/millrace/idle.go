package main

import (
	"sync"
	"time"
)

// idleTimer calls expire when nothing has been open for a while.
type idleTimer struct {
	after  time.Duration
	expire func()
	busy   func() bool
	mu     sync.Mutex
	timer  *time.Timer
}

// newIdleTimer makes a timer that does nothing when after is 0.
func newIdleTimer(after time.Duration, expire func()) *idleTimer {
	return &idleTimer{after: after, expire: expire, busy: func() bool { return false }}
}

// start begins to count, anew if it did already.
func (t *idleTimer) start() {
	if t.after <= 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer != nil {
		t.timer.Stop()
	}
	t.timer = time.AfterFunc(t.after, func() {
		if !t.busy() {
			t.expire()
		}
	})
}

func (t *idleTimer) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer != nil {
		t.timer.Stop()
	}
}
