package local

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/millrace/millrace/internal/service"
)

// stopGrace is how long each part may take to stop.
const stopGrace = time.Second

// Run serves until ctx ends or a part fails. Trainers are told first, then workers, then the dispatcher stops.
func (l *Local) Run(ctx context.Context) error {
	outer := service.NewGroup(ctx)
	core := service.NewGroup(context.WithoutCancel(ctx)) // outlives those who depend on it
	server := grpc.NewServer(service.ServerOptions()...)
	l.dispatcher.Register(server)
	core.Go(l.dispatcher.Run)
	core.Go(func(ctx context.Context) error { return service.ServeGRPC(ctx, server, l.inner) })
	for _, w := range l.workers {
		outer.Go(w.Run)
	}
	outer.Go(l.sidecar.Run)
	err := outer.Wait(2 * stopGrace)
	if l.cfg.Python != nil {
		l.cfg.Python.Close()
	}
	if l.cfg.Isolated != nil {
		l.cfg.Isolated.Close()
	}
	core.Stop()
	_ = l.control.Close()
	if coreErr := core.Wait(stopGrace); err == nil {
		err = coreErr
	}
	for _, p := range l.pools {
		if poolErr := p.Close(); err == nil {
			err = poolErr
		}
	}
	return err
}

// dial connects to a listener in memory.
func dial(l *bufconn.Listener, more ...grpc.DialOption) (*grpc.ClientConn, error) {
	options := append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }),
	}, more...)
	conn, err := grpc.NewClient("passthrough:memory", options...)
	if err != nil {
		return nil, fmt.Errorf("connecting parts of this process: %w", err)
	}
	return conn, nil
}
