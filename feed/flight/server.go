package flight

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/stats"

	"github.com/millrace/millrace/feed/session"
	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/grpcerr"
	"github.com/millrace/millrace/preprocess/partition/flightdata"
	statusv1 "github.com/millrace/millrace/proto/millrace/status/v1"
)

const (
	// flightService is the name by which health checks can ask for the Flight service alone.
	flightService = "arrow.flight.protocol.FlightService"
	// maxReceive bounds what a client sends: actions and acknowledgements.
	maxReceive = 8 << 20
	// maxStreams bounds the calls of one connection.
	maxStreams = 256
	// statusTimeout bounds the question to the dispatcher.
	statusTimeout = 2 * time.Second
)

// Config is what a Server needs.
type Config struct {
	// Table has the sessions.
	Table *session.Table
	// Status asks the dispatcher for its snapshot.
	Status statusv1.StatusServiceClient
	// Logger; nil: slog's default.
	Logger *slog.Logger
}

// Server is the Flight service of a sidecar.
type Server struct {
	flight.BaseFlightServer

	cfg     Config
	ring    atomic.Bool // trainers of this host can have their batches through shared memory
	health  *health.Server
	streams streams
}

// NewServer makes a Server.
func NewServer(cfg Config) (*Server, error) {
	if cfg.Table == nil || cfg.Status == nil {
		return nil, errkind.Errorf(errkind.Internal, "flight: Table and Status must be set")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	s := &Server{cfg: cfg, health: health.NewServer()}
	s.health.SetServingStatus(flightService, healthpb.HealthCheckResponse_SERVING)
	return s, nil
}

// OfferRing tells clients that beside each Unix socket is one of the ring protocol.
func (s *Server) OfferRing() { s.ring.Store(true) }

// GRPC makes a gRPC server with the service, health and reflection. options are added to its own, such as those for
// encryption.
func (s *Server) GRPC(options ...grpc.ServerOption) *grpc.Server {
	own := append(flightdata.ServerOptions(),
		grpc.StatsHandler(connections{table: s.cfg.Table}),
		grpc.MaxRecvMsgSize(maxReceive),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.ChainUnaryInterceptor(s.guardUnary),
		grpc.ChainStreamInterceptor(s.guardStream),
	)
	g := grpc.NewServer(append(own, options...)...)
	flight.RegisterFlightServiceServer(g, s)
	healthpb.RegisterHealthServer(g, s.health)
	reflection.Register(g)
	return g
}

// Shutdown tells health checks that the service is about to end.
func (s *Server) Shutdown() { s.health.Shutdown() }

func (s *Server) guardUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (resp any, err error) {
	defer s.catch(info.FullMethod, &err)
	resp, err = next(ctx, req)
	return resp, grpcerr.ToStatus(err)
}

func (s *Server) guardStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	defer s.catch(info.FullMethod, &err)
	return grpcerr.ToStatus(next(srv, stream))
}

// catch turns a fault in one call into its error: it must not end the sessions of all ranks.
func (s *Server) catch(method string, err *error) {
	if p := recover(); p != nil {
		s.cfg.Logger.Error("call failed with a fault in the program", "method", method, "fault", p)
		*err = grpcerr.ToStatus(errkind.Errorf(errkind.Internal, "%s: a fault in the sidecar: %v", method, p))
	}
}

// connections tells the table when a client's connection has ended.
type connections struct{ table *session.Table }

var _ stats.Handler = connections{}

type connectionKey struct{}

// TagConn gives every connection an identity.
func (connections) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	return context.WithValue(ctx, connectionKey{}, session.NewConnection())
}

// HandleConn hears of ends of connections.
func (c connections) HandleConn(ctx context.Context, event stats.ConnStats) {
	if _, ok := event.(*stats.ConnEnd); ok {
		c.table.Disconnected(connection(ctx))
	}
}

// TagRPC does nothing.
func (connections) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC does nothing.
func (connections) HandleRPC(context.Context, stats.RPCStats) {}

// connection is the identity of the connection that a call came by.
func connection(ctx context.Context) *session.Connection {
	c, _ := ctx.Value(connectionKey{}).(*session.Connection)
	return c
}
