package dispatch

import (
	"context"
	"maps"
	"slices"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/grpcerr"
	"github.com/millrace/millrace/internal/nearest"
	"github.com/millrace/millrace/preprocess/lineage"
	statusv1 "github.com/millrace/millrace/proto/millrace/status/v1"
)

// GetJob is all that the stream of a job depends on.
func (s *statusService) GetJob(_ context.Context, req *statusv1.GetJobRequest) (*statusv1.GetJobResponse, error) {
	resp, err := s.d.describe(req)
	return resp, grpcerr.ToStatus(err)
}

func (d *Dispatcher) describe(req *statusv1.GetJobRequest) (*statusv1.GetJobResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	j, err := d.known(req.GetJob())
	if err != nil {
		return nil, err
	}
	s := j.spec
	out := &statusv1.GetJobResponse{
		Job: j.name, Recipe: s.asked.GetRecipe(), Settings: s.asked.GetSettings(), WorldSize: s.asked.GetWorldSize(),
		Manifest: s.manifestID[:], OrderDigest: s.orderDigest[:], PixelsDigest: s.pixelsDigest[:],
	}
	if j.generation > 0 {
		out.Start = s.cursor(j.name, j.start)
	}
	if req.GetPartition() == "" {
		return out, nil
	}
	id, err := lineage.ParseID(req.GetPartition())
	if err != nil {
		return nil, err
	}
	if j.ledger != nil {
		for _, o := range j.ledger.Records(lineage.SourceID(id.Epoch, id.Source)) {
			out.Records = append(out.Records, &statusv1.Record{
				Partition: o.ID.String(), Attempt: o.Attempt, Rows: o.Rows, Bytes: o.Bytes, ContentHash: o.Hash[:], Worker: o.Worker,
			})
		}
	}
	return out, nil
}

// known is the job of that name.
func (d *Dispatcher) known(name string) (*job, error) {
	if j := d.jobs[name]; j != nil {
		return j, nil
	}
	return nil, errkind.Errorf(errkind.NotFound, "there is no job %q%s", name, nearest.Hint(name, slices.Collect(maps.Keys(d.jobs))))
}
