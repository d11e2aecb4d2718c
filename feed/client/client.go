// Package client reads the batches of a rank from a sidecar, in Go: the session protocol of docs/formats/session.md
// from the trainer's side. The drain command, benchmarks and tests use it; trainers use the Python client.
package client

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/grpcerr"
)

// maxMessage bounds a batch, bytes.
const maxMessage = 1 << 30

// Settings say how the stream is dealt.
type Settings struct {
	Seed         uint64 `json:"seed"`
	Shuffle      string `json:"shuffle"`
	GlobalBatch  int64  `json:"global_batch"`
	Accumulation int64  `json:"accumulation"`
	Tail         string `json:"tail"`
	OnError      string `json:"on_error"`
	// MaxBad bad samples in a row and MaxBadFraction of an epoch's samples are put up with; 0: the defaults.
	MaxBad         int64   `json:"max_bad,omitempty"`
	MaxBadFraction float64 `json:"max_bad_fraction,omitempty"`
	Prefetch       int64   `json:"prefetch"`
	Epochs         uint64  `json:"epochs"`
}

// OpenRequest joins a job for one rank.
type OpenRequest struct {
	Version            int      `json:"version"`
	Job                string   `json:"job"`
	Recipe             string   `json:"recipe"`
	Settings           Settings `json:"settings"`
	Rank               int      `json:"rank"`
	WorldSize          int      `json:"world_size"`
	Cursor             string   `json:"cursor"`
	ContinueOnMismatch bool     `json:"continue_on_mismatch"`
	Attempt            uint64   `json:"attempt"`
}

// Position is the place of a global batch in the stream.
type Position struct {
	Epoch uint64 `json:"epoch"`
	Step  uint64 `json:"step"`
	Row   uint64 `json:"row"`
}

// Column describes one column of a batch; a nil dimension differs from row to row.
type Column struct {
	Name  string   `json:"name"`
	DType string   `json:"dtype"`
	Shape []*int64 `json:"shape"`
}

// Info describes an open session.
type Info struct {
	Session      string   `json:"session"`
	Job          string   `json:"job"`
	Rows         int64    `json:"rows"`
	Steps        int64    `json:"steps"`
	BatchRows    int64    `json:"batch_rows"`
	Samples      int64    `json:"samples"`
	Start        Position `json:"start"`
	OrderDigest  string   `json:"order_digest"`
	PixelsDigest string   `json:"pixels_digest"`
	Manifest     string   `json:"manifest"`
	Columns      []Column `json:"columns"`
}

// Session is one rank of a job.
type Session struct {
	Info Info
	conn flight.FlightServiceClient
}

// DialOptions are what a connection to a sidecar needs: batches are larger than gRPC's default limit.
func DialOptions() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage))}
}

// Open joins a job through the sidecar at the other end of conn.
func Open(ctx context.Context, conn grpc.ClientConnInterface, req OpenRequest) (*Session, error) {
	req.Version = 1
	s := &Session{conn: flight.NewFlightServiceClient(conn)}
	if err := s.act(ctx, "millrace.open", req, &s.Info); err != nil {
		return nil, err
	}
	return s, nil
}

// Close leaves the job.
func (s *Session) Close(ctx context.Context) error {
	return s.act(ctx, "millrace.close", map[string]string{"session": s.Info.Session}, nil)
}

// act calls an action whose request and answer are JSON.
func (s *Session) act(ctx context.Context, name string, req, resp any) error {
	body, err := json.Marshal(req)
	if err != nil {
		return fmt.Errorf("encoding %s: %w", name, err)
	}
	stream, err := s.conn.DoAction(ctx, &flight.Action{Type: name, Body: body})
	if err != nil {
		return grpcerr.FromStatus(err)
	}
	result, err := stream.Recv()
	if err != nil {
		return grpcerr.FromStatus(err)
	}
	if resp == nil {
		return nil
	}
	decoder := json.NewDecoder(bytes.NewReader(result.GetBody()))
	if err := decoder.Decode(resp); err != nil {
		return errkind.Errorf(errkind.Internal, "the answer to %s is not what was expected: %w", name, err)
	}
	return nil
}

// Batch is one batch of a rank. Record is valid until the callback returns; Retain it to keep it.
type Batch struct {
	Meta   Meta
	Record arrow.RecordBatch
}

// Read reads the rest of an epoch from at on and calls fn for each batch. A batch counts as consumed when fn has
// returned. An error of fn ends the stream and is returned.
func (s *Session) Read(ctx context.Context, at Position, fn func(Batch) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	command, err := json.Marshal(struct {
		Session string `json:"session"`
		Position
	}{s.Info.Session, at})
	if err != nil {
		return fmt.Errorf("encoding a position: %w", err)
	}
	stream, err := s.conn.DoExchange(ctx, grpc.MaxCallRecvMsgSize(maxMessage))
	if err != nil {
		return grpcerr.FromStatus(err)
	}
	if err := stream.Send(&flight.FlightData{
		FlightDescriptor: &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: command},
	}); err != nil {
		return grpcerr.FromStatus(streamError(stream, err))
	}
	reader, err := flight.NewRecordReader(stream, ipc.WithAllocator(memory.DefaultAllocator))
	if err != nil {
		return grpcerr.FromStatus(err)
	}
	defer reader.Release()
	for n := uint64(1); reader.Next(); n++ {
		meta, err := ParseMeta(reader.LatestAppMetadata())
		if err != nil {
			return err
		}
		if err := fn(Batch{Meta: meta, Record: reader.RecordBatch()}); err != nil {
			return err
		}
		ack := binary.LittleEndian.AppendUint64(nil, n)
		if err := stream.Send(&flight.FlightData{AppMetadata: ack}); err != nil && !errors.Is(err, io.EOF) {
			return grpcerr.FromStatus(streamError(stream, err))
		}
	}
	if err := reader.Err(); err != nil && !errors.Is(err, io.EOF) {
		return grpcerr.FromStatus(err)
	}
	return nil
}

// streamError is the status of a stream whose Send failed with io.EOF.
func streamError(stream flight.FlightService_DoExchangeClient, err error) error {
	if errors.Is(err, io.EOF) {
		if _, recvErr := stream.Recv(); recvErr != nil {
			return recvErr
		}
	}
	return err
}

// DataBytes is the size of the buffers of a batch.
func DataBytes(rec arrow.RecordBatch) int64 {
	var total int64
	for _, c := range rec.Columns() {
		total += int64(c.Data().SizeInBytes()) //nolint:gosec // Sizes fit.
	}
	return total
}
