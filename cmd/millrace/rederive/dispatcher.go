package rederive

import (
	"bytes"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/grpcerr"
	"github.com/millrace/millrace/preprocess/lineage"
	"github.com/millrace/millrace/preprocess/partition"
	workerv1 "github.com/millrace/millrace/proto/millrace/worker/v1"
)

// manifestPiece is the size of the pieces of a manifest, bytes.
const manifestPiece = 64 << 10

// dispatcher gives one worker one source partition.
type dispatcher struct {
	workerv1.UnimplementedWorkerServiceServer

	cfg     Config
	id      lineage.ID
	ended   chan struct{} // closed when the rest is final
	outputs []Output
	failed  error
}

// Connect tells the worker what to do and listens until it is done.
func (d *dispatcher) Connect(stream workerv1.WorkerService_ConnectServer) error {
	if _, err := stream.Recv(); err != nil { // its registration
		return err
	}
	job := d.cfg.Plan.GetJob()
	for _, m := range []*workerv1.ConnectResponse{
		{Message: &workerv1.ConnectResponse_Welcome{Welcome: &workerv1.Welcome{Term: 1, HeartbeatMs: 1000}}},
		{Message: &workerv1.ConnectResponse_Plan{Plan: d.cfg.Plan}},
		{Message: &workerv1.ConnectResponse_Run{Run: &workerv1.Run{Job: job, Tasks: []*workerv1.SourceTask{{Id: partition.IDToWire(d.id)}}}}},
		{Message: &workerv1.ConnectResponse_Needed{Needed: &workerv1.Needed{Job: job, Id: partition.IDToWire(d.id)}}},
	} {
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		for _, e := range m.GetEvents().GetEvents() {
			done, err := d.event(stream, e)
			if err != nil {
				d.failed = err
			}
			if done || err != nil {
				close(d.ended)
				<-stream.Context().Done() // the worker ends the stream
				return nil
			}
		}
	}
}

// event takes note of what the worker says; done is true with the last.
func (d *dispatcher) event(stream workerv1.WorkerService_ConnectServer, e *workerv1.Event) (done bool, err error) {
	switch {
	case e.GetOutput() != nil:
		o := e.GetOutput()
		id, err := partition.IDFromWire(o.GetId())
		if err != nil {
			return false, err
		}
		made := Output{ID: id, Rows: o.GetRows(), Bytes: o.GetBytes()}
		copy(made.Hash[:], o.GetContentHash())
		d.outputs = append(d.outputs, made)
		return false, stream.Send(&workerv1.ConnectResponse{Message: &workerv1.ConnectResponse_Free{
			Free: &workerv1.Free{Job: e.GetJob(), Ids: []*workerv1.PartitionID{o.GetId()}},
		}})
	case e.GetFailed() != nil:
		return true, errkind.Errorf(errkind.Parse(e.GetFailed().GetKind()), "%s", e.GetFailed().GetText())
	case e.GetDone() != nil:
		return len(e.GetDone().GetId().GetPath()) == 0, nil // a path has an input of a later stage
	}
	return false, nil
}

// GetManifest streams the manifest.
func (d *dispatcher) GetManifest(req *workerv1.GetManifestRequest, stream workerv1.WorkerService_GetManifestServer) error {
	if id := d.cfg.Manifest.ID(); !bytes.Equal(req.GetManifest(), id[:]) {
		return grpcerr.ToStatus(errkind.Errorf(errkind.NotFound, "no job uses manifest %x", req.GetManifest()))
	}
	for data := d.cfg.Manifest.Encode(); len(data) > 0; {
		n := min(manifestPiece, len(data))
		if err := stream.Send(&workerv1.GetManifestResponse{Data: data[:n]}); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}
