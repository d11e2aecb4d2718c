package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/grpcerr"
	"github.com/millrace/millrace/internal/service"
	feedv1 "github.com/millrace/millrace/proto/millrace/feed/v1"
)

const (
	firstPause = 50 * time.Millisecond
	lastPause  = 500 * time.Millisecond
	// farewell is how long a job waits for the dispatcher to take note that its last rank has left.
	farewell = time.Second
)

// errReattach ends a stream so that another begins at once.
var errReattach = errors.New("the stream begins anew")

// errSilent ends a stream on which nothing comes any more.
var errSilent = errkind.Errorf(errkind.Unavailable, "it gives no sign of life")

// errEnded is what is shown for a stream that the dispatcher ended without a reason.
var errEnded = errors.New("it ended the stream")

// run keeps a stream to the dispatcher until the job is over or ctx ends.
func (j *Job) run(ctx context.Context) {
	defer j.end()
	pause := firstPause
	for {
		began := time.Now()
		err := j.attach(ctx)
		switch {
		case ctx.Err() != nil || j.over():
			return
		case isDeliberate(err):
			j.fail(grpcerr.FromStatus(err))
			return
		case errors.Is(err, errReattach):
			continue
		case errors.Is(err, io.EOF):
			err = errEnded
		}
		j.leavePeer()
		if time.Since(began) > lastPause {
			pause = firstPause
		}
		j.metrics.reconnects.Inc()
		j.logger.Warn("stream to the dispatcher broke and is opened again", "job", j.description.Name, "error", err, "pause", pause)
		j.lost(fmt.Sprintf("the dispatcher cannot be reached: %v", grpcerr.FromStatus(err)))
		if !j.sleep(ctx, pause) {
			return
		}
		pause = min(2*pause, lastPause)
	}
}

// isDeliberate says whether the dispatcher itself ended the stream with a reason, rather than that it broke.
func isDeliberate(err error) bool {
	s, ok := status.FromError(err)
	return ok && err != nil && strings.Contains(s.Message(), "[kind=") && !strings.Contains(s.Message(), "[kind=unavailable]")
}

// lost notes that there is no stream to the dispatcher.
func (j *Job) lost(why string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.away = why
	j.broadcast()
}

