package worker

import (
	"context"
	"time"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/grpcerr"
	"github.com/millrace/millrace/internal/service"
	workerv1 "github.com/millrace/millrace/proto/millrace/worker/v1"
)

// errSilent ends a stream on which nothing comes any more.
var errSilent = errkind.Errorf(errkind.Unavailable, "the dispatcher gives no sign of life")

// session registers with the dispatcher and serves it until the stream breaks. admitted says whether the dispatcher
// took the worker.
func (w *Worker) session(ctx context.Context) (admitted bool, err error) {
	sctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stream, err := w.client.Connect(sctx)
	if err != nil {
		return false, grpcerr.FromStatus(err)
	}
	register := &workerv1.ConnectRequest{Message: &workerv1.ConnectRequest_Register{Register: w.registerToWire()}}
	if err := stream.Send(register); err != nil {
		_, err = stream.Recv() // Send says only that the stream has ended; the cause is here.
		return false, grpcerr.FromStatus(err)
	}
	welcome := make(chan *workerv1.Welcome, 1)
	received := make(chan struct{})
	go func() {
		defer close(received)
		cancel(w.receive(ctx, stream, welcome, func() { cancel(errSilent) }))
	}()
	defer func() {
		cancel(nil)
		<-received
	}()
	select {
	case m := <-welcome:
		if err := w.accept(m); err != nil {
			return false, err
		}
		return true, w.send(sctx, stream, m)
	case <-sctx.Done():
		return false, context.Cause(sctx)
	}
}

// accept takes the dispatcher's term.
func (w *Worker) accept(m *workerv1.Welcome) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if m.GetTerm() < w.term {
		return errkind.Errorf(errkind.Unavailable, "the dispatcher has term %d, and one of term %d was seen before; it is stale", m.GetTerm(), w.term)
	}
	w.term = m.GetTerm()
	w.metrics.sessions.Inc()
	return nil
}

// receive carries out what the dispatcher says, until the stream ends. Jobs live as long as ctx.
//
// A dispatcher that gives signs of life and then none is taken for lost: it may be frozen, with its connections open.
func (w *Worker) receive(ctx context.Context, stream workerv1.WorkerService_ConnectClient, welcome chan<- *workerv1.Welcome, silent func()) error {
	var watch service.Silence
	defer watch.Stop()
	for admitted := false; ; {
		m, err := stream.Recv()
		if err != nil {
			return grpcerr.FromStatus(err)
		}
		watch.Heard(time.Duration(m.GetBeat().GetNextMs())*time.Millisecond, silent)
		if first := m.GetWelcome(); first != nil && !admitted {
			admitted = true
			welcome <- first
			continue
		}
		if m.GetDrained() != nil {
			return errDrained
		}
		w.handle(ctx, m)
	}
}

// send sends events, heartbeats and the wish to leave, until ctx ends.
func (w *Worker) send(ctx context.Context, stream workerv1.WorkerService_ConnectClient, m *workerv1.Welcome) error {
	every := time.Duration(m.GetHeartbeatMs()) * time.Millisecond
	if every <= 0 {
		every = defaultHeartbeat
	}
	beat := time.NewTicker(every)
	defer beat.Stop()
	gathered := time.NewTimer(0)
	defer gathered.Stop()
	<-gathered.C
	stopping, wake := w.stopping, w.out.wake
	w.out.ring() // there may be events from before
	for {
		var msg workerv1.ConnectRequest
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-stopping:
			stopping = nil
			msg.Message = &workerv1.ConnectRequest_Drain{Drain: &workerv1.Drain{}}
		case <-beat.C:
			msg.Message = &workerv1.ConnectRequest_Heartbeat{Heartbeat: w.heartbeat()}
		case <-gathered.C:
			wake = w.out.wake
			continue
		case <-wake:
			events := w.out.take()
			if len(events) == 0 {
				continue
			}
			msg.Message = &workerv1.ConnectRequest_Events{Events: &workerv1.Events{Events: events}}
			wake = nil // events that come at once after these go together
			gathered.Reset(gather)
		}
		if err := stream.Send(&msg); err != nil {
			<-ctx.Done() // the receiver learns why
			return context.Cause(ctx)
		}
	}
}

func (w *Worker) heartbeat() *workerv1.Heartbeat {
	return &workerv1.Heartbeat{
		HeldBytes: w.store.Bytes(), ResidentBytes: residentBytes(),
		Running: uint32(w.load().running), //nolint:gosec // At most the slots.
		Samples: w.made.Load(),
	}
}
