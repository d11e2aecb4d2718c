package feed

import (
	"context"
	"net"

	"github.com/millrace/millrace/internal/service"
)

// Open makes a Sidecar that speaks to the dispatcher at one of some addresses, separated by
// commas, and listens at others, encrypted by t unless that is nil:
// it fills in cfg.Dispatcher, cfg.Listeners and what they need. done closes what it opened, after Run has ended. Addresses
// are those it listens at in the end.
func Open(ctx context.Context, dispatcher string, listen []string, t *service.TLS, cfg Config) (s *Sidecar, addresses []string, done func(), err error) {
	control, err := service.DialPeers(dispatcher, t)
	if err != nil {
		return nil, nil, nil, err
	}
	var listeners []net.Listener
	done = func() {
		_ = control.Close()
		for _, l := range listeners {
			_ = l.Close()
		}
	}
	for _, address := range listen {
		l, err := service.Listen(ctx, address)
		if err != nil {
			done()
			return nil, nil, nil, err
		}
		if l.Addr().Network() == "tcp" {
			address = l.Addr().String()
		}
		listeners, addresses = append(listeners, l), append(addresses, address)
	}
	if err := t.Serves(listeners...); err != nil {
		done()
		return nil, nil, nil, err
	}
	cfg.Dispatcher, cfg.Listeners, cfg.ServerOptions = control, listeners, append(cfg.ServerOptions, t.ServerOptions()...)
	if t != nil {
		cfg.WorkerTLS = t.Client
	}
	if s, err = New(cfg); err != nil {
		done()
		return nil, nil, nil, err
	}
	return s, addresses, done, nil
}
