package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/millrace/millrace/cmd/millrace/view"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/grpcerr"
	"github.com/millrace/millrace/internal/service"
	feedv1 "github.com/millrace/millrace/proto/millrace/feed/v1"
	statusv1 "github.com/millrace/millrace/proto/millrace/status/v1"
)

// controlTimeout bounds one question to a dispatcher.
const controlTimeout = 10 * time.Second

func (a *app) statusCmd() *cobra.Command {
	var endpoint string
	c := &cobra.Command{
		Use:   "status",
		Short: "Show jobs, ranks and workers, and who waits for what",
		Args:  usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.control(c.Context(), endpoint, func(ctx context.Context, ask asker) error {
				s, err := ask.status.GetStatus(ctx, &statusv1.GetStatusRequest{})
				if err != nil {
					return err
				}
				if a.json {
					text, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(s)
					if err == nil {
						_, err = fmt.Fprintln(a.out, string(text))
					}
					return err
				}
				return view.Status(a.out, s)
			})
		},
	}
	endpointFlag(c, &endpoint)
	return c
}

func (a *app) stopCmd() *cobra.Command {
	var endpoint string
	c := &cobra.Command{
		Use:   "stop JOB",
		Short: "End a job and free what it holds",
		Args:  usage(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			return a.control(c.Context(), endpoint, func(ctx context.Context, ask asker) error {
				_, err := ask.feed.StopJob(ctx, &feedv1.StopJobRequest{Job: args[0]})
				return err
			})
		},
	}
	endpointFlag(c, &endpoint)
	return c
}

func endpointFlag(c *cobra.Command, endpoint *string) {
	c.Flags().StringVar(endpoint, "endpoint", "", "dispatcher or millrace local: unix:///path or host:port")
}

// asker asks a dispatcher.
type asker struct {
	status statusv1.StatusServiceClient
	feed   feedv1.FeedServiceClient
}

// control asks the dispatcher at endpoint something.
func (a *app) control(ctx context.Context, endpoint string, ask func(context.Context, asker) error) error {
	if endpoint == "" {
		return usageError{errkind.Errorf(errkind.Invalid, "give the dispatcher's address with --endpoint or MILLRACE_ENDPOINT")}
	}
	conn, err := service.Dial(endpoint)
	if err != nil {
		return usageError{err}
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	err = ask(ctx, asker{status: statusv1.NewStatusServiceClient(conn), feed: feedv1.NewFeedServiceClient(conn)})
	if status.Code(err) == codes.Unavailable {
		return errkind.Errorf(errkind.Unavailable, "nothing answers at %s; is it running?", endpoint)
	}
	return grpcerr.FromStatus(err)
}
