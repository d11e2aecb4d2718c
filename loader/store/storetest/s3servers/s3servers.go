// Package s3servers starts real servers that speak S3 on the loopback address, for tests and benchmarks.
package s3servers

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/errkind"
)

// AccessKey and SecretKey are the credentials of all servers started here.
const (
	AccessKey = "millrace"
	SecretKey = "millrace-secret"
)

// ETag is the version of files that were not written through the server.
const ETag = "laid-down"

// Server is a running server.
type Server struct {
	// Endpoint is its URL.
	Endpoint string
	// PID is its process.
	PID int

	cmd    *exec.Cmd
	output *bytes.Buffer
	done   chan struct{}
}

const (
	startTime = 30 * time.Second
	startPoll = 10 * time.Millisecond
)

// Versity starts versitygw, the program at path, over root: its folders are buckets and its files objects. What it notes
// about them lies in side. It listens at address, or at a free port where that is empty.
func Versity(ctx context.Context, path, root, side, address string) (*Server, error) {
	return launch(ctx, address, path, func(address string) []string {
		return []string{
			"--access", AccessKey, "--secret", SecretKey, "--port", address, "--keep-alive", "--quiet",
			"posix", "--io-buffer-size", "65536", "--sidecar", side, "--default-etag", ETag, root,
		}
	})
}

// GoFakeS3 starts gofakes3, the program at path, over memory, with one empty bucket.
func GoFakeS3(ctx context.Context, path, bucket string) (*Server, error) {
	return launch(ctx, "", path, func(address string) []string {
		return []string{"-host", address, "-backend", "memory", "-initialbucket", bucket}
	})
}

func launch(ctx context.Context, address, path string, args func(address string) []string) (*Server, error) {
	if address == "" {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("looking for a free port: %w", err)
		}
		address = l.Addr().String()
		if err := l.Close(); err != nil {
			return nil, fmt.Errorf("looking for a free port: %w", err)
		}
	}
	s := &Server{Endpoint: "http://" + address, output: &bytes.Buffer{}, done: make(chan struct{})}
	s.cmd = exec.CommandContext(ctx, path, args(address)...) //nolint:gosec // the caller names the server
	s.cmd.Stdout, s.cmd.Stderr = s.output, s.output
	if err := s.cmd.Start(); err != nil {
		return nil, errkind.Errorf(errkind.NotFound, "starting %s: %w", path, err)
	}
	s.PID = s.cmd.Process.Pid
	go func() {
		defer close(s.done)
		_ = s.cmd.Wait() // ended by Stop
	}()
	if err := s.ready(ctx); err != nil {
		s.Stop()
		return nil, fmt.Errorf("starting %s: %w: %s", path, err, strings.TrimSpace(s.output.String()))
	}
	return s, nil
}

// ready waits until the server answers anything.
func (s *Server) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	tick := time.NewTicker(startPoll)
	defer tick.Stop()
	transport := &http.Transport{DisableKeepAlives: true}
	for {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Endpoint, http.NoBody)
		if err != nil {
			return fmt.Errorf("endpoint %s: %w", s.Endpoint, err)
		}
		if response, err := transport.RoundTrip(r); err == nil {
			return response.Body.Close()
		}
		select {
		case <-tick.C:
		case <-s.done:
			return errkind.Errorf(errkind.Unavailable, "it ended")
		case <-ctx.Done():
			return errkind.Errorf(errkind.Unavailable, "it does not answer")
		}
	}
}

// Stop ends the server and waits until it is gone.
func (s *Server) Stop() {
	_ = s.cmd.Process.Kill() // it may have ended by itself
	<-s.done
}
