package e2e

import (
	"context"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"google.golang.org/grpc"
)

// Workers come and go in the middle of an epoch. One that is asked to leave finishes what it has begun and stays until
// the ranks have it, so the stream is the same and no sample is made twice.
func TestWorkersLeaveAndJoinWithoutWorkDoneTwice(t *testing.T) {
	const samples, batch = 600, 16
	p, recipe := imageSet(t, 4, samples/4)
	want := byLocal(t, p, recipe, batch)

	dispatcher := p.start(millrace(), "dispatcher", "--listen", "unix://"+p.path("d"))
	worker := func(name string) *role {
		return p.start(millrace(), "worker", "--dispatcher", "unix://"+p.path("d"), "--listen", "unix://"+p.path(name), "--name", name,
			"--cpu-slots", "1", "--log-level", "info", "--drain-timeout", "5m")
	}
	leaving, staying := worker("w0"), worker("w1")
	side := p.start(millrace(), "sidecar", "--dispatcher", "unix://"+p.path("d"), "--listen", "unix://"+p.path("s"))

	reached := make(chan struct{})
	var once sync.Once
	var got [2][][][]row
	var reading sync.WaitGroup
	conns := [2]*grpc.ClientConn{dial(t, side.address(0)), dial(t, side.address(0))}
	for e := range got {
		got[e] = make([][][]row, len(conns))
	}
	for rank, conn := range conns {
		req := ask(t, recipe, "train", rank, len(conns), batch)
		req.Settings.Epochs = uint64(len(got))
		s := open(t, conn, req)
		reading.Go(func() {
			for e := range got {
				got[e][rank] = readWith(t, s, uint64(e), func(step int) {
					if e == 0 && step == 3 {
						once.Do(func() { close(reached) })
					}
				})
			}
			if err := s.Close(context.WithoutCancel(t.Context())); err != nil {
				t.Errorf("closing rank %d: %v", rank, err)
			}
		})
	}
	<-reached
	leaving.signal(syscall.SIGTERM)
	joining := worker("w2")
	if code := leaving.wait(patience); code != 0 {
		t.Errorf("the worker that left has exit code %d\n%s", code, leaving.errs)
	}
	reading.Wait()
	sameStream(t, want, got)

	made := 0
	for _, r := range []*role{staying, joining} {
		r.signal(syscall.SIGTERM)
		if code := r.wait(patience); code != 0 {
			t.Errorf("exit code %d\n%s", code, r.errs)
		}
	}
	for name, r := range map[string]*role{"leaving": leaving, "staying": staying, "joining": joining} {
		found := regexp.MustCompile(`worker has ended.* samples=(\d+) drained=true`).FindStringSubmatch(r.errs.String())
		if found == nil {
			t.Fatalf("the %s worker was not let go:\n%s", name, r.errs)
		}
		n, err := strconv.Atoi(found[1])
		if err != nil || n == 0 {
			t.Errorf("the %s worker made %s samples", name, found[1])
		}
		made += n
	}
	if made != 2*samples {
		t.Errorf("%d samples were made in two epochs of %d", made, samples)
	}
	side.stop()
	dispatcher.stop()
	nothingLeft(t, p, "s", "w0", "w1", "w2", "d")
}

// A worker whose dispatcher is gone has nobody to hand over to: it leaves when it is asked to.
func TestAWorkerWithoutADispatcherLeavesAtOnce(t *testing.T) {
	p := newPlace(t)
	dispatcher := p.start(millrace(), "dispatcher", "--listen", "unix://"+p.path("d"))
	w := p.start(millrace(), "worker", "--dispatcher", "unix://"+p.path("d"), "--listen", "unix://"+p.path("w"), "--drain-timeout", "1h")
	dispatcher.stop()
	eventually(t, patience, "the worker to see that", func() bool {
		return regexp.MustCompile("connection to the dispatcher is lost").MatchString(w.errs.String())
	})
	w.signal(syscall.SIGTERM)
	if code := w.wait(stopLimit); code != 0 {
		t.Errorf("exit code %d\n%s", code, w.errs)
	}
}
