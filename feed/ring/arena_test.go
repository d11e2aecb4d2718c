package ring_test

import (
	"bytes"
	"sync/atomic"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/feed/ring"
	"github.com/millrace/millrace/internal/errkind"
)

// heap is a pool for what does not fit.
type heap struct{ buffers int }

func (h *heap) Alloc(n int) []byte { h.buffers++; return make([]byte, n) }

func (*heap) Buffer(b []byte) *memory.Buffer { return memory.NewBufferBytes(b) }

// open is an arena that is retired at the end.
func open(t interface {
	Fatal(args ...any)
	Cleanup(f func())
}, slots, slotBytes, peers int,
) *ring.Arena {
	a, err := ring.NewArena(slots, slotBytes, peers, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Retire)
	return a
}

func zero() int64 { return 0 }

// A slot is free when nobody keeps a buffer of it and no peer has it, and begins a new generation then.
func TestASlotIsFreeWhenNobodyHasIt(t *testing.T) {
	a := open(t, 1, 4096, 2)
	if !a.ReadOnly() {
		t.Error("memory of several peers can be written to by them")
	}
	s := a.Acquire(0, zero, nil)
	buffer := s.Within(&heap{}).Buffer(s.Within(&heap{}).Alloc(100))
	s.Done()
	a.Lend(s, 0)
	a.Lend(s, 1)
	next := make(chan *ring.Slot)
	go func() { next <- a.Acquire(1, func() int64 { return 1 }, nil) }()
	steps := []func(){
		buffer.Release,
		func() { give(t, a, s, 0) },
		func() { give(t, a, s, 1) },
	}
	for i, step := range steps {
		select {
		case <-next:
			t.Fatalf("the slot was free after %d of %d steps", i, len(steps))
		default:
		}
		step()
	}
	again := <-next
	if again.Generation() != s.Generation()+1 || again.Index() != s.Index() {
		t.Errorf("slot %d, generation %d", again.Index(), again.Generation())
	}
	if err := a.Return(0, s.Generation(), 0); errkind.Of(err) != errkind.Invalid {
		t.Errorf("a slot that was given back twice: %v", err)
	}
	if err := a.Return(7, 1, 0); errkind.Of(err) != errkind.Invalid {
		t.Errorf("a slot that there is not: %v", err)
	}
	again.Done()
}

func give(t *testing.T, a *ring.Arena, s *ring.Slot, peer int) {
	t.Helper()
	if err := a.Return(uint32(s.Index()), s.Generation(), peer); err != nil {
		t.Fatal(err)
	}
}

// Buffers lie in the slot, aligned, until it is full; then elsewhere.
func TestBuffersLieInTheSlotWhileTheyFit(t *testing.T) {
	a := open(t, 2, 4096, 1)
	s := a.Acquire(0, zero, nil)
	s.Reserve(1000)
	rest := &heap{}
	pool := s.Within(rest)
	for _, n := range []int{1, 100, 2000, 0} {
		b := pool.Alloc(n)
		copy(b, bytes.Repeat([]byte{7}, n))
		defer pool.Buffer(b).Release()
	}
	if rest.buffers != 0 {
		t.Errorf("%d buffers lie elsewhere", rest.buffers)
	}
	pool.Alloc(1000)
	if rest.buffers != 1 {
		t.Errorf("%d buffers lie elsewhere", rest.buffers)
	}
	s.Done()
}

// Whatever batches are put together first, those that come later never take the slot that the next one needs: while the
// trainer gives back what it is done with, every batch is put together and handed over, in order.
func TestTheNextBatchAlwaysGetsASlot(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		slots := rapid.IntRange(2, 5).Draw(rt, "slots")
		ahead := int64(rapid.IntRange(1, slots).Draw(rt, "ahead"))
		const batches = 12
		a, err := ring.NewArena(slots, 4096, 1, false)
		if err != nil {
			rt.Fatal(err)
		}
		defer a.Retire()
		var next atomic.Int64
		ready := map[int64]*ring.Slot{}
		stop := make(chan struct{})
		asked := map[int64]bool{}
		type granted struct {
			number int64
			slot   *ring.Slot
		}
		grants := make(chan granted, batches)
		for next.Load() < batches {
			// Batches that may be put together now, in any order.
			var open []int64
			for n := next.Load(); n < min(next.Load()+ahead, batches); n++ {
				if !asked[n] {
					open = append(open, n)
				}
			}
			for _, n := range rapid.Permutation(open).Draw(rt, "order") {
				asked[n] = true
				go func() { grants <- granted{n, a.Acquire(n, next.Load, stop)} }()
			}
			for ready[next.Load()] == nil {
				g := <-grants // which never comes where later batches hold all slots
				ready[g.number] = g.slot
			}
			s := ready[next.Load()]
			a.Lend(s, 0)
			next.Add(1)
			a.Kick()
			s.Done()
			if err := a.Return(uint32(s.Index()), s.Generation(), 0); err != nil {
				rt.Fatal(err)
			}
		}
		close(stop)
	})
}

// Whoever waits for a slot stops when it is not wanted any more, or when the arena has ended.
func TestWaitingEnds(t *testing.T) {
	a := open(t, 1, 4096, 1)
	s := a.Acquire(0, zero, nil)
	defer s.Done()
	stop := make(chan struct{})
	done := make(chan *ring.Slot)
	go func() { done <- a.Acquire(1, zero, stop) }()
	close(stop)
	if got := <-done; got != nil {
		t.Error("a slot that is held was granted")
	}
	go func() { done <- a.Acquire(1, zero, nil) }()
	a.Retire()
	if got := <-done; got != nil {
		t.Error("a slot of an arena that has ended was granted")
	}
	if got := a.Acquire(2, zero, nil); got != nil {
		t.Error("a slot of an arena that has ended was granted")
	}
}

// Impossible arenas are errors.
func TestImpossibleArenas(t *testing.T) {
	for _, c := range []struct {
		slots, bytes, peers int
		kind                errkind.Kind
	}{
		{0, 4096, 1, errkind.Exhausted},
		{2, 1 << 50, 1, errkind.Exhausted},
		{2, 4096, 0, errkind.Invalid},
		{2, 4096, ring.MaxPeers + 1, errkind.Invalid},
	} {
		if _, err := ring.NewArena(c.slots, c.bytes, c.peers, false); errkind.Of(err) != c.kind {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
