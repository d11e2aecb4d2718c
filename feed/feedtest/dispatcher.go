package feedtest

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/grpc"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/grpcerr"
	"github.com/millrace/millrace/loader/order"
	feedv1 "github.com/millrace/millrace/proto/millrace/feed/v1"
	statusv1 "github.com/millrace/millrace/proto/millrace/status/v1"
	workerv1 "github.com/millrace/millrace/proto/millrace/worker/v1"
)

// FakeDispatcher is a dispatcher of one job whose partitions are all there. It places and seals everything as soon as all
// ranks have asked for the same position.
type FakeDispatcher struct {
	feedv1.UnimplementedFeedServiceServer
	statusv1.UnimplementedStatusServiceServer

	// Data is what the partitions hold, Epochs how many epochs are placed, Address where the partitions are.
	Data    Data
	Epochs  uint64
	Address string
	// Place, if set, says where each source partition is, instead of Address.
	Place func(source int64) string
	// KnownRows says whether the rows of an epoch are told at once.
	KnownRows bool

	mu         sync.Mutex
	settings   *feedv1.Settings
	seats      int
	generation uint64
	wants      map[uint32]*feedv1.Position
	streams    map[string]*attached
	marks      map[uint32]*feedv1.Consumed
	left       []uint32
	refuse     error
	hold       bool // nothing is sealed
}

type attached struct {
	out    chan *feedv1.AttachResponse
	cancel context.CancelCauseFunc
}

// Register adds its services to a server.
func (d *FakeDispatcher) Register(s grpc.ServiceRegistrar) {
	feedv1.RegisterFeedServiceServer(s, d)
	statusv1.RegisterStatusServiceServer(s, d)
}

// OpenJob joins a rank.
func (d *FakeDispatcher) OpenJob(_ context.Context, req *feedv1.OpenJobRequest) (*feedv1.OpenJobResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refuse != nil {
		return nil, grpcerr.ToStatus(d.refuse)
	}
	schema, err := d.Data.encodedSchema()
	if err != nil {
		return nil, err
	}
	d.settings, d.seats = req.GetSettings(), int(req.GetWorldSize()*max(1, req.GetPeers()))
	resp := &feedv1.OpenJobResponse{
		Job: req.GetJob(), OrderDigest: make([]byte, 16), PixelsDigest: make([]byte, 16), Manifest: make([]byte, 16), Schema: schema,
		Rows: -1, Steps: -1, Start: &feedv1.Position{}, Samples: d.Data.NumRows,
	}
	if d.KnownRows {
		b, err := d.batching(&feedv1.Position{})
		if err != nil {
			return nil, err
		}
		resp.Rows, resp.Steps = d.Data.NumRows, b.NumSteps(d.Data.NumRows)
	}
	return resp, nil
}

func (d *FakeDispatcher) batching(at *feedv1.Position) (order.Batching, error) {
	tail, err := order.ParseTail(d.settings.GetTail())
	return order.Batching{GlobalBatch: d.settings.GetGlobalBatch(), Tail: tail, OriginStep: at.GetStep(), OriginRow: at.GetRow()}, err
}

// Attach serves one sidecar.
func (d *FakeDispatcher) Attach(stream feedv1.FeedService_AttachServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	a := &attached{out: make(chan *feedv1.AttachResponse, 1<<14), cancel: cancel}
	name := first.GetHello().GetSidecar()
	d.mu.Lock()
	if d.streams == nil {
		d.streams, d.wants, d.marks = map[string]*attached{}, map[uint32]*feedv1.Position{}, map[uint32]*feedv1.Consumed{}
	}
	d.streams[name] = a
	d.mu.Unlock()
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				cancel(nil)
				return
			}
			d.handle(m)
		}
	}()
	for {
		select {
		case m := <-a.out:
			if err := stream.Send(m); err != nil {
				return err
			}
		case <-ctx.Done():
			if cause := context.Cause(ctx); cause != context.Canceled { //nolint:errorlint // The cause itself is meant.
				return grpcerr.ToStatus(cause)
			}
			return nil
		}
	}
}

func (d *FakeDispatcher) handle(m *feedv1.AttachRequest) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case m.GetSeek() != nil:
		d.wants[m.GetSeek().GetSeat()] = m.GetSeek().GetPosition()
		d.begin()
	case m.GetConsumed() != nil:
		d.marks[m.GetConsumed().GetSeat()] = m.GetConsumed()
	case m.GetLeave() != nil:
		d.left = append(d.left, m.GetLeave().GetSeat())
		delete(d.wants, m.GetLeave().GetSeat())
	}
}

