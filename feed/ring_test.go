package feed_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/feed/feedtest"
	"github.com/millrace/millrace/feed/ring"
	"github.com/millrace/millrace/loader/order"
)

// Every rank gets through its ring exactly what it gets by Flight, of every epoch, for any way of accumulating
// gradients, whether columns vary in size or not; and everything lies in slots.
func TestRingsCarryWhatRanksGet(t *testing.T) {
	for _, c := range []struct {
		remote, known, checksum bool
		world, parts            int
		tail                    string
		batch                   int64
	}{
		{known: true, world: 2, parts: 1, tail: "pad", batch: 8},
		{remote: true, world: 2, parts: 1, tail: "pad", batch: 8, checksum: true},
		{remote: true, known: true, world: 4, parts: 2, tail: "short", batch: 8},
		{world: 1, parts: 4, tail: "drop", batch: 12},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			r := newRig(t, rigOptions{remote: c.remote, knownRows: c.known, epochs: 3})
			s := r.settings()
			s["tail"], s["accumulation"], s["global_batch"] = c.tail, c.parts, c.batch
			tail, err := order.ParseTail(c.tail)
			if err != nil {
				t.Fatal(err)
			}
			client := r.client()
			var ranks sync.WaitGroup
			for rank := range c.world {
				trainer := r.trainer(r.open(client, s, rank, c.world).Session, ring.Hello{Checksum: c.checksum, ReadOnly: rank == 1})
				ranks.Go(func() {
					trainer.welcome()
					for epoch := range uint64(3) {
						number := uint32(epoch + 1)
						trainer.send(ring.Request{Kind: ring.Begin, Stream: number, Epoch: epoch})
						if d := diff(want(r.dispatcher.Data, c.batch, tail, epoch, 0, rank, c.world, c.parts), trainer.all(number)); d != "" {
							t.Errorf("rank %d, epoch %d (-want +got):\n%s", rank, epoch, d)
						}
					}
					if trainer.inline > 0 {
						t.Errorf("rank %d got %d batches through the socket", rank, trainer.inline)
					}
					if (trainer.sums > 0) != c.checksum {
						t.Errorf("rank %d got %d checksums", rank, trainer.sums)
					}
				})
			}
			ranks.Wait()
		})
	}
}

