package flight

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/grpcerr"
	"github.com/millrace/millrace/internal/nearest"
	"github.com/millrace/millrace/internal/statusjson"
	statusv1 "github.com/millrace/millrace/proto/millrace/status/v1"
)

// Names of the actions.
const (
	actionOpen   = "millrace.open"
	actionClose  = "millrace.close"
	actionStop   = "millrace.stop"
	actionStatus = "millrace.status"
	actionJob    = "millrace.job"
)

// action is one of what DoAction can do.
type action struct {
	name, description string
	do                func(*Server, context.Context, []byte) (any, error)
}

func actions() []action {
	return []action{
		{actionOpen, "plan a job, or join it, for one rank", (*Server).open},
		{actionClose, "close a session: its rank leaves the job", (*Server).closeSession},
		{actionStop, "end a job for all ranks and free what it holds", (*Server).stop},
		{actionStatus, "jobs, ranks and workers, and who waits for what", func(s *Server, ctx context.Context, body []byte) (any, error) {
			if err := decode(actionStatus, body, &struct{}{}); err != nil {
				return nil, err
			}
			ctx, cancel := context.WithTimeout(ctx, statusTimeout)
			defer cancel()
			text, err := s.status(ctx)
			return json.RawMessage(text), err
		}},
		{actionJob, "all that the stream of a job depends on, and what is recorded of a partition", (*Server).job},
		{flight.CancelFlightInfoActionType, "end the streams that read the endpoints of a FlightInfo; their sessions stay", (*Server).cancelInfo},
	}
}

// ListActions lists the actions.
func (s *Server) ListActions(_ *flight.Empty, stream flight.FlightService_ListActionsServer) error {
	for _, a := range actions() {
		if err := stream.Send(&flight.ActionType{Type: a.name, Description: a.description}); err != nil {
			return err
		}
	}
	return nil
}

// DoAction does one of the actions and answers with one result.
func (s *Server) DoAction(req *flight.Action, stream flight.FlightService_DoActionServer) error {
	all := actions()
	i := slices.IndexFunc(all, func(a action) bool { return a.name == req.GetType() })
	if i < 0 {
		names := make([]string, len(all))
		for i, a := range all {
			names[i] = a.name
		}
		return errkind.Errorf(errkind.Invalid, "unknown action %q%s", req.GetType(), nearest.Hint(req.GetType(), names))
	}
	answer, err := all[i].do(s, stream.Context(), req.GetBody())
	if err != nil {
		return err
	}
	body, err := encode(answer)
	if err != nil {
		return errkind.With(errkind.Internal, fmt.Errorf("writing the answer of %s: %w", req.GetType(), err))
	}
	return stream.Send(&flight.Result{Body: body})
}

// encode writes an answer: those of Flight's own actions in protobuf, those of ours in JSON.
func encode(answer any) ([]byte, error) {
	if m, ok := answer.(proto.Message); ok {
		return proto.Marshal(m)
	}
	return json.Marshal(answer)
}

func (s *Server) open(ctx context.Context, body []byte) (any, error) {
	var b openBody
	if err := decode(actionOpen, body, &b); err != nil {
		return nil, err
	}
	req, err := b.request()
	if err != nil {
		return nil, err
	}
	opened, err := s.cfg.Table.Open(ctx, req, connection(ctx))
	if err != nil {
		return nil, err
	}
	answer := openedFrom(&opened)
	if s.ring.Load() {
		answer.Ring = ringVersion
	}
	return answer, nil
}

func (s *Server) closeSession(ctx context.Context, body []byte) (any, error) {
	var b sessionBody
	if err := decode(actionClose, body, &b); err != nil {
		return nil, err
	}
	s.cfg.Table.Close(ctx, b.Session)
	return struct{}{}, nil
}

func (s *Server) stop(ctx context.Context, body []byte) (any, error) {
	var b jobBody
	if err := decode(actionStop, body, &b); err != nil {
		return nil, err
	}
	return struct{}{}, s.cfg.Table.Stop(ctx, b.Job)
}

func (s *Server) job(ctx context.Context, body []byte) (any, error) {
	var b jobQuestion
	if err := decode(actionJob, body, &b); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	job, err := s.cfg.Status.GetJob(ctx, &statusv1.GetJobRequest{Job: b.Job, Partition: b.Partition})
	if err != nil {
		return nil, grpcerr.FromStatus(err)
	}
	text, err := statusjson.Marshal(job)
	return json.RawMessage(text), err
}
