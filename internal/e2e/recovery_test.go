package e2e

import (
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/feed/client"
)

// A dispatcher or a sidecar that is killed ends the stream with an error; started again at the same address, it
// continues from the trainer's state as if nothing had been.
func TestAStateOutlivesDispatcherAndSidecar(t *testing.T) {
	const samples, batch = 240, 16
	for _, victim := range []string{"dispatcher", "sidecar"} {
		t.Run(victim, func(t *testing.T) {
			p, recipe := imageSet(t, 4, samples/4)
			local := p.start(millrace(), "local", "--socket", p.path("reference"))
			want := read(t, open(t, dial(t, local.address(0)), ask(t, recipe, "train", 0, 1, batch)), 0)
			local.stop()

			d, s := "unix://"+p.path("d"), "unix://"+p.path("s")
			dispatcher := func() *role { return p.start(millrace(), "dispatcher", "--listen", d) }
			side := func() *role { return p.start(sidecar(), "--dispatcher", d, "--listen", s) }
			roles := map[string]*role{"dispatcher": dispatcher(), "sidecar": side()}
			// The budget holds a part of the epoch, so that nobody has the rest of it when the victim is killed.
			p.start(millrace(), "worker", "--dispatcher", d, "--listen", "unix://"+p.path("w"), "--budget", "64KiB")

			req := ask(t, recipe, "train", 0, 1, batch)
			session := open(t, dial(t, s), req)
			var got [][]row
			err := session.Read(t.Context(), session.Info.Start, func(b client.Batch) error {
				got, req.Cursor = append(got, rowsOf(t, b.Record)), b.Meta.Cursor
				if len(got) != 4 {
					return nil
				}
				roles[victim].signal(syscall.SIGKILL)
				roles[victim].wait(patience)
				if victim == "dispatcher" {
					roles[victim] = dispatcher()
				}
				return nil
			})
			if err == nil {
				t.Fatalf("the stream went on to its end; it was cut off after 4 of %d batches", len(got))
			}
			t.Logf("%d batches, then: %v", len(got), err)
			if victim == "sidecar" {
				roles[victim] = side()
			}

			again := open(t, dial(t, s), req)
			err = again.Read(t.Context(), again.Info.Start, func(b client.Batch) error {
				got = append(got, rowsOf(t, b.Record))
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != len(want) {
				t.Fatalf("%d batches in all, want %d", len(got), len(want))
			}
			for step := range want {
				if diff := cmp.Diff(want[step], got[step]); diff != "" {
					t.Fatalf("step %d differs (-want +got):\n%s", step, diff)
				}
			}
		})
	}
}
