package service

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// ServerOptions are those of a gRPC server that encrypts TCP connections, and no others: nobody else can listen on a Unix
// socket. For a nil TLS there are none.
func (t *TLS) ServerOptions() []grpc.ServerOption {
	if t == nil {
		return nil
	}
	return []grpc.ServerOption{grpc.Creds(serverCredentials{insecure.NewCredentials(), credentials.NewTLS(t.Server()), t.logger})}
}

// ServerFor is how a server encrypts a connection that it has accepted; nil: not at all.
func (t *TLS) ServerFor(conn net.Conn) *tls.Config {
	if t == nil || conn.LocalAddr().Network() != "tcp" {
		return nil
	}
	return t.Server()
}

// serverCredentials are those of tls for TCP, those of the embedded ones for the rest.
type serverCredentials struct {
	credentials.TransportCredentials

	tls    credentials.TransportCredentials
	logger *slog.Logger
}

// ServerHandshake begins a connection.
func (c serverCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if conn.LocalAddr().Network() == "tcp" {
		secure, info, err := c.tls.ServerHandshake(conn)
		if err != nil { // whoever is refused hears little of the reason
			c.logger.Warn("a connection was refused", "from", conn.RemoteAddr().String(), "error", err)
		}
		return secure, info, err
	}
	return c.TransportCredentials.ServerHandshake(conn)
}

// Clone is c: nothing of it changes.
func (c serverCredentials) Clone() credentials.TransportCredentials { return c }

// clientCredentials are those of a client. Certificates are read for each connection.
func (t *TLS) clientCredentials() credentials.TransportCredentials {
	if t == nil {
		return plainCredentials{insecure.NewCredentials()}
	}
	return tlsCredentials{credentials.NewTLS(t.Client()), t}
}

type tlsCredentials struct {
	credentials.TransportCredentials

	from *TLS
}

// ClientHandshake begins a connection.
func (c tlsCredentials) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secure, info, err := credentials.NewTLS(c.from.Client()).ClientHandshake(ctx, authority, conn)
	return secure, info, explain(err)
}

// Clone is c: nothing of it changes.
func (c tlsCredentials) Clone() credentials.TransportCredentials { return c }

type plainCredentials struct {
	credentials.TransportCredentials
}

// ClientHandshake begins a connection.
func (c plainCredentials) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	plain, info, err := c.TransportCredentials.ClientHandshake(ctx, authority, conn)
	if err != nil {
		return nil, nil, err
	}
	return &plainConn{Conn: plain}, info, nil
}

// Clone is c: nothing of it changes.
func (c plainCredentials) Clone() credentials.TransportCredentials { return c }
