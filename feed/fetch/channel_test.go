package fetch

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/preprocess/lineage"
	"github.com/millrace/millrace/preprocess/partition"
	"github.com/millrace/millrace/preprocess/partition/flightdata"
)

// channelWorker serves 100 rows of a partition on address, by channel and by Flight.
type channelWorker struct {
	t       *testing.T
	data    *partition.Server
	mu      sync.Mutex
	opened  int
	address string
	stop    func()
}

func newChannelWorker(t *testing.T) *channelWorker {
	t.Helper()
	store := partition.NewStore("w", partition.Hooks{})
	rec := record(t, 100)
	store.Put("job", 1, partition.New(lineage.SourceID(0, 0), 0, rec))
	rec.Release()
	w := &channelWorker{t: t, data: partition.NewServer(store), address: "127.0.0.1:0"}
	w.start()
	t.Cleanup(func() { w.stop(); store.Close() })
	return w
}

// start serves, at the same address as before.
func (w *channelWorker) start() {
	w.t.Helper()
	l, err := service.Listen(w.t.Context(), w.address)
	if err != nil {
		w.t.Fatal(err)
	}
	w.address = l.Addr().String()
	s := grpc.NewServer(flightdata.ServerOptions()...)
	w.data.Register(s)
	l = service.Divert(l, partition.ChannelByte, func(c net.Conn) {
		w.mu.Lock()
		w.opened++
		w.mu.Unlock()
		w.data.HandleChannel(w.t.Context(), c, nil)
	})
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	w.stop = func() { s.Stop(); <-done }
}

func (w *channelWorker) channels() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.opened
}

// connsTo makes connections over the network, or over dial.
func connsTo(t *testing.T, dial func(context.Context, string) (net.Conn, error)) *conns {
	t.Helper()
	pool := partition.NewPool(0)
	cfg := Config{Pool: pool, BudgetBytes: 1, Logger: slog.New(slog.DiscardHandler), Dial: dial}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	c := newConns(&cfg)
	t.Cleanup(func() {
		c.sweep(time.Now().Add(time.Hour))
		if err := pool.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func (w *channelWorker) fetch(c *conns, want partition.Ticket) (rows int64, err error) {
	f, release, err := c.acquire(w.address)
	if err != nil {
		w.t.Fatal(err)
	}
	defer release()
	err = f.Fetch(w.t.Context(), want, func(_ int, rec arrow.RecordBatch) error { rows += rec.NumRows(); return nil })
	return rows, err
}

// One channel carries one ticket after the other, also after one that was refused; idle ones are closed.
func TestChannelsAreKept(t *testing.T) {
	w := newChannelWorker(t)
	c := connsTo(t, nil)
	for range 5 {
		if rows, err := w.fetch(c, ticket(40, 60)); rows != 100 || err != nil {
			t.Fatalf("%d rows, %v", rows, err)
		}
	}
	if n := w.channels(); n != 1 || c.len() != 1 {
		t.Errorf("%d channels to %d workers", n, c.len())
	}
	_, err := w.fetch(c, partition.Ticket{Job: "other", Slices: ticket(1).Slices})
	if errkind.Of(err) != errkind.NotFound || strings.Contains(err.Error(), "kind=") {
		t.Errorf("an unknown job: %v", err)
	}
	c.sweep(time.Now().Add(time.Hour))
	if c.len() != 0 {
		t.Error("idle channels were kept")
	}
}

// A worker that was started anew has hung up on its channels: the next ticket does not fail for it.
func TestStaleChannelsAreReplaced(t *testing.T) {
	w := newChannelWorker(t)
	c := connsTo(t, nil)
	if _, err := w.fetch(c, ticket(40)); err != nil {
		t.Fatal(err)
	}
	w.stop()
	w.start()
	if rows, err := w.fetch(c, ticket(40)); rows != 40 || err != nil {
		t.Errorf("%d rows, %v", rows, err)
	}
	w.stop()
	if _, err := w.fetch(c, ticket(40)); errkind.Of(err) != errkind.Unavailable {
		t.Errorf("without a worker: %v", err)
	}
	w.start()
}

// garble changes one byte of what comes, or ends the connection there.
type garble struct {
	net.Conn

	at  int
	cut bool
}

func (g *garble) Read(b []byte) (int, error) {
	n, err := g.Conn.Read(b)
	if g.at < n && g.at >= 0 {
		if g.cut {
			_ = g.Close()
			n = g.at
		} else {
			b[g.at] ^= 0x40
		}
	}
	g.at -= n
	return n, err
}

// A byte that changed anywhere on a channel behind its greeting, or an end there, is an error: never fewer or other rows.
func TestDamageOnAChannelIsAnError(t *testing.T) {
	w := newChannelWorker(t)
	total := 0
	count := func(n int) { total = n }
	c := connsTo(t, func(ctx context.Context, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		return &counting{Conn: conn, seen: count}, err
	})
	if _, err := w.fetch(c, ticket(50, 50)); err != nil {
		t.Fatal(err)
	}
	if total < 1000 {
		t.Fatalf("%d bytes came", total)
	}
	for _, cut := range []bool{false, true} {
		for at := partition.GreetingBytes; at < total; at += 7 {
			broken := connsTo(t, func(ctx context.Context, address string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
				return &garble{Conn: conn, at: at, cut: cut}, err
			})
			if rows, err := w.fetch(broken, ticket(50, 50)); err == nil {
				t.Errorf("byte %d of %d (cut: %t): %d rows and no error", at, total, cut, rows)
			}
			broken.sweep(time.Now().Add(time.Hour))
		}
	}
}

// counting tells how many bytes have come.
type counting struct {
	net.Conn

	n    int
	seen func(int)
}

func (c *counting) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.n += n
	c.seen(c.n)
	return n, err
}

// A worker that is killed in the middle of a message is an error of kind Unavailable; no buffer is lost.
func TestAChannelThatBreaksIsUnavailable(t *testing.T) {
	w := newChannelWorker(t)
	c := connsTo(t, func(ctx context.Context, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		return &garble{Conn: conn, at: 1500, cut: true}, err
	})
	if _, err := w.fetch(c, ticket(50, 50)); errkind.Of(err) != errkind.Unavailable {
		t.Errorf("kind %v: %v", errkind.Of(err), err)
	}
}

// A worker that speaks Flight alone is asked by Flight, and by that only from then on.
func TestWorkersWithoutChannelsAreAskedByFlight(t *testing.T) {
	store := partition.NewStore("w", partition.Hooks{})
	defer store.Close()
	rec := record(t, 100)
	store.Put("job", 1, partition.New(lineage.SourceID(0, 0), 0, rec))
	rec.Release()
	c, _ := connect(t, func(s *grpc.Server) { partition.NewServer(store).Register(s) }, flightdata.ServerOptions()...)
	for range 2 {
		rows := int64(0)
		err := fetchAll(t, c, ticket(100), func(_ int, rec arrow.RecordBatch) error { rows += rec.NumRows(); return nil })
		if err != nil || rows != 100 {
			t.Fatalf("%d rows, %v", rows, err)
		}
	}
	if v := c.by["worker:1"]; v.client == nil || len(v.channels) > 0 {
		t.Error("it was not asked by Flight")
	}
}
