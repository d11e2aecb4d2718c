package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/grpcerr"
	"github.com/millrace/millrace/preprocess/partition"
	"github.com/millrace/millrace/preprocess/partition/flightdata"
)

// errSilent ends an attempt in which nothing has come for too long.
var errSilent = errkind.Errorf(errkind.Unavailable, "nothing has come for too long")

// remote fetches from the data service of one worker.
type remote struct {
	conns   *conns
	address string
	to      *conn
}

var _ partition.Fetcher = remote{}

// Fetch calls fn for each slice of the ticket in turn.
func (r remote) Fetch(ctx context.Context, ticket partition.Ticket, fn func(i int, rec arrow.RecordBatch) error) error {
	body, err := ticket.Marshal()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := r.conns.cfg.SilenceTimeout
	watchdog := time.AfterFunc(silence, func() { cancel(errSilent) })
	defer watchdog.Stop()

	came := 0
	err = r.conns.read(ctx, r.address, r.to, body, func(i int, rec arrow.RecordBatch) error {
		watchdog.Reset(silence)
		came++
		if i >= len(ticket.Slices) || rec.NumRows() != ticket.Slices[i].Rows {
			return errkind.Errorf(errkind.Internal, "a worker sent %d rows as slice %d, which were not asked for", rec.NumRows(), i)
		}
		return fn(i, rec)
	})
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errSilent) {
		return fmt.Errorf("%w (%s)", errSilent, silence)
	}
	if err == nil && came < len(ticket.Slices) {
		return errkind.Errorf(errkind.BadData, "the stream ended after %d of %d slices", came, len(ticket.Slices))
	}
	return err
}

// readFlight reads a ticket by Flight.
func readFlight(ctx context.Context, conn *grpc.ClientConn, ticket []byte, pool *partition.Pool, fn func(i int, rec arrow.RecordBatch) error) error {
	stream, err := flight.NewFlightServiceClient(conn).DoGet(ctx, &flight.Ticket{Ticket: ticket}, flightdata.CallOption())
	if err != nil {
		return grpcerr.FromStatus(err)
	}
	return readStream(stream, pool, fn)
}

// receiver is the receiving end of a stream.
type receiver interface{ RecvMsg(m any) error }

// readStream calls fn for each record batch that stream has.
func readStream(stream receiver, pool *partition.Pool, fn func(i int, rec arrow.RecordBatch) error) (err error) {
	// Arrow's reader checks little of what it is given. What passes the checksum was made by a worker of ours; still a
	// fault there must not end this process.
	defer func() {
		if p := recover(); p != nil {
			err = errkind.Errorf(errkind.BadData, "reading what a worker sent: %v", p)
		}
	}()
	messages := &messages{stream: stream, pool: pool}
	defer messages.Release()
	reader, err := ipc.NewReaderFromMessageReader(messages)
	if err != nil {
		return messages.cause(err)
	}
	defer reader.Release()
	for i := 0; reader.Next(); i++ {
		if err := fn(i, reader.RecordBatch()); err != nil {
			return err
		}
	}
	return messages.cause(reader.Err())
}

// messages gives Arrow's reader the messages of a stream, once their checksums have been checked.
type messages struct {
	stream receiver
	pool   *partition.Pool
	count  int
	last   *ipc.Message
	err    error // what ended the stream, other than its end
}

var _ ipc.MessageReader = (*messages)(nil)

// Message is the next message, valid until the next call.
func (m *messages) Message() (*ipc.Message, error) {
	m.drop()
	in := flightdata.NewIncoming(m.pool)
	if err := m.stream.RecvMsg(in); err != nil {
		if !errors.Is(err, io.EOF) {
			m.err = grpcerr.FromStatus(err)
		}
		return nil, err
	}
	if err := m.check(in); err != nil {
		in.Drop()
		m.err = err
		return nil, err
	}
	m.count++
	m.last = in.Message()
	return m.last, nil
}

// check compares a message with its checksum and its place in the stream.
func (m *messages) check(in *flightdata.Incoming) error {
	if !in.HasHeader() {
		return errkind.Errorf(errkind.BadData, "message %d has no header", m.count)
	}
	meta, err := partition.ParseAppMetadata(in.AppMetadata)
	if err != nil {
		return err
	}
	if sum := in.Checksum(); sum != meta.CRC32C {
		return errkind.Errorf(errkind.BadData, "message %d was damaged on the way: its checksum is %08x, not %08x", m.count, sum, meta.CRC32C)
	}
	if want := uint32(m.count - 1); meta.Slice != want { //nolint:gosec // The schema, before slice 0, is SchemaSlice.
		return errkind.Errorf(errkind.Internal, "slice %d came in place of slice %d", meta.Slice, want)
	}
	return nil
}

// cause is the error of the stream where there is one, else err.
func (m *messages) cause(err error) error {
	if m.err != nil {
		return m.err
	}
	return err
}

func (m *messages) drop() {
	if m.last != nil {
		m.last.Release()
		m.last = nil
	}
}

// Retain does nothing: there is one owner.
func (*messages) Retain() {}

// Release gives up the last message.
func (m *messages) Release() { m.drop() }
