package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/feed/client"
)

// readRanks has two ranks read two epochs, each through its own connection: rows by epoch, rank and batch.
func readRanks(t *testing.T, recipe string, batch int64, conns [2]*grpc.ClientConn, taken func(epoch, rank, step int)) (epochs [2][][][]row) {
	t.Helper()
	for e := range epochs {
		epochs[e] = make([][][]row, len(conns))
	}
	var ranks sync.WaitGroup
	for rank, conn := range conns {
		req := ask(t, recipe, "train", rank, len(conns), batch)
		req.Settings.Epochs = uint64(len(epochs))
		s := open(t, conn, req)
		ranks.Go(func() {
			for e := range epochs {
				epochs[e][rank] = readWith(t, s, uint64(e), func(step int) { taken(e, rank, step) })
			}
			if err := s.Close(context.WithoutCancel(t.Context())); err != nil {
				t.Errorf("closing rank %d: %v", rank, err)
			}
		})
	}
	ranks.Wait()
	return epochs
}

// sameStream compares what ranks got, and shows the first batch that differs.
func sameStream(t *testing.T, want, got [2][][][]row) {
	t.Helper()
	for e := range want {
		for rank := range want[e] {
			if len(got[e][rank]) != len(want[e][rank]) {
				t.Errorf("epoch %d, rank %d: %d batches, want %d", e, rank, len(got[e][rank]), len(want[e][rank]))
				return
			}
			for step, b := range want[e][rank] {
				if diff := cmp.Diff(b, got[e][rank][step]); diff != "" {
					t.Errorf("epoch %d, rank %d, step %d differs (-want +got):\n%s", e, rank, step, diff)
					return
				}
			}
		}
	}
}

func idle(int, int, int) {}

// byLocal is what one process that runs everything gives.
func byLocal(t *testing.T, p *place, recipe string, batch int64) [2][][][]row {
	t.Helper()
	r := p.start(millrace(), "local", "--socket", p.path("reference"))
	out := readRanks(t, recipe, batch, [2]*grpc.ClientConn{dial(t, r.address(0)), dial(t, r.address(0))}, idle)
	r.stop()
	return out
}

// The stream does not depend on who makes it: one process, or a dispatcher, two workers and two sidecars, on Unix
// sockets and on TCP.
func TestRolesAsProcessesGiveTheSameStreamAsOneProcess(t *testing.T) {
	const samples, batch = 200, 24
	p, recipe := imageSet(t, 4, samples/4)
	want := byLocal(t, p, recipe, batch)
	for e := range want {
		everySampleOnce(t, want[e], samples)
	}
	if cmp.Equal(global(want[0]), global(want[1])) {
		t.Error("both epochs have one order, so a mix-up of them would not show")
	}

	dispatcher := p.start(millrace(), "dispatcher", "--listen", "127.0.0.1:0")
	var roles []*role
	for i, listen := range []string{"unix://" + p.path("w"), "127.0.0.1:0"} {
		roles = append(roles, p.start(millrace(), "worker", "--dispatcher", dispatcher.address(0), "--listen", listen, "--name", fmt.Sprintf("w%d", i), "--cpu-slots", "1"))
	}
	first := p.start(millrace(), "sidecar", "--dispatcher", dispatcher.address(0), "--listen", "unix://"+p.path("a"))
	second := p.start(sidecar(), "--dispatcher", dispatcher.address(0), "--listen", "127.0.0.1:0", "--budget", "64MiB")
	got := readRanks(t, recipe, batch, [2]*grpc.ClientConn{dial(t, first.address(0)), dial(t, second.address(0))}, idle)
	sameStream(t, want, got)

	// Every worker has made some of it, so both ways led somewhere.
	eventually(t, patience, "both workers to report samples", func() bool {
		made := 0
		workers, _ := decode(t, p.must("status", "--json", "--endpoint", dispatcher.address(0)))["workers"].([]any)
		for _, w := range workers {
			if w, ok := w.(map[string]any); ok {
				if n, ok := w["samples"].(float64); ok && n > 0 {
					made++
				}
			}
		}
		return made == 2
	})
	// A drain through a sidecar is a rank like any other.
	expect(
		t, decode(t, p.must("run", recipe, "--json", "--endpoint", second.address(0), "--batch", "24")),
		map[string]any{"rows": float64(samples), "batches": 9.0},
	)
	for _, r := range append(roles, first, second, dispatcher) {
		r.stop()
	}
	nothingLeft(t, p, "a", "w")
}

