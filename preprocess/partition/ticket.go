package partition

import (
	"context"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/lineage"
)

// Limits of a Ticket. They bound what a server does for one request.
const (
	// MaxSlices is the most slices of one ticket.
	MaxSlices = 4096
	// MaxTicketBytes is the size of the largest encoded ticket.
	MaxTicketBytes = 512 << 10
	// MaxJobName is the length of the longest job name, in bytes.
	MaxJobName = 253
)

// Slice is a run of rows of one partition.
type Slice struct {
	ID lineage.ID
	// Attempt is the attempt of the task that made the partition; one of another attempt is not accepted.
	Attempt uint32
	// First is the first row, Rows the number of rows, at least 1.
	First, Rows int64
}

// Ticket asks for rows of partitions of one job.
type Ticket struct {
	Job    string
	Slices []Slice
}

// Fetcher brings the rows that a ticket asks for.
type Fetcher interface {
	// Fetch calls fn for each slice of the ticket in turn: i is the slice's index, rec holds its rows. rec is valid
	// during the call; fn retains what it keeps. Fetch ends with the first error, that of fn included. A partition
	// that is not there, or only from another attempt, is an error of kind NotFound.
	Fetch(ctx context.Context, ticket Ticket, fn func(i int, rec arrow.RecordBatch) error) error
}

// Validate says what is wrong with t, as an error of kind Invalid.
func (t Ticket) Validate() error {
	if t.Job == "" || len(t.Job) > MaxJobName {
		return errkind.Errorf(errkind.Invalid, "ticket: a job name of %d bytes; it has to be 1 to %d", len(t.Job), MaxJobName)
	}
	if len(t.Slices) == 0 || len(t.Slices) > MaxSlices {
		return errkind.Errorf(errkind.Invalid, "ticket of job %s: %d slices; a ticket has 1 to %d", t.Job, len(t.Slices), MaxSlices)
	}
	for _, s := range t.Slices {
		if s.First < 0 || s.Rows < 1 || s.First+s.Rows < s.First {
			return errkind.Errorf(errkind.Invalid, "ticket of job %s: %d rows from row %d of partition %s are no run of rows", t.Job, s.Rows, s.First, s.ID)
		}
	}
	return nil
}

// reading is the partitions of a ticket, with a reference to each that has not been given up yet.
type reading struct {
	slices     []Slice
	partitions []*Partition
}

// open acquires all partitions of a ticket before the first row is sent, so that what is missing is known at once and
// nothing is freed half way.
func (s *Store) open(t Ticket) (*reading, error) {
	if err := t.Validate(); err != nil {
		return nil, err
	}
	r := &reading{slices: t.Slices, partitions: make([]*Partition, len(t.Slices))}
	for i, slice := range t.Slices {
		p, err := s.Acquire(t.Job, slice.ID, slice.Attempt)
		if err != nil {
			r.close()
			return nil, err
		}
		r.partitions[i] = p
		if err := r.check(t.Job, i); err != nil {
			r.close()
			return nil, err
		}
	}
	return r, nil
}

func (r *reading) check(job string, i int) error {
	slice, p := r.slices[i], r.partitions[i]
	if end := slice.First + slice.Rows; end > p.NumRows() {
		return errkind.Errorf(errkind.Invalid, "ticket of job %s: rows %d to %d of partition %s, which has %d", job, slice.First, end-1, slice.ID, p.NumRows())
	}
	if first := r.partitions[0].rec.Schema(); !first.Equal(p.rec.Schema()) {
		return errkind.Errorf(errkind.Internal, "partitions %s and %s of job %s have different schemas", r.slices[0].ID, slice.ID, job)
	}
	return nil
}

func (r *reading) schema() *arrow.Schema { return r.partitions[0].rec.Schema() }

// next is the rows of slice i. The caller calls done when it needs them no more: until then the partition counts as
// memory of the store, even if it was freed.
func (r *reading) next(i int) (rec arrow.RecordBatch, done func()) {
	slice, p := r.slices[i], r.partitions[i]
	rec = p.rec.NewSlice(slice.First, slice.First+slice.Rows)
	r.partitions[i] = nil
	return rec, func() {
		rec.Release()
		p.Release()
	}
}

// close gives up the references that are left.
func (r *reading) close() {
	for i, p := range r.partitions {
		if p != nil {
			p.Release()
			r.partitions[i] = nil
		}
	}
}

// Local reads a Store of the same process by reference.
func Local(s *Store) Fetcher { return local{store: s} }

type local struct{ store *Store }

// Fetch hands out slices of the store's own record batches, without copying.
func (l local) Fetch(ctx context.Context, ticket Ticket, fn func(i int, rec arrow.RecordBatch) error) error {
	r, err := l.store.open(ticket)
	if err != nil {
		return err
	}
	defer r.close()
	for i := range ticket.Slices {
		if err := ctx.Err(); err != nil {
			return err
		}
		rec, done := r.next(i)
		err := fn(i, rec)
		done()
		if err != nil {
			return err
		}
	}
	return nil
}
