package transport

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// certificateFile is where a server leaves the certificate that it made for itself.
const certificateFile = "server.pem"

// encrypted are the options of a server with config, which may be nil.
func encrypted(config *tls.Config) []grpc.ServerOption {
	if config == nil {
		return nil
	}
	return []grpc.ServerOption{grpc.Creds(credentials.NewTLS(config))}
}

// encrypts says whether connections are encrypted: those of Unix sockets never are.
func (s Side) encrypts() bool { return s.TLS && s.Network != "unix" }

// serverTLS is for a server with a certificate made now; nil without TLS.
func (s Side) serverTLS() (*tls.Config, error) {
	if !s.encrypts() {
		return nil, nil //nolint:nilnil // Plain text needs no configuration.
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("making a certificate: %w", err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(filepath.Join(s.Dir, certificateFile), text, 0o600); err != nil {
		return nil, fmt.Errorf("writing a certificate: %w", err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}, nil
}

// clientTLS trusts the server's certificate; nil without TLS.
func (s Side) clientTLS() (*tls.Config, error) {
	if !s.encrypts() {
		return nil, nil //nolint:nilnil // Plain text needs no configuration.
	}
	text, err := os.ReadFile(filepath.Join(s.Dir, certificateFile))
	if err != nil {
		return nil, fmt.Errorf("reading the server's certificate: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: "localhost"}, nil
}
