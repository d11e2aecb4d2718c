package partition

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/lineage"
	workerv1 "github.com/millrace/millrace/proto/millrace/worker/v1"
)

// Marshal is the ticket as it travels: a millrace.worker.v1.FetchTicket. A ticket that is not valid is an error.
func (t Ticket) Marshal() ([]byte, error) {
	if err := t.Validate(); err != nil {
		return nil, err
	}
	msg := &workerv1.FetchTicket{Job: t.Job, Slices: make([]*workerv1.Slice, len(t.Slices))}
	for i, s := range t.Slices {
		msg.Slices[i] = &workerv1.Slice{Id: IDToWire(s.ID), Attempt: s.Attempt, First: s.First, Rows: s.Rows}
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(msg)
	if err != nil {
		return nil, errkind.With(errkind.Invalid, fmt.Errorf("encoding a ticket of job %q: %w", t.Job, err))
	}
	if len(b) > MaxTicketBytes {
		return nil, errkind.Errorf(errkind.Invalid, "ticket of job %s has %d bytes; at most %d are accepted", t.Job, len(b), MaxTicketBytes)
	}
	return b, nil
}

// ParseTicket reads what [Ticket.Marshal] writes. Its errors are of kind Invalid.
func ParseTicket(b []byte) (Ticket, error) {
	if len(b) > MaxTicketBytes {
		return Ticket{}, errkind.Errorf(errkind.Invalid, "ticket has %d bytes; at most %d are accepted", len(b), MaxTicketBytes)
	}
	var msg workerv1.FetchTicket
	if err := proto.Unmarshal(b, &msg); err != nil {
		return Ticket{}, errkind.With(errkind.Invalid, fmt.Errorf("decoding a ticket: %w", err))
	}
	if len(msg.GetSlices()) > MaxSlices {
		return Ticket{}, errkind.Errorf(errkind.Invalid, "ticket of %d slices; a ticket has at most %d", len(msg.GetSlices()), MaxSlices)
	}
	t := Ticket{Job: msg.GetJob(), Slices: make([]Slice, len(msg.GetSlices()))}
	for i, s := range msg.GetSlices() {
		id, err := IDFromWire(s.GetId())
		if err != nil {
			return Ticket{}, err
		}
		t.Slices[i] = Slice{ID: id, Attempt: s.GetAttempt(), First: s.GetFirst(), Rows: s.GetRows()}
	}
	return t, t.Validate()
}

// IDToWire is id as it travels.
func IDToWire(id lineage.ID) *workerv1.PartitionID {
	return &workerv1.PartitionID{Epoch: id.Epoch, Source: id.Source, Path: append([]uint32(nil), id.Path[:id.Depth]...)}
}

// IDFromWire is the inverse of [IDToWire]. A missing or too long id is an error of kind Invalid.
func IDFromWire(id *workerv1.PartitionID) (lineage.ID, error) {
	if id == nil {
		return lineage.ID{}, errkind.Errorf(errkind.Invalid, "a message without a partition id")
	}
	if len(id.GetPath()) > lineage.MaxDepth {
		return lineage.ID{}, errkind.Errorf(errkind.Invalid, "partition id with a path of %d numbers; ids have at most %d", len(id.GetPath()), lineage.MaxDepth)
	}
	out := lineage.SourceID(id.GetEpoch(), id.GetSource())
	out.Depth = uint8(copy(out.Path[:], id.GetPath())) //nolint:gosec // At most MaxDepth.
	return out, nil
}
