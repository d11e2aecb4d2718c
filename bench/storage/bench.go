package storage

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/loader/dataset"
	"github.com/millrace/millrace/loader/store"
	"github.com/millrace/millrace/loader/store/ranged"
	"github.com/millrace/millrace/loader/store/s3store"
	"github.com/millrace/millrace/loader/store/storetest/faulthttp"
	"github.com/millrace/millrace/loader/store/storetest/s3servers"
)

// readers is how many partitions are read at a time, as a worker with so many slots does.
const readers = 4

// blockBudget is the default of --block-budget.
const blockBudget = 768 << 20

// bench is one scenario at work.
type bench struct {
	Options

	dir, root string
	server    *s3servers.Server
	closers   []func()
}

func (b *bench) close() {
	for _, c := range slices.Backward(b.closers) {
		c()
	}
}

func (b *bench) logf(format string, args ...any) { _, _ = fmt.Fprintf(b.Log, format+"\n", args...) }

// lay writes a set and starts the server where it does not run yet.
func (b *bench) lay(ctx context.Context, s set) error {
	began := time.Now()
	if err := s.lay(b.root); err != nil {
		return err
	}
	b.logf("%d samples of %d bytes in %d shards (%.1f s)", s.samples, s.bytes, s.shards(), time.Since(began).Seconds())
	if b.server != nil {
		return nil
	}
	side := filepath.Join(b.dir, "side")
	if err := os.MkdirAll(side, 0o750); err != nil {
		return fmt.Errorf("making the server's folder: %w", err)
	}
	var err error
	b.server, err = s3servers.Versity(ctx, b.Server, b.root, side, "")
	if err == nil {
		b.closers = append(b.closers, b.server.Stop)
	}
	return err
}

// proxy is a faulty server in front of the real one; at is its URL.
func (b *bench) proxy(ctx context.Context) (f *faulthttp.Server, at string, err error) {
	to, err := url.Parse(b.server.Endpoint)
	if err != nil {
		return nil, "", fmt.Errorf("endpoint of the server: %w", err)
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 512, DisableCompression: true}
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to); r.Out.Host = r.In.Host },
		Transport: transport,
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { // The client has left.
			panic(http.ErrAbortHandler)
		},
	}
	f = faulthttp.New(proxy)
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", fmt.Errorf("listening for the proxy: %w", err)
	}
	server := &http.Server{Handler: f, ReadHeaderTimeout: time.Minute}
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(l) }() // ends with Close
	b.closers = append(b.closers, func() { _ = server.Close(); <-served; transport.CloseIdleConnections() })
	return f, "http://" + l.Addr().String(), nil
}

// client is a bucket of the server, and what finds it.
type client struct {
	bucket   *s3store.Bucket
	resolver *store.Resolver
}

// client reads the server at an endpoint.
func (b *bench) client(ctx context.Context, endpoint string, read ranged.Options) (*client, error) {
	// The SDK takes credentials of its own environment; they are those of the server that was started for this.
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": s3servers.AccessKey, "AWS_SECRET_ACCESS_KEY": s3servers.SecretKey} {
		if err := os.Setenv(name, value); err != nil {
			return nil, fmt.Errorf("setting the credentials: %w", err)
		}
	}
	read.Bytes, read.BytesLimit = semaphore.NewWeighted(256<<20), 256<<20
	s, err := s3store.New(s3store.Options{Endpoint: endpoint, Region: "us-east-1", Read: read}).Bucket(ctx, bucket)
	if err != nil {
		return nil, err
	}
	r := store.NewResolver(map[string]store.OpenFunc{"s3": func(context.Context, string) (store.Bucket, error) { return s, nil }})
	b.closers = append(b.closers, func() { _ = r.Close() })
	return &client{bucket: s, resolver: r}, nil
}

// open indexes a set, in a cache of its own, and opens it.
func (b *bench) open(ctx context.Context, c *client, s set) (*dataset.Dataset, error) {
	dir, err := os.MkdirTemp(b.dir, "cache-")
	if err != nil {
		return nil, fmt.Errorf("making a cache: %w", err)
	}
	cache, err := dataset.NewCache(dir)
	if err != nil {
		return nil, err
	}
	m, err := dataset.BuildOrLoad(ctx, c.resolver, s.source(), cache, dataset.BuildOptions{})
	if err != nil {
		return nil, err
	}
	d, err := dataset.Open(m, c.resolver, cache, dataset.OpenOptions{Blocks: dataset.NewBlocks(blockBudget, newPool(b))})
	if err == nil {
		b.closers = append(b.closers, func() { _ = d.Close() })
	}
	return d, err
}

// cpu is the user and system time of this process.
func cpu() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// used is time by the clock and on cores.
type used struct{ wall, cpu time.Duration }

func measure(do func() error) (used, error) {
	runtime.GC() // What came before shall not be paid for here.
	wall, before := time.Now(), cpu()
	err := do()
	return used{time.Since(wall), cpu() - before}, err
}
