package fetch

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/millrace/millrace/preprocess/partition"
)

// Request asks for slices of partitions that one worker holds.
type Request struct {
	// Job, Worker and Address say whose partitions and where they are.
	Job, Worker, Address string
	// Slices are the rows wanted, Bytes about what each takes.
	Slices []partition.Slice
	Bytes  []int64
	// Ahead is how many batches come before that of the slices at its rank; at 0 and below the rank waits for it next.
	// It is called with the queue locked and must not call it.
	Ahead func() int64
	// Arrived takes slice i, once for each, from any goroutine; it retains what it keeps. From then on the bytes of the
	// slice are the receiver's to give back, by [Queue.Add]. It may be called for a slice that was just forgotten.
	Arrived func(i int, rec arrow.RecordBatch)
}

// Pending is a request in the queue.
type Pending struct {
	queue *Queue
	req   Request
	turn  uint64 // order of submission

	// All below is guarded by the queue's mutex.
	left    []int // indices of slices that have not arrived
	charged int64 // bytes that count against the budget for it
	running context.CancelFunc
	retryAt time.Time
	tries   int
	err     error
}

// Cancel ends the request: nothing of it is tried again.
func (p *Pending) Cancel() {
	p.queue.mu.Lock()
	defer p.queue.mu.Unlock()
	p.left = nil
	p.settle()
}

// Forget takes slice i out of the request.
func (p *Pending) Forget(i int) {
	p.queue.mu.Lock()
	defer p.queue.mu.Unlock()
	p.left = slices.DeleteFunc(p.left, func(k int) bool { return k == i })
	if len(p.left) == 0 {
		p.settle()
	}
}

// settle ends a request of which nothing is left. The queue is locked.
func (p *Pending) settle() {
	if p.running != nil {
		p.running() // its goroutine gives its bytes back
		return
	}
	p.queue.remove(p)
}

// Trouble says what has gone wrong with the request and when it is tried again; empty when nothing has.
func (p *Pending) Trouble() string {
	p.queue.mu.Lock()
	defer p.queue.mu.Unlock()
	if p.err == nil || len(p.left) == 0 {
		return ""
	}
	next := "trying again"
	if wait := time.Until(p.retryAt); p.running == nil && wait > 0 {
		next = "next try in " + wait.Round(100*time.Millisecond).String()
	}
	where := strings.TrimSpace(p.req.Worker)
	if p.req.Address != "" {
		where += " (" + p.req.Address + ")"
	}
	return fmt.Sprintf("partition %s from worker %s: %v, %d tries, %s", p.req.Slices[p.left[0]].ID, where, p.err, p.tries, next)
}
