package worker

import (
	"sync"

	workerv1 "github.com/millrace/millrace/proto/millrace/worker/v1"
)

// maxEvents bounds the events of one message, so that messages stay far below what gRPC accepts.
const maxEvents = 4096

// outbox gathers events for the dispatcher. Putting one never waits.
type outbox struct {
	mu     sync.Mutex
	events []*workerv1.Event
	wake   chan struct{} // holds a token while there may be events
}

func newOutbox() *outbox { return &outbox{wake: make(chan struct{}, 1)} }

func (o *outbox) put(e *workerv1.Event) {
	o.mu.Lock()
	o.events = append(o.events, e)
	o.mu.Unlock()
	o.ring()
}

func (o *outbox) ring() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// take removes the oldest events, at most maxEvents of them.
func (o *outbox) take() []*workerv1.Event {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := min(maxEvents, len(o.events))
	out := o.events[:n:n]
	if n == len(o.events) {
		o.events = nil
		return out
	}
	o.events = o.events[n:]
	o.ring()
	return out
}

// clear drops all events.
func (o *outbox) clear() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events = nil
}
