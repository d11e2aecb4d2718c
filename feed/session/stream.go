package session

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/millrace/millrace/feed/ring"
	"github.com/millrace/millrace/feed/session/deal"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/partition"
)

// Batch is one batch that is handed over.
type Batch struct {
	// Record holds its rows; whoever gets the batch releases it.
	Record arrow.RecordBatch
	// Generation, Epoch, Step and Part say which one it is.
	Generation, Epoch uint64
	Step              int64
	Part              int
	// NextRow is the stream row of the next global batch; 0 where Last is set.
	NextRow int64
	// NumRows is its rows, NumValid those that count, Bytes what they take.
	NumRows, NumValid, Bytes int64
	// Last marks the last batch of the epoch, LastPart the last one of its global batch.
	Last, LastPart bool
	// Cursor goes on after this batch; empty unless LastPart.
	Cursor string
	// Place is the slot of a ring that Record lies in; nil: it lies in none.
	Place *ring.Slot
	// Sequence counts the batches of the stream from 0, Number those of the rank, the same for all its peers.
	Sequence, Number uint64
}

// Stream is the rest of one epoch for one seat. Next is for one goroutine, the other methods for any.
type Stream struct {
	job      *Job
	member   *member
	sequence uint64
}

// Stream begins a stream of a seat at a position. One that the seat had before ends.
func (j *Job) Stream(seat int, pos deal.Position) (*Stream, error) {
	if pos.Step < 0 || pos.Row < 0 {
		return nil, errkind.Errorf(errkind.Invalid, "epoch %d, step %d, row %d is not a position", pos.Epoch, pos.Step, pos.Row)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed != nil {
		return nil, j.failed
	}
	m := j.members[seat]
	if m == nil {
		return nil, errkind.Errorf(errkind.NotFound, "%s of job %q has no open session here", j.who(seat), j.description.Name)
	}
	s := &Stream{job: j, member: m}
	m.stream, m.err = s, nil
	if err := j.state.Ask(seat, pos); err != nil {
		return nil, err
	}
	j.apply()
	return s, nil
}

// Prefetch is how many batches may be handed over beyond those consumed.
func (s *Stream) Prefetch() int { return s.job.description.Dealing.Prefetch }

// Job is the job of the stream.
func (s *Stream) Job() *Job { return s.job }

// Next waits for the next batch. At most credit batches are unconsumed after it. The end of the epoch is io.EOF.
func (s *Stream) Next(ctx context.Context, credit int) (*Batch, error) {
	var stalled time.Time
	canceled := func() error {
		return errkind.With(errkind.Canceled, fmt.Errorf("%w; %s", context.Cause(ctx), s.job.Waits()))
	}
	for {
		if ctx.Err() != nil { // batches that are ready must not outrun whoever cancels
			return nil, canceled()
		}
		b, changed, idle, err := s.try(credit)
		if !stalled.IsZero() {
			now := time.Now()
			s.member.metrics.stalled(now.Sub(stalled))
			stalled = now
		}
		if b != nil || err != nil {
			return b, err
		}
		if !idle {
			stalled = time.Time{}
		} else if stalled.IsZero() {
			stalled = time.Now()
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, canceled()
		}
	}
}

// try takes the next batch if it is there; else it gives what is closed at the next change, and whether the rank has
// consumed all that it was given.
func (s *Stream) try(credit int) (b *Batch, changed <-chan struct{}, idle bool, err error) {
	j := s.job
	j.mu.Lock()
	defer j.mu.Unlock()
	m := s.member
	switch {
	case j.members[m.seat] != m:
		return nil, nil, false, errkind.Errorf(errkind.Canceled, "the session of %s of job %q was closed", j.who(m.seat), j.description.Name)
	case m.stream != s:
		return nil, nil, false, errkind.Errorf(errkind.Conflict, "another stream of %s of job %q has begun", j.who(m.seat), j.description.Name)
	case m.err != nil:
		return nil, nil, false, m.err
	case j.failed != nil:
		return nil, nil, false, j.failed
	}
	next, verdict := j.state.Next(m.seat, credit)
	switch verdict {
	case deal.End:
		return nil, nil, false, io.EOF
	case deal.Moved:
		return nil, nil, false, errkind.Errorf(errkind.Conflict, "job %q has moved to another position; ask for that of your state", j.description.Name)
	case deal.Wait:
		return nil, j.changed, j.state.Unconsumed(m.seat) == 0, nil
	}
	m.sent.Store(j.state.Sent(m.seat))
	place := j.held[next].place
	if place != nil && !place.Arena().ReadOnly() {
		j.state.Spoil(next)
	}
	if r := j.rings[m.rank]; r != nil {
		r.due.Store(j.state.Due(m.rank))
		r.kick()
	}
	m.metrics.fill.Set(float64(j.state.Filled(m.seat)))
	j.queue.Wake()
	rec := j.held[next].record
	rec.Retain()
	b = &Batch{
		Record: rec, Generation: next.Generation, Epoch: next.Epoch, Step: next.Step, Part: next.Part, NextRow: next.NextRow,
		NumRows: next.NumRows, NumValid: next.NumValid, Bytes: partition.DataBytes(rec), Last: next.Last, LastPart: next.LastPart,
		Cursor: next.Cursor, Place: place, Sequence: s.sequence, Number: uint64(next.Number), //nolint:gosec // Never negative.
	}
	s.sequence++
	if j.first(m.rank) == m {
		m.metrics.handedOver(b)
	}
	return b, nil, false, nil
}

// Consumed says that the rank has consumed the first count batches of the stream.
func (s *Stream) Consumed(count uint64) {
	j := s.job
	j.mu.Lock()
	defer j.mu.Unlock()
	if s.member.stream != s || j.members[s.member.seat] != s.member {
		return
	}
	j.state.Consumed(s.member.seat, int64(min(count, s.sequence))) //nolint:gosec // Counts of batches.
	j.apply()
}

// Drained waits until the rank has consumed all that the stream handed over, or nobody asks for it any more: the session
// was closed or another stream has begun.
func (s *Stream) Drained(ctx context.Context) error {
	for {
		changed, drained := s.drained()
		if drained {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// drained is what Drained waits for; if it is not so, changed is closed at the next change.
func (s *Stream) drained() (changed <-chan struct{}, _ bool) {
	j, m := s.job, s.member
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.changed, m.stream != s || j.members[m.seat] != m || j.state.Unconsumed(m.seat) == 0
}

// Waits says what the ranks here wait for, trouble first; empty when they wait for nothing.
func (j *Job) Waits() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var parts []string
	if j.away != "" {
		parts = append(parts, j.away)
	}
	if trouble := j.trouble(); trouble != "" {
		parts = append(parts, trouble)
	}
	for rank, r := range j.rings {
		if text := r.waits(); text != "" {
			parts = append(parts, fmt.Sprintf("rank %d: %s", rank, text))
		}
	}
	if len(parts) == 0 && j.waiting != "" {
		parts = append(parts, j.waiting)
	}
	if len(parts) == 0 {
		for seat := range j.description.Dealing.NumSeats() {
			if m := j.members[seat]; m != nil && m.stream != nil {
				if text := j.state.Waits(seat); text != "" {
					return text
				}
			}
		}
	}
	return strings.Join(parts, "; ")
}

// trouble is what has gone wrong with the slice that a rank waits for soonest. The job is locked.
func (j *Job) trouble() string {
	least, text := int64(0), ""
	for b, h := range j.held {
		m := j.members[b.Seat]
		if m == nil || h.record != nil {
			continue
		}
		ahead := b.Number - m.sent.Load()
		if text != "" && ahead >= least {
			continue
		}
		for _, s := range h.slices {
			if s.pending == nil || s.record != nil {
				continue
			}
			if t := s.pending.Trouble(); t != "" {
				least, text = ahead, fmt.Sprintf("rank %d waits for %s", b.Rank, t)
				break
			}
		}
	}
	return text
}
