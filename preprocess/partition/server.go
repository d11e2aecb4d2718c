package partition

import (
	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/internal/grpcerr"
	"github.com/millrace/millrace/preprocess/partition/flightdata"
)

// Server gives the rows of a Store to sidecars over Arrow Flight. It serves DoGet alone: a ticket is an encoded
// [Ticket], and each of its slices comes back as one record batch, in order, with [AppMetadata]. Any Flight client can
// read it.
type Server struct {
	flight.BaseFlightServer

	store *Store
}

// NewServer serves what store holds.
func NewServer(store *Store) *Server { return &Server{store: store} }

// Register adds the service to a gRPC server, which has to be made with flightdata.ServerOptions.
func (s *Server) Register(g *grpc.Server) { flight.RegisterFlightServiceServer(g, s) }

// DoGet sends the rows of a ticket. What is sent is not copied: it stays in memory until gRPC has written it.
func (s *Server) DoGet(request *flight.Ticket, stream flight.FlightService_DoGetServer) error {
	ticket, err := ParseTicket(request.GetTicket())
	if err != nil {
		return grpcerr.ToStatus(err)
	}
	r, err := s.store.open(ticket)
	if err != nil {
		return grpcerr.ToStatus(err)
	}
	defer r.close()
	if err := send(stream, SchemaSlice, flightdata.NewSchema(r.schema())); err != nil {
		return err
	}
	for i := range ticket.Slices {
		rec, done := r.next(i)
		message, err := flightdata.NewRecord(rec, done)
		if err != nil {
			done()
			return grpcerr.ToStatus(err)
		}
		if err := send(stream, uint32(i), message); err != nil {
			return err
		}
	}
	return nil
}

func send(stream grpc.ServerStream, slice uint32, message *flightdata.Outgoing) error {
	message.AppMetadata = AppMetadata{Slice: slice, CRC32C: message.Checksum()}.Append(nil)
	return stream.SendMsg(message)
}
