package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/grpcerr"
	"github.com/millrace/millrace/internal/service"
	feedv1 "github.com/millrace/millrace/proto/millrace/feed/v1"
	statusv1 "github.com/millrace/millrace/proto/millrace/status/v1"
)

// controlTimeout bounds one question to a dispatcher.
const controlTimeout = 10 * time.Second

// asker asks a dispatcher, or a sidecar, which passes questions on.
type asker struct{ conn grpc.ClientConnInterface }

// control asks whoever answers at endpoint something.
func (a *app) control(ctx context.Context, endpoint string, ask func(context.Context, asker) error) error {
	if endpoint == "" {
		return usageError{errkind.Errorf(errkind.Invalid, "give an address with --endpoint or MILLRACE_ENDPOINT")}
	}
	t, err := a.encryption()
	if err != nil {
		return err
	}
	conn, err := service.Dial(endpoint, t)
	if err != nil {
		return usageError{err}
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	err = ask(ctx, asker{conn})
	if dead(conn) {
		return noAnswer(endpoint, err)
	}
	return grpcerr.FromStatus(err)
}

// snapshot is the dispatcher's view of jobs, ranks and workers.
func (k asker) snapshot(ctx context.Context) (*statusv1.GetStatusResponse, error) {
	s, err := statusv1.NewStatusServiceClient(k.conn).GetStatus(ctx, &statusv1.GetStatusRequest{})
	if status.Code(err) != codes.Unimplemented {
		return s, err
	}
	body, err := k.action(ctx, "millrace.status", struct{}{})
	if status.Code(err) == codes.Unavailable && !dead(k.conn) {
		return nil, errkind.Errorf(errkind.Unavailable, "the sidecar cannot reach its dispatcher; is that running?")
	}
	if err != nil {
		return nil, err
	}
	s = &statusv1.GetStatusResponse{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(body, s); err != nil {
		return nil, errkind.Errorf(errkind.Internal, "reading the sidecar's status: %w", err)
	}
	return s, nil
}

// job describes a job; with a source partition, also what is recorded of its outputs.
func (k asker) job(ctx context.Context, name, partition string) (*statusv1.GetJobResponse, error) {
	j, err := statusv1.NewStatusServiceClient(k.conn).GetJob(ctx, &statusv1.GetJobRequest{Job: name, Partition: partition})
	if status.Code(err) != codes.Unimplemented {
		return j, err
	}
	body, err := k.action(ctx, "millrace.job", map[string]string{"job": name, "partition": partition})
	if err != nil {
		return nil, err
	}
	j = &statusv1.GetJobResponse{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(body, j); err != nil {
		return nil, errkind.Errorf(errkind.Internal, "reading a sidecar's description of a job: %w", err)
	}
	return j, nil
}

// stopJob ends a job.
func (k asker) stopJob(ctx context.Context, job string) error {
	_, err := feedv1.NewFeedServiceClient(k.conn).StopJob(ctx, &feedv1.StopJobRequest{Job: job})
	if status.Code(err) != codes.Unimplemented {
		return err
	}
	_, err = k.action(ctx, "millrace.stop", map[string]string{"job": job})
	return err
}

// action calls a sidecar's Flight action; its request and answer are JSON.
func (k asker) action(ctx context.Context, name string, request any) ([]byte, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("encoding %s: %w", name, err)
	}
	stream, err := flight.NewFlightServiceClient(k.conn).DoAction(ctx, &flight.Action{Type: name, Body: body})
	if err != nil {
		return nil, err
	}
	result, err := stream.Recv()
	return result.GetBody(), err
}
