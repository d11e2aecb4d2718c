package ring

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/errkind"
)

// pageBytes is what slots are aligned to.
const pageBytes = 4096

// maxArenaBytes bounds one arena.
const maxArenaBytes = 1 << 40

// Arena is the shared memory of one rank on this host, cut into slots. It is safe for concurrent use.
type Arena struct {
	id        uint64
	slotBytes int
	peers     int // who map it
	readOnly  bool
	file      *os.File
	mem       []byte

	mu      sync.Mutex
	slots   []slotState
	waiters []*waiter // by number
	retired bool      // nothing is put into it any more
	closed  bool      // not mapped any more
}

// slotState is whose a slot is: nobody's, or of a batch that is put together or kept (owner), or of peers that have it
// (lent), or of both.
type slotState struct {
	generation uint64
	owner      *Slot
	lent       []uint32 // how often, by peer: one who begins anew is handed what it was handed before
	total      int      // of lent
	since      time.Time
}

func (s *slotState) free() bool { return s.owner == nil && s.total == 0 }

// waiter waits for a slot for the batch of a number.
type waiter struct {
	number int64
	next   func() int64
	grant  chan *Slot // of one place; closed when there will be none
}

// MaxPeers is how many trainers can map one arena.
const MaxPeers = 64

// NewArena makes an arena of slots that hold slotBytes each, for peers who map it; where there are several, or readOnly
// is set, they can only read it. Where shared memory cannot be had the error has kind Unavailable or Exhausted.
func NewArena(slots, slotBytes, peers int, readOnly bool) (*Arena, error) {
	slotBytes = (slotBytes + pageBytes - 1) / pageBytes * pageBytes
	switch {
	case peers < 1 || peers > MaxPeers:
		return nil, errkind.Errorf(errkind.Invalid, "%d processes are to share batches of one rank on this host; 1 to %d can", peers, MaxPeers)
	case slots < 1 || slotBytes < pageBytes || slotBytes > maxArenaBytes/slots:
		return nil, errkind.Errorf(errkind.Exhausted, "%d slots of %d bytes cannot be had", slots, slotBytes)
	}
	readOnly = readOnly || peers > 1
	file, mem, err := newMemory(slots*slotBytes, readOnly)
	if err != nil {
		return nil, err
	}
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	return &Arena{
		id: binary.LittleEndian.Uint64(id[:]), slotBytes: slotBytes, peers: peers, readOnly: readOnly, file: file, mem: mem,
		slots: make([]slotState, slots),
	}, nil
}

// ID tells arenas apart.
func (a *Arena) ID() uint64 { return a.id }

// NumSlots is how many slots it has, SlotBytes the size of each.
func (a *Arena) NumSlots() int { return len(a.slots) }

// SlotBytes is the size of a slot, a whole number of pages.
func (a *Arena) SlotBytes() int { return a.slotBytes }

// Bytes is what the arena takes, all of it from the beginning.
func (a *Arena) Bytes() int64 { return int64(len(a.slots)) * int64(a.slotBytes) }

// ReadOnly says whether those who map it can only read it.
func (a *Arena) ReadOnly() bool { return a.readOnly }

// Shared says whether several can map it.
func (a *Arena) Shared() bool { return a.peers > 1 }

// File is what is passed to those who map it. It is closed when the arena is retired.
func (a *Arena) File() *os.File { return a.file }

// Acquire waits for a slot for the batch of a number. next gives the number of the batch that is handed over next:
// slots are granted so that batches which come later never keep it from having one. It gives nil when stop closes or the
// arena is retired.
func (a *Arena) Acquire(number int64, next func() int64, stop <-chan struct{}) *Slot {
	w := &waiter{number: number, next: next, grant: make(chan *Slot, 1)}
	a.mu.Lock()
	if a.retired {
		a.mu.Unlock()
		return nil
	}
	i, _ := slices.BinarySearchFunc(a.waiters, number, func(w *waiter, n int64) int { return int(w.number - n) })
	a.waiters = slices.Insert(a.waiters, i, w)
	a.grant()
	a.mu.Unlock()
	select {
	case s := <-w.grant:
		return s
	case <-stop:
	}
	a.mu.Lock()
	a.waiters = slices.DeleteFunc(a.waiters, func(v *waiter) bool { return v == w })
	a.mu.Unlock()
	select {
	case s := <-w.grant:
		if s != nil {
			s.Done()
		}
	default:
	}
	return nil
}

