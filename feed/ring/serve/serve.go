// Package serve hands batches to the trainers of a host through shared memory: the ring protocol of docs/formats/ring.md
// over a Unix socket beside that of the Flight service.
package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"

	"github.com/millrace/millrace/feed/session"
	"github.com/millrace/millrace/internal/errkind"
)

// Suffix follows the path of a Flight service's socket in that of its ring socket.
const Suffix = ".ring"

// maxConns bounds the trainers of one socket.
const maxConns = 4096

// Server speaks to trainers. It is safe for concurrent use.
type Server struct {
	table  *session.Table
	logger *slog.Logger
}

// NewServer makes a Server for the sessions of a table. A nil logger is slog's default.
func NewServer(table *session.Table, logger *slog.Logger) *Server {
	if logger == nil {
		logger = slog.Default()
	}
	return &Server{table: table, logger: logger}
}

// Serve accepts trainers until ctx ends or the listener fails, closes the listener, and waits for their connections to
// end. That ctx has ended is no error.
func (s *Server) Serve(ctx context.Context, l *net.UnixListener) error {
	var conns sync.WaitGroup
	defer conns.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	places := make(chan struct{}, maxConns)
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			_ = l.Close()
			return errkind.With(errkind.Unavailable, fmt.Errorf("serving trainers on %s: %w", l.Addr(), err))
		}
		select {
		case places <- struct{}{}:
		default:
			_ = c.Close()
			continue
		}
		conns.Go(func() {
			defer func() { <-places }()
			s.serve(ctx, c)
		})
	}
}

// serve speaks to one trainer to the end.
func (s *Server) serve(ctx context.Context, c *net.UnixConn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	t := &trainer{server: s, conn: c}
	err := t.run(ctx)
	cancel()
	t.pumping.Wait()
	if t.ring != nil {
		t.ring.Close()
	}
	_ = c.Close()
	if err != nil {
		s.logger.Warn("a trainer's ring has ended", "error", err)
	}
}