// sleep waits; false when there is nothing more to wait for.
func (j *Job) sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		j.mu.Lock()
		changed := j.changed
		j.mu.Unlock()
		if j.over() {
			return false
		}
		select {
		case <-timer.C:
			return true
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// attach runs one stream to its end.
func (j *Job) attach(parent context.Context) error {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	stream, err := j.client.Attach(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(helloMessage(j.sidecar, j.description.Name, j.term.Load())); err != nil {
		return received(stream, err)
	}
	var watch service.Silence
	defer watch.Stop()
	j.mu.Lock()
	j.reattach = func() { cancel(errReattach) }
	j.resync()
	j.mu.Unlock()

	sent := make(chan struct{})
	go func() {
		defer close(sent)
		j.sendAll(ctx, stream)
	}()
	defer func() { <-sent }()
	defer cancel(nil)
	for {
		m, err := stream.Recv()
		if err != nil {
			if cause := context.Cause(ctx); parent.Err() == nil && (errors.Is(cause, errReattach) || errors.Is(cause, errSilent)) {
				return cause
			}
			return err
		}
		if next := m.GetBeat(); next != nil {
			watch.Heard(time.Duration(next.GetNextMs())*time.Millisecond, func() { cancel(errSilent) })
			continue
		}
		watch.Heard(0, func() { cancel(errSilent) })
		if m.GetWelcome() != nil {
			if err := j.accept(m.GetWelcome().GetTerm()); err != nil {
				return err
			}
			continue
		}
		j.handle(m)
	}
}

// accept takes the dispatcher's term: one that is lower than that of another before belongs to a dispatcher that was
// replaced and does not know it yet.
func (d *deps) accept(term uint64) error {
	for {
		seen := d.term.Load()
		if term < seen {
			return errkind.Errorf(errkind.Unavailable, "the dispatcher has term %d, and one of term %d was seen before; it is stale", term, seen)
		}
		if d.term.CompareAndSwap(seen, term) {
			return nil
		}
	}
}

// received is why a stream broke in whose sending end err was found.
func received(stream feedv1.FeedService_AttachClient, err error) error {
	if !errors.Is(err, io.EOF) {
		return err
	}
	_, err = stream.Recv()
	return err
}

// resync begins a stream: marks and leavings that were not sent yet go first, then where every rank is. The job is
// locked.
func (j *Job) resync() {
	j.away = ""
	kept := j.out[:0]
	for _, m := range j.out {
		if m.GetSeek() == nil {
			kept = append(kept, m)
		}
	}
	clear(j.out[len(kept):])
	j.out = kept
	j.state.Resync()
	j.apply()
}

// sendAll sends what is queued until ctx ends; when the last rank has left it closes the stream.
func (j *Job) sendAll(ctx context.Context, stream feedv1.FeedService_AttachClient) {
	for {
		j.mu.Lock()
		out, leaving := j.out, j.leaving
		j.out = nil
		j.mu.Unlock()
		for i, m := range out {
			if err := stream.Send(m); err != nil {
				j.mu.Lock()
				j.out = append(out[i:], j.out...)
				j.mu.Unlock()
				return // the receiving end learns why
			}
		}
		if leaving {
			_ = stream.CloseSend() // the receiving end learns of it
			j.hangUp(ctx)
			return
		}
		select {
		case <-j.outWake:
		case <-ctx.Done():
			return
		}
	}
}

// hangUp lets the dispatcher end the stream, for a while.
func (j *Job) hangUp(ctx context.Context) {
	timer := time.NewTimer(farewell)
	defer timer.Stop()
	select {
	case <-timer.C:
		j.mu.Lock()
		j.reattach()
		j.mu.Unlock()
	case <-ctx.Done():
	}
}

// handle takes a message of the dispatcher in.
func (j *Job) handle(m *feedv1.AttachResponse) {
	j.mu.Lock()
	defer j.mu.Unlock()
	var err error
	switch m := m.GetMessage().(type) {
	case *feedv1.AttachResponse_Started:
		j.state.Started(m.Started.GetGeneration(), positionFromWire(m.Started.GetPosition()))
	case *feedv1.AttachResponse_Placed:
		places, wireErr := placementsFromWire(m.Placed.GetPlacements())
		if err = wireErr; err == nil {
			err = j.state.Placed(m.Placed.GetGeneration(), places)
		}
	case *feedv1.AttachResponse_Sealed:
		s := m.Sealed
		err = j.state.Sealed(s.GetGeneration(), positionFromWire(s.GetPosition()), s.GetRows(), s.GetCursor())
	case *feedv1.AttachResponse_EpochEnd:
		e := m.EpochEnd
		err = j.state.EpochEnd(e.GetGeneration(), e.GetEpoch(), e.GetRows(), e.GetSteps(), e.GetLast())
	case *feedv1.AttachResponse_Failed:
		j.stop(failure(m.Failed), j.concerned(m.Failed.GetSeats()))
	case *feedv1.AttachResponse_Waiting:
		j.waiting = m.Waiting.GetText()
	}
	if err != nil {
		j.logger.Error("the dispatcher contradicts itself", "job", j.description.Name, "error", err)
		j.stop(fmt.Errorf("job %q: %w", j.description.Name, err), j.concerned(nil))
	}
	j.apply()
}

// concerned is the seats here among those named; all where none is named. The job is locked.
func (j *Job) concerned(named []uint32) []int {
	var seats []int
	if len(named) == 0 {
		for seat := range j.members {
			seats = append(seats, seat)
		}
		return seats
	}
	for _, seat := range named {
		if j.members[int(seat)] != nil {
			seats = append(seats, int(seat))
		}
	}
	return seats
}
