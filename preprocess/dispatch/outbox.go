package dispatch

import (
	"context"
	"sync"

	"github.com/millrace/millrace/internal/errkind"
)

// outboxLimit bounds the messages that wait for one peer. They are small and a healthy peer takes them at once; one that
// lets so many pile up is taken for lost.
const outboxLimit = 1 << 16

// outbox is a queue of messages to one peer. Putting never blocks, so it is safe under the dispatcher's mutex.
type outbox[T any] struct {
	mu      sync.Mutex
	queue   []T
	err     error
	wake    chan struct{} // capacity 1: a pending wake-up is enough
	closing bool
}

func newOutbox[T any]() *outbox[T] { return &outbox[T]{wake: make(chan struct{}, 1)} }

// put appends a message; after close it does nothing.
func (o *outbox[T]) put(m T) {
	o.mu.Lock()
	switch {
	case o.closing:
	case len(o.queue) >= outboxLimit:
		o.err = errkind.Errorf(errkind.Unavailable, "%d messages wait for a peer that takes none; it is taken for lost", outboxLimit)
		o.closing = true
	default:
		o.queue = append(o.queue, m)
	}
	o.mu.Unlock()
	o.notify()
}

// close ends the stream after what is queued; err is what the peer is told.
func (o *outbox[T]) close(err error) {
	o.mu.Lock()
	if !o.closing {
		o.closing, o.err = true, err
	}
	o.mu.Unlock()
	o.notify()
}

func (o *outbox[T]) notify() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// run sends until the outbox is closed, ctx ends or send fails.
func (o *outbox[T]) run(ctx context.Context, send func(T) error) error {
	for {
		o.mu.Lock()
		batch, closing, err := o.queue, o.closing, o.err
		o.queue = nil
		o.mu.Unlock()
		for _, m := range batch {
			if err := send(m); err != nil {
				return err
			}
		}
		if closing {
			return err
		}
		select {
		case <-o.wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
