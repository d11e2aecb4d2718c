package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
)

// stopServer is how long calls may take to end once a server stops.
const stopServer = 500 * time.Millisecond

// RegisterHealth adds gRPC's health and reflection services to a server.
func RegisterHealth(s *grpc.Server) {
	healthv1.RegisterHealthServer(s, health.NewServer())
	reflection.Register(s)
}

// ServeGRPC serves until ctx ends; running calls then get a moment to end by themselves.
func ServeGRPC(ctx context.Context, s *grpc.Server, l net.Listener) error {
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		timer := time.AfterFunc(stopServer, s.Stop)
		defer timer.Stop()
		s.GracefulStop()
	})
	err := s.Serve(l)
	if !stop() {
		<-stopped
	}
	if err != nil && !errors.Is(err, grpc.ErrServerStopped) && ctx.Err() == nil {
		return fmt.Errorf("serving on %s: %w", l.Addr(), err)
	}
	return nil
}
