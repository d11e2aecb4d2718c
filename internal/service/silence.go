package service

import (
	"sync"
	"time"
)

// beats is how many signs of life may be missed.
const beats = 6

// Silence notices when a peer that gives signs of life gives none any more. The zero Silence is ready; it begins to watch
// when the first sign says when the next one is due.
type Silence struct {
	mu    sync.Mutex
	limit time.Duration
	timer *time.Timer
}

// Heard takes note that something came; next, if above 0, is when the next sign is due. over is called, once, when too
// little has come for too long.
func (s *Silence) Heard(next time.Duration, over func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if next > 0 {
		s.limit = beats * next
	}
	switch {
	case s.limit == 0:
	case s.timer == nil:
		s.timer = time.AfterFunc(s.limit, over)
	default:
		s.timer.Reset(s.limit)
	}
}

// Stop ends the watch.
func (s *Silence) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer != nil {
		s.timer.Stop()
	}
}
