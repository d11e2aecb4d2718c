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
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/grpcerr"
	"github.com/millrace/millrace/preprocess/partition"
)

// minHeader is less than any IPC header has.
const minHeader = 8

// errSilent ends an attempt in which nothing has come for too long.
var errSilent = errkind.Errorf(errkind.Unavailable, "nothing has come for too long")

// remote fetches from the data service of one worker.
type remote struct {
	conn    *grpc.ClientConn
	pool    *partition.Pool
	silence time.Duration // after which an attempt is given up
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
	watchdog := time.AfterFunc(r.silence, func() { cancel(errSilent) })
	defer watchdog.Stop()

	err = r.read(ctx, body, func(i int, rec arrow.RecordBatch) error {
		watchdog.Reset(r.silence)
		if i >= len(ticket.Slices) || rec.NumRows() != ticket.Slices[i].Rows {
			return errkind.Errorf(errkind.Internal, "a worker sent %d rows as slice %d, which were not asked for", rec.NumRows(), i)
		}
		return fn(i, rec)
	})
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errSilent) {
		return fmt.Errorf("%w (%s)", errSilent, r.silence)
	}
	return err
}

func (r remote) read(ctx context.Context, ticket []byte, fn func(i int, rec arrow.RecordBatch) error) (err error) {
	// Arrow's reader checks little of what it is given. What passes the checksum was made by a worker of ours; still a
	// fault there must not end this process.
	defer func() {
		if p := recover(); p != nil {
			err = errkind.Errorf(errkind.BadData, "reading what a worker sent: %v", p)
		}
	}()
	stream, err := flight.NewFlightServiceClient(r.conn).DoGet(ctx, &flight.Ticket{Ticket: ticket}, grpc.ForceCodecV2(newCodec()))
	if err != nil {
		return grpcerr.FromStatus(err)
	}
	messages := &messages{stream: stream, pool: r.pool}
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
	stream grpc.ClientStream
	pool   *partition.Pool
	count  int
	last   *ipc.Message
	err    error // what ended the stream, other than its end
}

var _ ipc.MessageReader = (*messages)(nil)

// Message is the next message, valid until the next call.
func (m *messages) Message() (*ipc.Message, error) {
	m.drop()
	d := &flightData{alloc: m.pool.Alloc, free: m.pool.Free}
	if err := m.stream.RecvMsg(d); err != nil {
		if !errors.Is(err, io.EOF) {
			m.err = grpcerr.FromStatus(err)
		}
		return nil, err
	}
	if err := m.check(d); err != nil {
		d.drop()
		m.err = err
		return nil, err
	}
	m.count++
	body := memory.NewBufferBytes(nil)
	if d.body != nil {
		body = m.pool.Buffer(d.body)
	}
	header := memory.NewBufferBytes(d.header)
	m.last = ipc.NewMessage(header, body)
	header.Release()
	body.Release()
	return m.last, nil
}

// check compares a record batch with its checksum. The first message is the schema, which has none.
func (m *messages) check(d *flightData) error {
	if len(d.header) < minHeader {
		return errkind.Errorf(errkind.BadData, "message %d has a header of %d bytes", m.count, len(d.header))
	}
	if m.count == 0 {
		return nil
	}
	meta, err := partition.ParseAppMetadata(d.appMetadata)
	if err != nil {
		return err
	}
	if int(meta.Slice) != m.count-1 {
		return errkind.Errorf(errkind.Internal, "slice %d came in place of slice %d", meta.Slice, m.count-1)
	}
	if sum := partition.Checksum(d.header, d.body); sum != meta.CRC32C {
		return errkind.Errorf(errkind.BadData, "slice %d was damaged on the way: its checksum is %08x, not %08x", meta.Slice, sum, meta.CRC32C)
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
