package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/millrace/millrace/internal/errkind"
)

// tlsScheme begins addresses that are encrypted, by the authorities of the system where no others are given.
const tlsScheme = "grpc+tls://"

// maxSocketPath is the longest path of a Unix socket on Linux.
const maxSocketPath = 107

// SplitAddress reads "unix:/path", "unix:///path", "grpc://host:port", "grpc+tls://host:port", "tcp://host:port" or
// "host:port".
func SplitAddress(address string) (network, target string, err error) {
	for _, scheme := range []string{"grpc+unix:", "unix:"} {
		if rest, ok := strings.CutPrefix(address, scheme); ok {
			target = strings.TrimPrefix(rest, "//")
			if !filepath.IsAbs(target) {
				return "", "", errkind.Errorf(errkind.Invalid, "address %q: the path of a socket must be absolute, as in unix:///run/millrace.sock", address)
			}
			return "unix", target, nil
		}
	}
	for _, scheme := range []string{tlsScheme, "grpc+tcp://", "grpc://", "tcp://"} {
		address = strings.TrimPrefix(address, scheme)
	}
	if _, _, err := net.SplitHostPort(address); err != nil || strings.Contains(address, "/") {
		return "", "", errkind.Errorf(errkind.Invalid, "address %q is neither unix:///path nor host:port", address)
	}
	return "tcp", address, nil
}

// Listen opens a listener for an address. A socket file that no process serves any more is replaced; its mode is 0600.
// An address that is taken is an error that says so.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	network, target, err := SplitAddress(address)
	if err != nil {
		return nil, err
	}
	if network == "unix" {
		if len(target) > maxSocketPath {
			return nil, errkind.Errorf(errkind.Invalid, "socket path %s has %d bytes; at most %d are allowed, choose a shorter directory", target, len(target), maxSocketPath)
		}
		if err := removeStale(ctx, target); err != nil {
			return nil, err
		}
	}
	var config net.ListenConfig
	l, err := config.Listen(ctx, network, target)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, errkind.Errorf(errkind.Conflict, "%s is in use by another process; stop it or choose another address", address)
	case err != nil:
		return nil, errkind.With(errkind.Unavailable, fmt.Errorf("listening on %s: %w", address, err))
	}
	if network == "unix" {
		if err := os.Chmod(target, 0o600); err != nil {
			_ = l.Close()
			return nil, fmt.Errorf("protecting socket %s: %w", target, err)
		}
	}
	return l, nil
}

// removeStale removes a socket file that was left behind; one that answers is in use.
func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking at %s: %w", path, err)
	}
	if info.Mode()&os.ModeSocket == 0 {
		return errkind.Errorf(errkind.Conflict, "%s exists and is not a socket; choose another path", path)
	}
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err == nil {
		_ = conn.Close()
		return errkind.Errorf(errkind.Conflict, "unix://%s is in use by another process; stop it or choose another address", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing the stale socket %s: %w", path, err)
	}
	return nil
}

// Dial makes a client connection to an address, encrypted by t unless that is nil or the address a Unix socket; it connects
// when it is first used. Further options come after the usual ones.
func Dial(address string, t *TLS, more ...grpc.DialOption) (*grpc.ClientConn, error) {
	network, target, err := SplitAddress(address)
	if err != nil {
		return nil, err
	}
	switch {
	case network == "unix":
		target, t = "unix://"+target, nil
	case t == nil && strings.HasPrefix(address, tlsScheme):
		t = &TLS{logger: slog.Default()}
	}
	options := append([]grpc.DialOption{
		grpc.WithTransportCredentials(t.clientCredentials()),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second, PermitWithoutStream: true}),
	}, more...)
	return grpc.NewClient(target, options...)
}

// ServerOptions are those of every gRPC server: pings of idle clients are welcome, dead ones are found.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
	}
}
