package transport

import (
	"context"
	"errors"
	"io"
	"path/filepath"

	"google.golang.org/grpc"

	"github.com/millrace/millrace/feed/feedtest"
	"github.com/millrace/millrace/internal/service"
	feedv1 "github.com/millrace/millrace/proto/millrace/feed/v1"
	workerv1 "github.com/millrace/millrace/proto/millrace/worker/v1"
)

// dispatcher stands in for one: of one rank and one epoch, whose partitions are all there. It places and seals as the
// rank goes on.
type dispatcher struct {
	*feedtest.FakeDispatcher

	steps, ahead int64
}

// serveDispatcher serves one in a directory until ctx ends; wait waits for that.
func serveDispatcher(ctx context.Context, dir string, rows, steps, ahead int) (wait func() error, err error) {
	l, err := service.Listen(ctx, "unix://"+filepath.Join(dir, "dispatcher.sock"))
	if err != nil {
		return nil, err
	}
	data := virtualData(rows, steps)
	d := &dispatcher{
		FakeDispatcher: &feedtest.FakeDispatcher{Data: data, Epochs: 1, KnownRows: true, Address: virtualAddress},
		steps:          int64(steps), ahead: int64(ahead),
	}
	server := grpc.NewServer()
	feedv1.RegisterFeedServiceServer(server, d)
	return serving(ctx, server, l), nil
}

// Attach serves the sidecar.
func (d *dispatcher) Attach(stream feedv1.FeedService_AttachServer) error {
	var generation uint64
	var step, placed int64
	batch := d.Data.NumRows / d.steps
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case m.GetSeek() != nil:
			at := m.GetSeek().GetPosition()
			generation++
			step, placed = at.GetStep(), at.GetRow()/d.Data.PartitionRows
			started := &feedv1.Started{Generation: generation, Position: at}
			if err := stream.Send(&feedv1.AttachResponse{Message: &feedv1.AttachResponse_Started{Started: started}}); err != nil {
				return err
			}
		case m.GetConsumed() == nil:
			continue
		}
		at := max(m.GetConsumed().GetStep(), m.GetSeek().GetPosition().GetStep())
		last := min(max(step, at+d.ahead), d.steps)
		if last < min(step+d.ahead/2, d.steps) || step == d.steps {
			continue // in lots, as a dispatcher does
		}
		places := &feedv1.Placed{Generation: generation}
		for ; placed*d.Data.PartitionRows < last*batch; placed++ {
			places.Placements = append(places.Placements, &feedv1.Placement{
				Id:       &workerv1.PartitionID{Source: uint64(placed)},
				FirstRow: placed * d.Data.PartitionRows, Rows: d.Data.PartitionRows, Bytes: d.Data.PartitionRows * (imageBytes + 40),
				Worker: "virtual", Address: virtualAddress,
			})
		}
		if err := stream.Send(&feedv1.AttachResponse{Message: &feedv1.AttachResponse_Placed{Placed: places}}); err != nil {
			return err
		}
		for ; step < last; step++ {
			sealed := &feedv1.Sealed{
				Generation: generation, Position: &feedv1.Position{Step: step, Row: step * batch}, Rows: batch, Cursor: feedtest.Cursor(0, step),
			}
			if err := stream.Send(&feedv1.AttachResponse{Message: &feedv1.AttachResponse_Sealed{Sealed: sealed}}); err != nil {
				return err
			}
		}
		if step == d.steps {
			end := &feedv1.EpochEnd{Generation: generation, Rows: d.Data.NumRows, Steps: d.steps, Last: true}
			if err := stream.Send(&feedv1.AttachResponse{Message: &feedv1.AttachResponse_EpochEnd{EpochEnd: end}}); err != nil {
				return err
			}
		}
	}
}
