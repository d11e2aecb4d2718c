// Package hedge says when a request is so late that it is worth asking again, and how often that may be done.
//
// The threshold follows the live 95th percentile of requests of like size; the budget is a share of all requests. A
// fixed delay would ask again for most requests as soon as a store gets slow, and slow it further.
package hedge

import (
	"math/bits"
	"slices"
	"sync"
	"time"
)

const (
	kept     = 256 // latencies remembered for each size
	enough   = 20  // latencies from which a percentile means something
	renew    = 16  // observations between looks at the percentile
	quantile = 0.95
	// margin keeps ordinary jitter from spending the budget.
	margin = 1.25
	floor  = 2 * time.Millisecond
	// burst is how many hedges may be saved up.
	burst = 16
	// sizes is the number of classes, each four times the size of the one before.
	sizes = 32
)

// Policy learns from the requests of one store. It may be used by many goroutines at once.
type Policy struct {
	share float64

	mu      sync.Mutex
	tokens  float64
	classes [sizes]class
}

type class struct {
	recent    []time.Duration
	at        int
	since     int
	threshold time.Duration
}

// New is a Policy that allows hedges up to share of all requests; 0: none.
func New(share float64) *Policy {
	return &Policy{share: share}
}

func classOf(bytes int64) int { return bits.Len64(uint64(max(0, bytes))) / 2 }

// Observe records how long a request for so many bytes took, or how long it had been running when it was given up.
func (p *Policy) Observe(bytes int64, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tokens = min(burst, p.tokens+p.share)
	c := &p.classes[classOf(bytes)]
	if len(c.recent) < kept {
		c.recent = append(c.recent, took)
	} else {
		c.recent[c.at] = took
		c.at = (c.at + 1) % kept
	}
	c.since++
	if len(c.recent) >= enough && (c.threshold == 0 || c.since >= renew) {
		c.since = 0
		sorted := slices.Sorted(slices.Values(c.recent))
		late := sorted[min(len(sorted)-1, int(quantile*float64(len(sorted))))]
		c.threshold = max(floor, time.Duration(margin*float64(late)))
	}
}

// Threshold is the age from which a request for so many bytes is late, and whether that is known yet.
func (p *Policy) Threshold(bytes int64) (time.Duration, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.classes[classOf(bytes)].threshold
	return t, t > 0 && p.share > 0
}

// Take spends one hedge of the budget, if there is one.
func (p *Policy) Take() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tokens < 1 {
		return false
	}
	p.tokens--
	return true
}
