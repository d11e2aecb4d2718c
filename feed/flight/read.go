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
	r, err := s.begin(stream.Context(), ticket.GetTicket())
	if err != nil {
		return err
	}
	ctx, done := s.streams.add(stream.Context(), streamKey{r.job.Name, r.rank})
	defer done()
	if err := send(stream, flightdata.NewSchema(canonical(r.job.Schema))); err != nil || r.Stream == nil {
		return err
	}
	for {
		b, err := r.Next(ctx, math.MaxInt32)
		if errors.Is(err, io.EOF) {
			r.Consumed(math.MaxUint64)
			return nil
		}
		if err != nil {
			return err
		}
		sequence := b.Sequence
		if err := r.send(stream, b); err != nil {
			return err
		}
		r.Consumed(sequence)
	}
}

// send sends a batch that the client does not have yet, and gives it up.
func (r *reading) send(stream grpc.ServerStream, b *session.Batch) error {
	if b.Sequence < r.skip {
		b.Record.Release()
		return nil
	}
	return sendBatch(stream, r, b)
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
	if err := send(stream, flightdata.NewSchema(canonical(batches.job.Schema))); err != nil || batches.Stream == nil {
		return err
	}
	watched, done := s.streams.add(stream.Context(), streamKey{batches.job.Name, batches.rank})
	defer done()
	ctx, cancel := context.WithCancelCause(watched)
	defer cancel(nil)
	acked, stopped := context.WithCancel(ctx) // until the client closes its end
	go func() {
		defer stopped()
		if err := receiveAcks(stream, batches); err != nil {
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
	if batches.Drained(acked) != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	return err
}

// sendAll sends batches to the end of the epoch.
func sendAll(ctx context.Context, stream grpc.ServerStream, batches *reading) error {
	for {
		b, err := batches.Next(ctx, batches.Prefetch())
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := batches.send(stream, b); err != nil {
			return err
		}
	}
}

// receiveAcks takes acknowledgements in until the client closes its end. Its errors are those of the client's messages;
// that the stream has broken is seen elsewhere.
func receiveAcks(stream flight.FlightService_DoExchangeServer, batches *reading) error {
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
	}
}