// Kick lets waiting batches look again at which one is handed over next.
func (a *Arena) Kick() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.grant()
}

// grant gives free slots to those who wait. The arena is locked.
func (a *Arena) grant() {
	if len(a.waiters) == 0 {
		return
	}
	free := 0
	held := map[int64]bool{}
	for i := range a.slots {
		switch s := &a.slots[i]; {
		case s.free():
			free++
		case s.owner != nil:
			held[s.owner.number] = true
		}
	}
	kept := a.waiters[:0]
	for _, w := range a.waiters {
		before := 0 // batches that come first and have no slot yet
		for n := w.next(); n < w.number && before < free; n++ {
			if !held[n] {
				before++
			}
		}
		if free <= before {
			kept = append(kept, w)
			continue
		}
		w.grant <- a.take(w.number)
		held[w.number] = true
		free--
	}
	clear(a.waiters[len(kept):])
	a.waiters = kept
}

// take is a free slot. The arena is locked.
func (a *Arena) take(number int64) *Slot {
	i := slices.IndexFunc(a.slots, func(s slotState) bool { return s.free() })
	state := &a.slots[i]
	state.generation++
	s := &Slot{arena: a, index: i, generation: state.generation, number: number, mem: a.mem[i*a.slotBytes : (i+1)*a.slotBytes : (i+1)*a.slotBytes]}
	s.live.Store(1)
	state.owner = s
	return s
}

// release ends the ownership of s.
func (a *Arena) release(s *Slot) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.slots[s.index].owner = nil
	a.grant()
	a.closeIfUnused()
}

// Lend marks the slot as had by a peer, which gives it back by [Arena.Return].
func (a *Arena) Lend(s *Slot, peer int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	state := &a.slots[s.index]
	if state.total == 0 {
		state.since = time.Now()
	}
	if state.lent == nil {
		state.lent = make([]uint32, a.peers)
	}
	state.lent[peer]++
	state.total++
}

// Leave takes back all that a peer has. It is for those who only copy from the memory, and check after the copy that it was
// still what they were given.
func (a *Arena) Leave(peer int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.slots {
		if s := &a.slots[i]; s.lent != nil {
			s.total -= int(s.lent[peer])
			s.lent[peer] = 0
		}
	}
	a.grant()
}

// Return takes a slot back from a peer. One that the peer does not have, or has in another generation, is an error of
// kind Invalid.
func (a *Arena) Return(slot uint32, generation uint64, peer int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if int(slot) >= len(a.slots) {
		return errkind.Errorf(errkind.Invalid, "slot %d was given back; there are %d", slot, len(a.slots))
	}
	state := &a.slots[slot]
	if state.total == 0 || state.lent[peer] == 0 || state.generation != generation {
		return errkind.Errorf(errkind.Invalid, "slot %d was given back in generation %d by one who does not have it", slot, generation)
	}
	state.lent[peer]--
	state.total--
	if state.free() {
		a.grant()
	}
	return nil
}

// Lent is how many slots peers have, and since when they have had the first of them.
func (a *Arena) Lent() (n int, since time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lent()
}

func (a *Arena) lent() (n int, since time.Time) {
	for i := range a.slots {
		if s := &a.slots[i]; s.total != 0 {
			if n == 0 || s.since.Before(since) {
				since = s.since
			}
			n++
		}
	}
	return n, since
}

// Waits says which slots a batch waits for; empty when none waits.
func (a *Arena) Waits() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.waiters) == 0 {
		return ""
	}
	n, since := a.lent()
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("the trainer holds %d of %d slots, one of them for %.1f s", n, len(a.slots), time.Since(since).Seconds())
}

// Retire ends the arena: whoever had mapped it may read it as long as they like, so nothing is put into it any more. It
// is unmapped here when the last batch in it is given up.
func (a *Arena) Retire() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.retired {
		return
	}
	a.retired = true
	for _, w := range a.waiters {
		close(w.grant)
	}
	a.waiters = nil
	_ = a.file.Close()
	a.closeIfUnused()
}

func (a *Arena) closeIfUnused() {
	if !a.retired || a.closed || slices.ContainsFunc(a.slots, func(s slotState) bool { return s.owner != nil }) {
		return
	}
	a.closed = true
	unmap(a.mem)
	a.mem = nil
}
