package flight

import (
	"context"
	"sync"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/internal/errkind"
)

// errCanceled ends a stream that somebody has cancelled.
var errCanceled = errkind.Errorf(errkind.Canceled, "the stream was cancelled by "+flight.CancelFlightInfoActionType)

// streams are the calls that read ranks, so that others can cancel them.
type streams struct {
	mu  sync.Mutex
	all map[streamKey]map[*int]context.CancelCauseFunc
}

type streamKey struct {
	job  string
	rank int
}

// add makes a context for a call that reads a rank, and what to call at its end.
func (s *streams) add(ctx context.Context, key streamKey) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	id := new(int)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[streamKey]map[*int]context.CancelCauseFunc{}
	}
	if s.all[key] == nil {
		s.all[key] = map[*int]context.CancelCauseFunc{}
	}
	s.all[key][id] = cancel
	return ctx, func() {
		cancel(nil)
		s.mu.Lock()
		defer s.mu.Unlock()
		if delete(s.all[key], id); len(s.all[key]) == 0 {
			delete(s.all, key)
		}
	}
}

// cancel ends the calls that read a rank and says how many there were.
func (s *streams) cancel(key streamKey) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, cancel := range s.all[key] {
		cancel(errCanceled)
	}
	return len(s.all[key])
}

// cancelInfo ends the streams that read the endpoints of a FlightInfo. Sessions and jobs stay as they are.
func (s *Server) cancelInfo(_ context.Context, body []byte) (any, error) {
	if len(body) > maxBody {
		return nil, errkind.Errorf(errkind.Exhausted, "a request of %d bytes; at most %d are accepted", len(body), maxBody)
	}
	var req flight.CancelFlightInfoRequest
	if err := proto.Unmarshal(body, &req); err != nil {
		return nil, errkind.Errorf(errkind.Invalid, "reading a request to cancel: %w", err)
	}
	ended := 0
	for _, endpoint := range req.GetInfo().GetEndpoint() {
		var t ticketBody
		if err := decode("a ticket", endpoint.GetTicket().GetTicket(), &t); err != nil {
			return nil, err
		}
		if t.Job == "" || t.Rank == nil {
			return nil, errkind.Errorf(errkind.Invalid, "only tickets of GetFlightInfo can be cancelled; close a session instead")
		}
		ended += s.streams.cancel(streamKey{t.Job, *t.Rank})
	}
	result := &flight.CancelFlightInfoResult{Status: flight.CancelStatusNotCancellable}
	if ended > 0 {
		result.Status = flight.CancelStatusCancelled
	}
	return result, nil
}
