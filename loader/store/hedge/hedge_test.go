package hedge_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/millrace/millrace/loader/store/hedge"
)

func TestThresholdFollowsTheLatencies(t *testing.T) {
	p := hedge.New(0.05)
	if _, ok := p.Threshold(1 << 20); ok {
		t.Error("a threshold is known before anything was seen")
	}
	for range 300 {
		p.Observe(1<<20, 10*time.Millisecond)
	}
	fast, _ := p.Threshold(1 << 20)
	if fast < 10*time.Millisecond || fast > 15*time.Millisecond {
		t.Errorf("threshold %v where all take 10 ms", fast)
	}
	if _, ok := p.Threshold(1 << 10); ok {
		t.Error("small requests are judged by large ones")
	}
	for range 300 {
		p.Observe(1<<20, 100*time.Millisecond)
	}
	if slow, _ := p.Threshold(1 << 20); slow < 100*time.Millisecond {
		t.Errorf("threshold %v where all take 100 ms: a store that got slow would be asked twice for everything", slow)
	}
}

// One slow reply in a hundred does not move the threshold.
func TestThresholdIgnoresTheTail(t *testing.T) {
	p := hedge.New(0.05)
	for i := range 1000 {
		took := 10 * time.Millisecond
		if i%100 == 7 {
			took = 500 * time.Millisecond
		}
		p.Observe(10<<10, took)
	}
	if got, _ := p.Threshold(10 << 10); got > 15*time.Millisecond {
		t.Errorf("threshold %v, want that of the 99 %%", got)
	}
}

// Over any run, hedges are at most the share of the requests.
func TestBudgetIsNeverPassed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		share := rapid.Float64Range(0, 0.2).Draw(t, "share")
		p := hedge.New(share)
		requests, taken := 0, 0
		for range rapid.IntRange(1, 500).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "finish") {
				requests++
				p.Observe(1, time.Millisecond)
			} else if p.Take() {
				taken++
			}
			if float64(taken) > share*float64(requests)+1e-9 {
				t.Fatalf("%d hedges after %d requests pass the share of %v", taken, requests, share)
			}
		}
	})
}

func TestNoShareNoHedge(t *testing.T) {
	p := hedge.New(0)
	for range 100 {
		p.Observe(1, time.Millisecond)
	}
	if _, ok := p.Threshold(1); ok || p.Take() {
		t.Error("hedging is off, and still allowed")
	}
}
