package flight

import (
	"context"
	"slices"

	"github.com/millrace/millrace/feed/session"
	"github.com/millrace/millrace/feed/session/deal"
	"github.com/millrace/millrace/internal/errkind"
)

// maxSequence bounds the sequence number in a ticket, so that it can be counted with.
const maxSequence = 1 << 40

// reading is a stream of a rank, and how a client wants it.
type reading struct {
	// Stream is nil where nothing is left to read.
	*session.Stream

	job session.Description
	// rank is -1 where the ticket names a session.
	rank int
	// batchBytes is the most that a record batch may have; 0: a record batch for each batch.
	batchBytes int64
	// first is the sequence number of the first batch, of which skip are not sent.
	first, skip uint64
}

// begin begins the stream that a ticket names.
func (s *Server) begin(ctx context.Context, raw []byte) (*reading, error) {
	var t ticketBody
	if err := decode("the ticket", raw, &t); err != nil {
		return nil, err
	}
	if t.BatchBytes < 0 || t.BatchBytes > maxBatchBytes {
		return nil, errkind.Errorf(errkind.Invalid, "batch_bytes of the ticket is %d; choose 1 to %d, or 0 for whole batches", t.BatchBytes, maxBatchBytes)
	}
	switch {
	case t.Session != "" && t.Job == "" && t.Rank == nil && t.Sequence == 0:
		stream, err := s.cfg.Table.Stream(t.Session, t.position(), connection(ctx))
		if err != nil {
			return nil, err
		}
		return &reading{Stream: stream, job: stream.Job().Description(), rank: -1, batchBytes: t.BatchBytes}, nil
	case t.Session == "" && t.Job != "" && t.Rank != nil:
		return s.beginRank(ctx, &t)
	}
	return nil, errkind.Errorf(errkind.Invalid, "a ticket names a session, or a job and a rank and perhaps a sequence number")
}

// beginRank begins the stream of a rank at the batch that the ticket's sequence number names, counted from the ticket's
// position on.
func (s *Server) beginRank(ctx context.Context, t *ticketBody) (*reading, error) {
	members := s.cfg.Table.Members()
	i := slices.IndexFunc(members, func(m session.Member) bool { return m.Job.Name == t.Job && m.Rank == *t.Rank })
	if i < 0 {
		return nil, errkind.Errorf(errkind.NotFound, "rank %d of job %q has no open session here", *t.Rank, t.Job)
	}
	if t.Sequence > maxSequence {
		return nil, errkind.Errorf(errkind.Invalid, "sequence number %d of the ticket is beyond any stream", t.Sequence)
	}
	r := &reading{job: members[i].Job, rank: *t.Rank, batchBytes: t.BatchBytes}
	pos := r.seek(t)
	if t.Sequence > 0 && r.job.Steps >= 0 && pos.Step >= r.job.Steps {
		return r, nil
	}
	var err error
	r.Stream, err = s.cfg.Table.RankStream(t.Job, *t.Rank, pos, connection(ctx))
	return r, err
}

// seek is the position of the global batch that has the wanted batch in it.
func (r *reading) seek(t *ticketBody) deal.Position {
	parts := uint64(r.job.Dealing.Accumulation) //nolint:gosec // At least 1.
	r.skip = t.Sequence % parts
	r.first = t.Sequence - r.skip
	steps := int64(t.Sequence / parts) //nolint:gosec // At most maxSequence.
	pos := t.position()
	pos.Step += steps
	pos.Row += steps * r.job.Dealing.GlobalBatch
	return pos
}
