package feed

import (
	"context"
	"net"

	"github.com/millrace/millrace/internal/service"
)

// Open makes a Sidecar that speaks to the dispatcher at an address and listens at others: it fills in cfg.Dispatcher and
// cfg.Listeners. done closes what it opened, after Run has ended. Addresses are those it listens at in the end.
func Open(ctx context.Context, dispatcher string, listen []string, cfg Config) (s *Sidecar, addresses []string, done func(), err error) {
	control, err := service.Dial(dispatcher)
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
	cfg.Dispatcher, cfg.Listeners = control, listeners
	if s, err = New(cfg); err != nil {
		done()
		return nil, nil, nil, err
	}
	return s, addresses, done, nil
}