// begin starts a generation at the earliest position that was asked for, once every seat has asked. It is locked.
func (d *FakeDispatcher) begin() {
	if len(d.wants) < d.seats {
		return
	}
	var from *feedv1.Position
	for _, p := range d.wants {
		if from == nil || p.GetEpoch() < from.GetEpoch() || (p.GetEpoch() == from.GetEpoch() && p.GetStep() < from.GetStep()) {
			from = p
		}
	}
	clear(d.wants)
	d.generation++
	d.tell(&feedv1.AttachResponse{Message: &feedv1.AttachResponse_Started{Started: &feedv1.Started{Generation: d.generation, Position: from}}})
	for e := from.GetEpoch(); e < d.Epochs; e++ {
		at := from
		if e != from.GetEpoch() {
			at = &feedv1.Position{Epoch: e}
		}
		d.place(at)
		if !d.hold {
			d.seal(at)
		}
	}
}

func (d *FakeDispatcher) place(at *feedv1.Position) {
	placed := &feedv1.Placed{Generation: d.generation}
	for source := at.GetRow() / d.Data.PartitionRows; source < d.Data.Partitions(); source++ {
		first, n := d.Data.rowsOf(source)
		address := d.Address
		if d.Place != nil {
			address = d.Place(source)
		}
		placed.Placements = append(placed.Placements, &feedv1.Placement{
			Id:       &workerv1.PartitionID{Epoch: at.GetEpoch(), Source: uint64(source)}, //nolint:gosec // Never negative.
			FirstRow: first, Rows: n, Bytes: n * int64(d.Data.TensorBytes+40), Worker: "worker", Address: address,
		})
	}
	d.tell(&feedv1.AttachResponse{Message: &feedv1.AttachResponse_Placed{Placed: placed}})
}

func (d *FakeDispatcher) seal(at *feedv1.Position) {
	b, err := d.batching(at)
	if err != nil {
		return
	}
	rows := d.Data.NumRows
	for step := at.GetStep(); step < b.NumSteps(rows); step++ {
		first, _, valid := b.Step(rows, step)
		d.tell(&feedv1.AttachResponse{Message: &feedv1.AttachResponse_Sealed{Sealed: &feedv1.Sealed{
			Generation: d.generation, Position: &feedv1.Position{Epoch: at.GetEpoch(), Step: step, Row: first}, Rows: valid,
			Cursor: Cursor(at.GetEpoch(), step),
		}}})
	}
	d.tell(&feedv1.AttachResponse{Message: &feedv1.AttachResponse_EpochEnd{EpochEnd: &feedv1.EpochEnd{
		Generation: d.generation, Epoch: at.GetEpoch(), Rows: rows, Steps: b.NumSteps(rows), Last: at.GetEpoch()+1 == d.Epochs,
	}}})
}

// Cursor is the cursor after a step.
func Cursor(epoch uint64, step int64) string { return fmt.Sprintf("after %d/%d", epoch, step) }

func (d *FakeDispatcher) tell(m *feedv1.AttachResponse) {
	for _, a := range d.streams {
		a.out <- m
	}
}

// Tell sends a message to all sidecars.
func (d *FakeDispatcher) Tell(m *feedv1.AttachResponse) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tell(m)
}

// Fail tells some seats, or all, that the job cannot go on.
func (d *FakeDispatcher) Fail(kind errkind.Kind, text string, seats ...uint32) {
	d.Tell(&feedv1.AttachResponse{Message: &feedv1.AttachResponse_Failed{Failed: &feedv1.Failed{Kind: kind.String(), Text: text, Seats: seats}}})
}

// Break ends all streams with an error.
func (d *FakeDispatcher) Break(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, a := range d.streams {
		a.cancel(err)
		delete(d.streams, name)
	}
	clear(d.wants)
}

// Refuse makes OpenJob fail; nil ends that.
func (d *FakeDispatcher) Refuse(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refuse = err
}

// Hold makes later generations seal nothing.
func (d *FakeDispatcher) Hold(hold bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hold = hold
}

// Mark is what was last heard of a seat.
func (d *FakeDispatcher) Mark(seat uint32) (epoch uint64, step int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.marks[seat].GetEpoch(), d.marks[seat].GetStep()
}

// Generation is the number of generations begun.
func (d *FakeDispatcher) Generation() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.generation
}

// Left is the seats that have left, in order.
func (d *FakeDispatcher) Left() []uint32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]uint32(nil), d.left...)
}

// StopJob ends the job.
func (d *FakeDispatcher) StopJob(_ context.Context, req *feedv1.StopJobRequest) (*feedv1.StopJobResponse, error) {
	d.Break(errkind.Errorf(errkind.Canceled, "job %q was stopped", req.GetJob()))
	return &feedv1.StopJobResponse{}, nil
}

// GetStatus shows one job.
func (d *FakeDispatcher) GetStatus(context.Context, *statusv1.GetStatusRequest) (*statusv1.GetStatusResponse, error) {
	return &statusv1.GetStatusResponse{Version: "test", Jobs: []*statusv1.Job{{Name: "job", State: "running", GlobalBatch: 8}}}, nil
}
