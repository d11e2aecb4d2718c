package main

import (
	"context"
	"net"

	"github.com/millrace/millrace/internal/service"
)

// encryption is how TCP connections are encrypted; nil: not at all.
func (a *app) encryption() (*service.TLS, error) {
	logger, err := a.logger()
	if err != nil {
		return nil, err
	}
	t, err := a.tls.Open(logger)
	if err != nil {
		return nil, usageError{err}
	}
	return t, nil
}

// listenEncrypted opens a listener of a server that t encrypts.
func listenEncrypted(ctx context.Context, t *service.TLS, address string) (net.Listener, error) {
	l, err := service.Listen(ctx, address)
	if err != nil {
		return nil, err
	}
	if err := t.Serves(l); err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}
