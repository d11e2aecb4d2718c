package feed

import (
	"context"
	"net"

	"github.com/millrace/millrace/feed/ring/serve"
	"github.com/millrace/millrace/internal/service"
)

// openRings opens a ring socket beside each Unix socket for trainers. Where that can't be, batches go by Flight.
func openRings(ctx context.Context, cfg *Config) []*net.UnixListener {
	if cfg.NoRing {
		return nil
	}
	var rings []*net.UnixListener
	for _, l := range cfg.Listeners {
		address, ok := l.Addr().(*net.UnixAddr)
		if !ok || address.Name == "" || address.Name[0] == '@' {
			continue
		}
		opened, err := service.Listen(ctx, "unix://"+address.Name+serve.Suffix)
		if err != nil {
			cfg.Logger.Warn("batches go by Flight alone: there is no socket for shared memory", "error", err)
			continue
		}
		if ring, ok := opened.(*net.UnixListener); ok {
			rings = append(rings, ring)
		}
	}
	return rings
}