// A trainer that dies, whatever it has been given by then and has given back, is followed by one that gets all batches
// from its own position on, once each.
func TestATrainerThatDiesIsFollowedByAnother(t *testing.T) {
	for _, dies := range []string{"before ready", "after ready", "after release", "after commit"} {
		t.Run(dies, func(t *testing.T) {
			r := newRig(t, rigOptions{knownRows: true})
			client := r.client()
			expected := want(r.dispatcher.Data, 8, order.TailPad, 0, 0, 0, 1, 1)
			session := r.open(client, r.settings(), 0, 1).Session
			first := r.trainer(session, ring.Hello{})
			first.welcome()
			first.send(ring.Request{Kind: ring.Begin, Stream: 1})
			position := ring.Request{Kind: ring.Begin, Stream: 1}
			rest := expected
			if dies != "before ready" {
				if _, err := first.next(1); err != nil {
					t.Fatal(err)
				}
			}
			if dies == "after release" || dies == "after commit" {
				first.giveBack(0)
			}
			if dies == "after commit" {
				if _, err := first.next(1); err != nil {
					t.Fatal(err)
				}
				first.send(ring.Request{Kind: ring.Commit, Stream: 1, Count: 1})
				position.Step, position.Row, rest = 1, 8, want(r.dispatcher.Data, 8, order.TailPad, 0, 1, 0, 1, 1)
			}
			// What it writes into the memory it has been given reaches nobody.
			clear(first.arena.mem)
			if err := first.conn.Close(); err != nil {
				t.Fatal(err)
			}
			second := r.trainer(session, ring.Hello{})
			second.welcome()
			second.send(position)
			if d := diff(rest, second.all(1)); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// A trainer that holds its slots stops nobody but itself, is told of, and goes on when it gives them back.
func TestATrainerThatHoldsSlotsWaitsAlone(t *testing.T) {
	r := newRig(t, rigOptions{knownRows: true})
	client := r.client()
	s := r.settings()
	hung := r.trainer(r.open(client, s, 0, 2).Session, ring.Hello{})
	alive := r.trainer(r.open(client, s, 1, 2).Session, ring.Hello{})
	hung.welcome()
	alive.welcome()
	hung.send(ring.Request{Kind: ring.Begin, Stream: 1})
	alive.send(ring.Request{Kind: ring.Begin, Stream: 1})
	var got []got
	for range 4 { // as many as there are slots
		g, err := hung.next(1)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, g)
		hung.send(ring.Request{Kind: ring.Commit, Stream: 1, Count: uint64(len(got))})
	}
	if d := diff(want(r.dispatcher.Data, 8, order.TailPad, 0, 0, 1, 2, 1), alive.all(1)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	r.await("the sidecar to say who holds slots", func() bool {
		var status struct {
			Jobs []struct {
				Waiting string `json:"waiting"`
			} `json:"jobs"`
		}
		if err := do(t.Context(), client, "millrace.status", map[string]any{}, &status); err != nil {
			t.Fatal(err)
		}
		return len(status.Jobs) == 1 && strings.HasPrefix(status.Jobs[0].Waiting, "rank 0: the trainer holds 4 of 4 slots, one of them for ")
	})
	hung.giveBack(0)
	got = append(got, hung.all(1)...)
	if d := diff(want(r.dispatcher.Data, 8, order.TailPad, 0, 0, 0, 2, 1), got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// Batches that have no room in shared memory come through the socket.
func TestBatchesWithoutRoomComeThroughTheSocket(t *testing.T) {
	r := newRig(t, rigOptions{knownRows: true, data: feedtest.Data{NumRows: 37, PartitionRows: 5, TensorBytes: 300 << 10}, budget: 40 << 20})
	s := r.settings()
	s["prefetch"] = 6
	trainer := r.trainer(r.open(r.client(), s, 0, 1).Session, ring.Hello{})
	trainer.welcome()
	trainer.send(ring.Request{Kind: ring.Begin, Stream: 1})
	if d := diff(want(r.dispatcher.Data, 8, order.TailPad, 0, 0, 0, 1, 1), trainer.all(1)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if trainer.inline != 5 {
		t.Errorf("%d batches came through the socket", trainer.inline)
	}
}

// What a trainer says wrongly ends its connection, with a reason.
func TestWrongMessagesEndARing(t *testing.T) {
	for name, c := range map[string]struct {
		send []byte
		text string
	}{
		"other session":   {ring.Hello{Session: "s-none"}.Append(nil), "there is no session"},
		"no greeting":     {make([]byte, ring.HelloBytes), "no greeting"},
		"unknown kind":    {append(ring.Hello{Session: "S"}.Append(nil), ring.Request{Kind: 9}.Append(nil)...), "unknown kind"},
		"unknown arena":   {append(ring.Hello{Session: "S"}.Append(nil), ring.Request{Kind: ring.Release, Arena: 1}.Append(nil)...), "not known"},
		"stream number 0": {append(ring.Hello{Session: "S"}.Append(nil), ring.Request{Kind: ring.Begin}.Append(nil)...), "numbered from 1"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, rigOptions{})
			session := r.open(r.client(), r.settings(), 0, 1).Session
			conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", r.socket+".ring")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			message := []byte(strings.Replace(string(c.send), "S\x00"+strings.Repeat("\x00", len(session)-2), session, 1))
			if _, err := conn.Write(message); err != nil {
				t.Fatal(err)
			}
			if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
				t.Fatal(err)
			}
			answer, err := io.ReadAll(conn)
			if err != nil && !errors.Is(err, unix.ECONNRESET) {
				t.Fatal(err)
			}
			if !strings.Contains(string(answer), c.text) || !strings.Contains(string(answer), "[kind=") {
				t.Errorf("answer %q", answer)
			}
		})
	}
}

// Ten thousand batches and the rings of many trainers leave no descriptor behind.
func TestRingsLeaveNothingBehind(t *testing.T) {
	r := newRig(t, rigOptions{knownRows: true, epochs: 50, data: feedtest.Data{NumRows: 800, PartitionRows: 100, TensorBytes: 3}})
	s := r.settings()
	s["global_batch"] = 4
	client := r.client()
	session := r.open(client, s, 0, 1).Session
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before, batches := 0, 0
	trainer := r.trainer(session, ring.Hello{})
	trainer.welcome()
	for epoch := range uint64(50) {
		trainer.send(ring.Request{Kind: ring.Begin, Stream: uint32(epoch + 1), Epoch: epoch})
		batches += len(trainer.all(uint32(epoch + 1)))
		if epoch == 0 {
			before = count()
		}
	}
	if batches != 10_000 {
		t.Fatalf("%d batches", batches)
	}
	if n := count(); n > before {
		t.Errorf("%d descriptors after 10,000 batches, %d after 200", n, before)
	}
	_ = trainer.conn.Close()
	r.await("its memory to be given back", func() bool { return gauge(t, r, "millrace_feed_ring_bytes") == 0 })
	for range 20 {
		next := r.trainer(session, ring.Hello{})
		next.welcome()
		_ = next.conn.Close()
	}
	r.await("descriptors to be closed", func() bool { return count() <= before })
}
