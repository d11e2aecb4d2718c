package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/millrace/millrace/cmd/millrace/local"
	"github.com/millrace/millrace/internal/service"
)

// localServe is what the local command serves.
type localServe struct {
	localOptions
	socket     string
	listen     []string
	workers    int
	watchStdin bool
	idleExit   time.Duration
}

func (a *app) startLocal(ctx context.Context, g *service.Group, m *monitor, o *localServe) error {
	listeners, addresses, err := o.open(ctx)
	if err != nil {
		return err
	}
	idle := newIdleTimer(o.idleExit, g.Stop)
	inner := 1
	if o.workers > 0 {
		inner = 0
	}
	var l *local.Local
	var done func()
	t, err := a.encryption()
	if err == nil {
		err = t.Serves(listeners...)
	}
	if err == nil {
		l, done, err = a.newLocal(o.localOptions, inner, listeners, t, idle.start)
	}
	if err != nil {
		for _, l := range listeners {
			_ = l.Close()
		}
		return err
	}
	idle.busy = func() bool { return l.HasSessions() }
	m.add(l.Collectors()...)
	g.Go(func(ctx context.Context) error { defer done(); defer idle.stop(); return l.Run(ctx) })
	if err := a.startWorkers(g, m, o, addresses[0]); err != nil {
		return err
	}
	if o.watchStdin {
		watchInput(g, a.in)
	}
	idle.start()
	return a.ready(m, map[string]any{"role": "local", "socket": o.socket, "addresses": addresses, "pid": os.Getpid()})
}

func (o *localServe) open(ctx context.Context) (listeners []net.Listener, addresses []string, err error) {
	addresses = o.listen
	if o.socket != "" {
		path, err := filepath.Abs(o.socket)
		if err != nil {
			return nil, nil, fmt.Errorf("socket %s: %w", o.socket, err)
		}
		o.socket = path
		addresses = append([]string{"unix://" + path}, addresses...)
	}
	for i, address := range addresses {
		l, err := service.Listen(ctx, address)
		if err != nil {
			for _, l := range listeners {
				_ = l.Close()
			}
			return nil, nil, err
		}
		if l.Addr().Network() == "tcp" {
			addresses[i] = l.Addr().String()
		}
		listeners = append(listeners, l)
	}
	return listeners, addresses, nil
}