// A worker process that is killed in the middle of an epoch costs nothing but time: what it held is made again by
// others, with the same bytes, and another process takes its place.
func TestAKilledWorkerProcessChangesNothing(t *testing.T) {
	const samples, batch = 400, 16
	p, recipe := imageSet(t, 4, samples/4)
	want := byLocal(t, p, recipe, batch)

	r := p.start(millrace(), "local", "--socket", p.path("s"), "--workers", "2", "--cpu-slots", "2")
	var once sync.Once
	got := readRanks(t, recipe, batch, [2]*grpc.ClientConn{dial(t, r.address(0)), dial(t, r.address(0))}, func(epoch, _, step int) {
		if epoch == 0 && step == 3 {
			once.Do(func() { kill(t, p, r) })
		}
	})
	sameStream(t, want, got)
	for e := range got {
		everySampleOnce(t, got[e], samples)
	}
	eventually(t, patience, "a new worker process", func() bool { return len(workersOf(t, p, r)) == 2 })
	matches(t, r.errs.String(), `worker process ended \(signal: killed\) and is started again`)
	r.stop()
	nothingLeft(t, p, "s")
}

// workersOf lists the names of a role's workers.
func workersOf(t *testing.T, p *place, r *role) (names []string) {
	t.Helper()
	all, _ := decode(t, p.must("status", "--json", "--endpoint", r.address(0)))["workers"].([]any)
	for _, w := range all {
		if w, ok := w.(map[string]any); ok {
			name, _ := w["name"].(string)
			names = append(names, name)
		}
	}
	return names
}

func TestRanksThatDoNotAgreeAreTold(t *testing.T) {
	p, recipe := imageSet(t, 2, 32)
	r := p.start(millrace(), "local", "--socket", p.path("s"))
	conn := dial(t, r.address(0))
	first := open(t, conn, ask(t, recipe, "train", 0, 2, 16))
	other := p.write("other.yaml", readFile(t, recipe)+"output: {image: {layout: HWC}}\n")
	for _, c := range []struct {
		name   string
		change func(*client.OpenRequest)
		says   string
	}{
		{"recipe", func(o *client.OpenRequest) { o.Recipe = readFile(t, other) }, `^rank 1 joined job "train" with another recipe.*All ranks of a job must agree$`},
		{"seed", func(o *client.OpenRequest) { o.Settings.Seed = 8 }, `^rank 1 joined job "train" with seed 8; rank 0 uses 7\. All ranks of a job must agree$`},
		{"batch", func(o *client.OpenRequest) { o.Settings.GlobalBatch = 32 }, `^rank 1 joined job "train" with .*32.*; rank 0 uses .*\. All ranks of a job must agree$`},
		{"share", func(o *client.OpenRequest) { o.Settings.GlobalBatch = 17 }, `17 .*2 ranks`},
		{"rank", func(o *client.OpenRequest) { o.Rank = 2 }, `rank 2 `},
		{"state that is none", func(o *client.OpenRequest) { o.Cursor = "no state" }, `state`},
	} {
		req := ask(t, recipe, "train", 1, 2, 16)
		c.change(&req)
		_, err := client.Open(t.Context(), conn, req)
		if err == nil {
			t.Errorf("%s: a rank that differs may join", c.name)
			continue
		}
		matches(t, err.Error(), c.says)
	}

	// A state of another recipe or of other data is refused, with what differs.
	second := open(t, conn, ask(t, recipe, "train", 1, 2, 16))
	var cursor string
	var ranks sync.WaitGroup
	for _, s := range []*client.Session{first, second} {
		ranks.Go(func() {
			err := s.Read(t.Context(), s.Info.Start, func(b client.Batch) error {
				if s == first && b.Meta.Step == 1 {
					cursor = b.Meta.Cursor
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	ranks.Wait()
	more := p.write("more.yaml", imageRecipe(shards(t, p.path("more"), 2, 48)))
	for name, path := range map[string]string{"recipe": other, "data": more} {
		req := ask(t, path, "resumed-"+name, 0, 1, 16)
		req.Cursor = cursor
		_, err := client.Open(t.Context(), conn, req)
		if err == nil {
			t.Errorf("a state of other %s is taken", name)
			continue
		}
		matches(t, err.Error(), `^state is of (recipe|order) [0-9a-f]{8}…; this (recipe|order) is [0-9a-f]{8}…: .* was .*, is `)
	}
	r.stop()
}
