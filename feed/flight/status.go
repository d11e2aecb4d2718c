package flight

import (
	"context"
	"maps"
	"slices"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/grpcerr"
	"github.com/millrace/millrace/internal/statusjson"
	statusv1 "github.com/millrace/millrace/proto/millrace/status/v1"
)

// status is the dispatcher's snapshot as JSON, with what the sidecar knows of why its ranks wait. Where the dispatcher
// cannot be asked, the jobs that are fed here are listed with that.
func (s *Server) status(ctx context.Context) ([]byte, error) {
	waits := s.cfg.Table.Waits()
	snapshot, err := s.cfg.Status.GetStatus(ctx, &statusv1.GetStatusRequest{})
	if err != nil {
		err = grpcerr.FromStatus(err)
		if errkind.Of(err) != errkind.Unavailable || len(waits) == 0 {
			return nil, err
		}
		snapshot = &statusv1.GetStatusResponse{}
		for _, name := range slices.Sorted(maps.Keys(waits)) {
			snapshot.Jobs = append(snapshot.Jobs, &statusv1.Job{Name: name, State: "waiting"})
		}
	}
	for _, job := range snapshot.GetJobs() {
		if text := waits[job.GetName()]; text != "" {
			job.Waiting = text
		}
	}
	return statusjson.Marshal(snapshot)
}
