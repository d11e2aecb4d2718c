package session

import (
	"bytes"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"

	"github.com/millrace/millrace/feed/batch"
	"github.com/millrace/millrace/feed/session/deal"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/partition"
	feedv1 "github.com/millrace/millrace/proto/millrace/feed/v1"
)

func (r *OpenRequest) toWire() *feedv1.OpenJobRequest {
	s := r.Settings
	return &feedv1.OpenJobRequest{
		Job: r.Job, Recipe: r.Recipe,
		Settings: &feedv1.Settings{
			Seed: s.Seed, Shuffle: s.Shuffle, GlobalBatch: s.GlobalBatch, Tail: s.Tail, Accumulation: int64(s.Accumulation),
			OnError: s.OnError, Prefetch: int64(s.Prefetch), Epochs: s.Epochs,
			MaxBad: s.MaxBad, MaxBadFraction: s.MaxBadFraction,
		},
		Rank: uint32(r.Rank), WorldSize: uint32(r.WorldSize), Peer: uint32(r.Peer), Peers: uint32(r.Peers), //nolint:gosec // All were validated.
		Cursor: r.Cursor, ContinueOnMismatch: r.ContinueOnMismatch, Attempt: r.Attempt,
	}
}

// describe makes the description and the layout of a job of the dispatcher's answer.
func describe(req *OpenRequest, resp *feedv1.OpenJobResponse) (Description, *batch.Layout, error) {
	schema, err := readSchema(resp.GetSchema())
	if err != nil {
		return Description{}, nil, err
	}
	layout, err := batch.NewLayout(schema)
	if err != nil {
		return Description{}, nil, err
	}
	dealing, err := req.dealing(resp.GetRows())
	if err != nil {
		return Description{}, nil, err
	}
	return Description{
		Name: req.Job, Rows: resp.GetRows(), Steps: resp.GetSteps(), Samples: resp.GetSamples(), Dealing: dealing,
		OrderDigest: resp.GetOrderDigest(), PixelsDigest: resp.GetPixelsDigest(), Manifest: resp.GetManifest(),
		Outputs: layout.Outputs(), Schema: layout.Schema(),
	}, layout, nil
}

func readSchema(raw []byte) (schema *arrow.Schema, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = errkind.Errorf(errkind.Internal, "reading the schema that the dispatcher sent: %v", p)
		}
	}()
	r, err := ipc.NewReader(bytes.NewReader(raw))
	if err != nil {
		return nil, errkind.With(errkind.Internal, fmt.Errorf("reading the schema that the dispatcher sent: %w", err))
	}
	defer r.Release()
	return r.Schema(), nil
}

func positionFromWire(p *feedv1.Position) deal.Position {
	return deal.Position{Epoch: p.GetEpoch(), Step: p.GetStep(), Row: p.GetRow()}
}

func placementsFromWire(places []*feedv1.Placement) ([]deal.Placement, error) {
	out := make([]deal.Placement, len(places))
	for i, p := range places {
		id, err := partition.IDFromWire(p.GetId())
		if err != nil {
			return nil, err
		}
		if p.GetFirstRow() < 0 || p.GetRows() < 0 || p.GetBytes() < 0 {
			return nil, errkind.Errorf(errkind.Internal, "partition %s was placed with %d rows of %d bytes at row %d", id, p.GetRows(), p.GetBytes(), p.GetFirstRow())
		}
		out[i] = deal.Placement{
			ID: id, FirstRow: p.GetFirstRow(), NumRows: p.GetRows(), Bytes: p.GetBytes(), Attempt: p.GetAttempt(),
			Worker: p.GetWorker(), Address: p.GetAddress(),
		}
	}
	return out, nil
}

func helloMessage(sidecar, job string, term uint64) *feedv1.AttachRequest {
	return &feedv1.AttachRequest{Message: &feedv1.AttachRequest_Hello{Hello: &feedv1.Hello{Sidecar: sidecar, Job: job, Term: term}}}
}

func seekMessage(s deal.Seek, attempt uint64) *feedv1.AttachRequest {
	p := s.Position
	return &feedv1.AttachRequest{Message: &feedv1.AttachRequest_Seek{Seek: &feedv1.Seek{
		Seat: uint32(s.Seat), Position: &feedv1.Position{Epoch: p.Epoch, Step: p.Step, Row: p.Row}, Attempt: attempt, //nolint:gosec // Seats were validated.
		Generation: s.Generation, Cursor: s.Cursor,
	}}}
}

func markMessage(m deal.Mark) *feedv1.AttachRequest {
	return &feedv1.AttachRequest{Message: &feedv1.AttachRequest_Consumed{Consumed: &feedv1.Consumed{
		Seat: uint32(m.Seat), Generation: m.Generation, Epoch: m.Epoch, Step: m.Step, //nolint:gosec // Seats were validated.
	}}}
}

func leaveMessage(seat int) *feedv1.AttachRequest {
	return &feedv1.AttachRequest{Message: &feedv1.AttachRequest_Leave{Leave: &feedv1.Leave{Seat: uint32(seat)}}} //nolint:gosec // Seats were validated.
}

// failure is the error that the dispatcher sent.
func failure(f *feedv1.Failed) error {
	for _, k := range []errkind.Kind{
		errkind.Invalid, errkind.NotFound, errkind.Conflict, errkind.Unavailable, errkind.BadData, errkind.Exhausted, errkind.Internal, errkind.Canceled,
	} {
		if k.String() == f.GetKind() {
			return errkind.Errorf(k, "%s", f.GetText())
		}
	}
	return errkind.Errorf(errkind.Internal, "%s", f.GetText())
}
