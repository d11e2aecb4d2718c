package feed_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/millrace/millrace/feed/client"
	"github.com/millrace/millrace/feed/feedtest"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/preprocess/partition"
)

// besideBudget is what a sidecar may take beside its budget: Go's heap and stacks, buffers of connections.
const besideBudget = 64 << 20

// process is a sidecar in a process of its own.
type process struct {
	t       *testing.T
	cmd     *exec.Cmd
	address string
	idle    int64 // resident before anybody came
}

// startProcess starts a sidecar of a dispatcher.
func startProcess(t *testing.T, d *feedtest.FakeDispatcher, budget int64) *process {
	t.Helper()
	dir := t.TempDir()
	l, err := service.Listen(t.Context(), "unix://"+filepath.Join(dir, "d"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	d.Register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: exec.CommandContext(context.WithoutCancel(t.Context()), self, "unix://"+filepath.Join(dir, "s"), fmt.Sprint(budget))}
	p.cmd.Env = append(p.cmd.Environ(), sidecarVariable+"=unix://"+filepath.Join(dir, "d"))
	p.cmd.Stderr = os.Stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		if err := p.cmd.Wait(); err != nil {
			t.Errorf("the sidecar: %v", err)
		}
		server.Stop()
		if err := <-served; err != nil {
			t.Errorf("the dispatcher: %v", err)
		}
	})
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("the sidecar did not begin: %v", err)
	}
	p.address, p.idle = "unix://"+filepath.Join(dir, "s"), p.memory("VmRSS")
	return p
}

// memory is a figure of the process in /proc, bytes.
func (p *process) memory(name string) int64 {
	p.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	m := regexp.MustCompile(name + `:\s+(\d+) kB`).FindSubmatch(text)
	if m == nil {
		p.t.Fatalf("no %s in %s", name, text)
	}
	kilobytes, err := strconv.ParseInt(string(m[1]), 10, 64)
	if err != nil {
		p.t.Fatal(err)
	}
	return kilobytes << 10
}

// settled waits until the process takes no more memory.
func (p *process) settled() {
	last, same := int64(0), 0
	for same < 20 {
		if now := p.memory("VmRSS"); now > last {
			last, same = now, 0
		} else {
			same++
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// rank reads an epoch through a connection of its own and calls took with each batch while it is not yet consumed.
func (p *process) rank(ctx context.Context, rank, world int, batch int64, epochs uint64, took func(client.Batch)) error {
	conn, err := service.Dial(p.address, nil, client.DialOptions()...)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	s, err := client.Open(ctx, conn, client.OpenRequest{
		Job: "job", Recipe: "recipe", Rank: rank, WorldSize: world,
		Settings: client.Settings{Shuffle: "none", GlobalBatch: batch, Accumulation: 1, Tail: "pad", OnError: "raise", Prefetch: 2},
	})
	if err != nil {
		return err
	}
	at := s.Info.Start
	for range epochs {
		err = s.Read(ctx, at, func(b client.Batch) error {
			took(b)
			at = b.Meta.Next()
			return nil
		})
		if err != nil {
			return err
		}
	}
	return s.Close(ctx)
}

// Sixteen ranks that read nothing do not make a sidecar take more than its budget, and get all of their rows in the end.
func TestStalledRanksStayWithinTheBudget(t *testing.T) {
	const world, budget = 16, 96 << 20
	data := feedtest.Data{NumRows: 4000, PartitionRows: 60, TensorBytes: 40_000, Plain: true}
	store, err := data.Store("job", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	workers := serveWorkers(t, store, 1)
	d := &feedtest.FakeDispatcher{Data: data, Epochs: 1, Address: workers.addresses[0]}
	p := startProcess(t, d, budget)
	release := make(chan struct{})
	var ranks, first sync.WaitGroup
	var rows atomic.Int64
	for rank := range world {
		first.Add(1)
		begun := sync.OnceFunc(first.Done)
		ranks.Go(func() {
			defer begun()
			err := p.rank(t.Context(), rank, world, world*20, 1, func(b client.Batch) {
				rows.Add(int64(b.Meta.ValidRows))
				begun()
				<-release
			})
			if err != nil {
				t.Errorf("rank %d: %v", rank, err)
			}
		})
	}
	first.Wait()
	p.settled()
	stalled := p.memory("VmHWM") - p.idle
	close(release)
	ranks.Wait()
	if rows.Load() != data.NumRows {
		t.Errorf("%d rows came of %d", rows.Load(), data.NumRows)
	}
	if peak := p.memory("VmHWM") - p.idle; max(stalled, peak) > shadow*(budget+besideBudget) {
		t.Errorf("stalled, the sidecar took %d MiB, then %d, of a budget of %d", stalled>>20, peak>>20, budget>>20)
	}
}

// workerSet is addresses at which one store is served over TCP.
type workerSet struct {
	addresses []string
	accepted  atomic.Int64
}

// serveWorkers serves a store at n addresses.
func serveWorkers(t *testing.T, store *partition.Store, n int) *workerSet {
	t.Helper()
	w := &workerSet{}
	server := grpc.NewServer()
	data := partition.NewServer(store)
	data.Register(server)
	var serving sync.WaitGroup
	for range n {
		l, err := service.Listen(t.Context(), "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		w.addresses = append(w.addresses, l.Addr().String())
		l = service.Divert(l, partition.ChannelByte, func(c net.Conn) {
			w.accepted.Add(1)
			data.HandleChannel(context.Background(), c, nil)
		})
		serving.Go(func() { _ = server.Serve(l) })
	}
	t.Cleanup(func() {
		server.Stop()
		serving.Wait()
	})
	return w
}

// A sidecar reads from a thousand workers within its budget, and connects to each once: what it reads next epoch comes over
// the connections that it has.
func TestAThousandWorkersAreReadFrom(t *testing.T) {
	const workers, epochs, budget = 1000, 3, 64 << 20
	data := feedtest.Data{NumRows: 4 * workers, PartitionRows: 4, TensorBytes: 10_000, Plain: true}
	store, err := data.Store("job", epochs)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	set := serveWorkers(t, store, workers)
	d := &feedtest.FakeDispatcher{Data: data, Epochs: epochs, Place: func(source int64) string { return set.addresses[source] }}
	p := startProcess(t, d, budget)
	var rows, connected [epochs]int64
	err = p.rank(t.Context(), 0, 1, 50, epochs, func(b client.Batch) {
		rows[b.Meta.Epoch] += int64(b.Meta.ValidRows)
		if b.Meta.Last {
			connected[b.Meta.Epoch] = set.accepted.Load()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if rows != [epochs]int64{data.NumRows, data.NumRows, data.NumRows} {
		t.Errorf("%v rows came of %d", rows, data.NumRows)
	}
	// Some workers are asked for two things at a time, and have a second connection then.
	if connected[0] < workers || connected[epochs-1] > workers*21/20 {
		t.Errorf("connections to %d workers after each epoch: %v", workers, connected)
	}
	if peak := p.memory("VmHWM") - p.idle; peak > shadow*(budget+besideBudget) {
		t.Errorf("the sidecar took %d MiB of a budget of %d", peak>>20, budget>>20)
	}
}
