package flight

import (
	"context"
	"errors"
	"io"
	"math"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/feed/session"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/partition/flightdata"
)

// DoGet sends the rest of an epoch. A batch counts as consumed when the next one is sent.
func (s *Server) DoGet(ticket *flight.Ticket, stream flight.FlightService_DoGetServer) error {
	batches, err := s.begin(stream.Context(), ticket.GetTicket())
	if err != nil {
		return err
	}
	if err := send(stream, flightdata.NewSchema(batches.Job().Description().Schema)); err != nil {
		return err
	}
	for {
		b, err := batches.Next(stream.Context(), math.MaxInt32)
		if errors.Is(err, io.EOF) {
			batches.Consumed(math.MaxUint64)
			return nil
		}
		if err != nil {
			return err
		}
		sequence := b.Sequence
		if err := sendBatch(stream, b); err != nil {
			return err
		}
		batches.Consumed(sequence)
	}
}

// DoExchange sends the rest of an epoch, at most prefetch batches beyond those that the client has acknowledged.
func (s *Server) DoExchange(stream flight.FlightService_DoExchangeServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	descriptor := first.GetFlightDescriptor()
	if descriptor.GetType() != flight.DescriptorCMD {
		return errkind.Errorf(errkind.Invalid, "the first message of an exchange needs a descriptor with a command: the ticket")
	}
	batches, err := s.begin(stream.Context(), descriptor.GetCmd())
	if err != nil {
		return err
	}
	if err := send(stream, flightdata.NewSchema(batches.Job().Description().Schema)); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	acks := make(chan struct{}, 1)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		if err := receiveAcks(stream, batches, acks); err != nil {
			cancel(err)
		}
	}()
	err = sendAll(ctx, stream, batches)
	if cause := context.Cause(ctx); cause != nil {
		if stream.Context().Err() == nil {
			return cause
		}
		return err
	}
	// The client's last acknowledgements make the rank's mark right. They are awaited before an error too: some clients
	// discard what they have not read when a call ends while they write.
	for batches.Outstanding() > 0 {
		select {
		case <-acks:
		case <-closed:
			return errors.Join(err, context.Cause(ctx))
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		}
	}
	return err
}

// sendAll sends batches to the end of the epoch.
func sendAll(ctx context.Context, stream grpc.ServerStream, batches *session.Stream) error {
	for {
		b, err := batches.Next(ctx, batches.Prefetch())
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := sendBatch(stream, b); err != nil {
			return err
		}
	}
}

// receiveAcks takes acknowledgements in until the client closes its end. Its errors are those of the client's messages;
// that the stream has broken is seen elsewhere.
func receiveAcks(stream flight.FlightService_DoExchangeServer, batches *session.Stream, acks chan<- struct{}) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return nil //nolint:nilerr // See above.
		}
		if len(m.GetDataBody()) > 0 {
			return errkind.Errorf(errkind.Invalid, "an exchange takes acknowledgements, not data")
		}
		if len(m.GetAppMetadata()) == 0 {
			continue
		}
		count, err := parseAck(m.GetAppMetadata())
		if err != nil {
			return err
		}
		batches.Consumed(count)
		select {
		case acks <- struct{}{}:
		default:
		}
	}
}

// begin begins the stream that a ticket names.
func (s *Server) begin(ctx context.Context, raw []byte) (*session.Stream, error) {
	var t ticketBody
	if err := decode("the ticket", raw, &t); err != nil {
		return nil, err
	}
	switch {
	case t.Session != "" && t.Job == "" && t.Rank == nil:
		return s.cfg.Table.Stream(t.Session, t.position(), connection(ctx))
	case t.Session == "" && t.Job != "" && t.Rank != nil:
		return s.cfg.Table.RankStream(t.Job, *t.Rank, t.position(), connection(ctx))
	}
	return nil, errkind.Errorf(errkind.Invalid, "a ticket names a session, or a job and a rank")
}

// sendBatch sends b and gives it up.
func sendBatch(stream grpc.ServerStream, b *session.Batch) error {
	defer b.Record.Release()
	header, err := b.AppendHeader(nil)
	if err != nil {
		return err
	}
	m, err := flightdata.NewRecord(b.Record, func() {})
	if err != nil {
		return err
	}
	m.AppMetadata = header
	return send(stream, m)
}

// send sends a message. gRPC's own errors stay as they are.
func send(stream grpc.ServerStream, m *flightdata.Outgoing) error { return stream.SendMsg(m) }
