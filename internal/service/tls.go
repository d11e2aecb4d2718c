package service

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/errkind"
)

// TLSFiles are the flags of encrypted connections.
type TLSFiles struct {
	// Cert and Key are PEM files with this process's certificate, those of intermediate authorities after it, and its key.
	Cert, Key string
	// CA is a PEM file with the authorities whose certificates the other side must show.
	CA string
	// Name is what certificates of servers must be for, instead of the host in their address.
	Name string
}

// Register adds the flags to a set.
func (f *TLSFiles) Register(flags *pflag.FlagSet) {
	flags.StringVar(&f.Cert, "tls-cert", "", "PEM file with the certificate of this process; TCP connections are encrypted then")
	flags.StringVar(&f.Key, "tls-key", "", "PEM file with the key of --tls-cert")
	flags.StringVar(&f.CA, "tls-ca", "", "PEM file with the authorities that must have signed the certificate of the other side")
	flags.StringVar(&f.Name, "tls-name", "", "name that certificates of servers must be for (default: the host in their address)")
}

// Args are the flags as another process of this program takes them.
func (f *TLSFiles) Args() []string {
	return []string{"--tls-cert", f.Cert, "--tls-key", f.Key, "--tls-ca", f.CA, "--tls-name", f.Name}
}

// TLS encrypts TCP connections of this process, as server and as client. Its files are read again when they have changed, so
// that certificates can be renewed under it. A nil TLS encrypts nothing. It is safe for concurrent use.
type TLS struct {
	files  TLSFiles
	logger *slog.Logger

	mu     sync.Mutex
	stamps [3]stamp // of the files that were read
	told   [3]stamp // of the files that an error was logged of
	cert   *tls.Certificate
	pool   *x509.CertPool
}

// stamp tells whether a file has changed.
type stamp struct {
	time time.Time
	size int64
}

// Open reads the files; without any it is nil. A nil logger is slog's default.
func (f *TLSFiles) Open(logger *slog.Logger) (*TLS, error) {
	if *f == (TLSFiles{}) {
		return nil, nil
	}
	if (f.Cert == "") != (f.Key == "") {
		return nil, errkind.Errorf(errkind.Invalid, "--tls-cert and --tls-key belong together; give both")
	}
	if logger == nil {
		logger = slog.Default()
	}
	t := &TLS{files: *f, logger: logger}
	stamps, err := t.look()
	if err == nil {
		err = t.read(stamps)
	}
	if err != nil {
		return nil, errkind.With(errkind.Invalid, err)
	}
	return t, nil
}

// look stamps the files.
func (t *TLS) look() (stamps [3]stamp, err error) {
	for i, name := range []string{t.files.Cert, t.files.Key, t.files.CA} {
		if name == "" {
			continue
		}
		info, err := os.Stat(name)
		if err != nil {
			return stamps, fmt.Errorf("certificates of TLS: %w", err)
		}
		stamps[i] = stamp{info.ModTime(), info.Size()}
	}
	return stamps, nil
}

// read reads the files, which have these stamps.
func (t *TLS) read(stamps [3]stamp) error {
	var cert *tls.Certificate
	if t.files.Cert != "" {
		pair, err := tls.LoadX509KeyPair(t.files.Cert, t.files.Key)
		if err != nil {
			return fmt.Errorf("reading certificate %s and key %s: %w", t.files.Cert, t.files.Key, err)
		}
		cert = &pair
	}
	var pool *x509.CertPool
	if t.files.CA != "" {
		text, err := os.ReadFile(t.files.CA)
		if err != nil {
			return fmt.Errorf("reading authorities: %w", err)
		}
		pool = x509.NewCertPool()
		if !pool.AppendCertsFromPEM(text) {
			return errkind.Errorf(errkind.Invalid, "%s holds no certificate in PEM", t.files.CA)
		}
	}
	t.stamps, t.cert, t.pool = stamps, cert, pool
	return nil
}

// current is what the files hold now. Files that cannot be read, as when they are being replaced, leave what there was.
func (t *TLS) current() (*tls.Certificate, *x509.CertPool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	stamps, err := t.look()
	if err == nil && stamps != t.stamps {
		err = t.read(stamps)
	}
	if err != nil && stamps != t.told {
		t.logger.Warn("certificates are used as they were: the files cannot be read", "error", err)
		t.told = stamps
	}
	return t.cert, t.pool
}

// Serves says whether t has what a server of these listeners needs, as an error of kind Invalid.
func (t *TLS) Serves(listeners ...net.Listener) error {
	tcp := slices.ContainsFunc(listeners, func(l net.Listener) bool { return l.Addr().Network() == "tcp" })
	if t != nil && t.files.Cert == "" && tcp {
		return errkind.Errorf(errkind.Invalid, "a server that encrypts needs a certificate; give --tls-cert and --tls-key")
	}
	return nil
}

// Server is how a server encrypts; nil: not at all. With authorities it demands a certificate of theirs.
func (t *TLS) Server() *tls.Config {
	if t == nil {
		return nil
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		cert, pool := t.current()
		if cert == nil {
			return nil, errkind.Errorf(errkind.Internal, "a server without a certificate")
		}
		c := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*cert}, NextProtos: []string{"h2"}}
		if pool != nil {
			c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, pool
		}
		return c, nil
	}}
}

// Client is how a client encrypts a connection that it makes now; nil: not at all. Without authorities those of the system
// count.
func (t *TLS) Client() *tls.Config {
	if t == nil {
		return nil
	}
	cert, pool := t.current()
	c := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool, ServerName: t.files.Name, NextProtos: []string{"h2"}}
	if cert != nil {
		c.Certificates = []tls.Certificate{*cert}
	}
	return c
}

// explain says of an error of a handshake what to do about it.
func explain(err error) error {
	if err == nil {
		return nil
	}
	if _, plain := errors.AsType[tls.RecordHeaderError](err); plain {
		return errors.New("the other side does not encrypt, and this one is set to; give it --tls-cert and --tls-key")
	}
	return fmt.Errorf("handshake of TLS: %w", err)
}

// plainConn is a connection without TLS that notices when the other side wants it.
type plainConn struct {
	net.Conn

	heard bool
}

// alertRecord is the first byte of what a server of TLS may say to a client that does not speak it; most just hang up.
const alertRecord = 0x15

// Read looks at the first byte.
func (c *plainConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.heard {
		return n, err
	}
	c.heard = n > 0
	if n > 0 && b[0] == alertRecord || n == 0 && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)) {
		return 0, errors.New("the other side hung up at once; if it encrypts, give --tls-ca, and --tls-cert and --tls-key if it asks for a certificate")
	}
	return n, err
}
