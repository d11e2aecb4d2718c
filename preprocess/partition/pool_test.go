package partition

import (
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

func TestPoolBuffersAreAlignedAndNeverShared(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const maxIdle = 3 << 20
		pool := NewPool(maxIdle)
		type owned struct {
			b    []byte
			mark byte
		}
		var live []owned
		t.Repeat(map[string]func(*rapid.T){
			"alloc": func(t *rapid.T) {
				n := rapid.OneOf(rapid.IntRange(0, 300), rapid.IntRange(4000, 9000), rapid.IntRange(1<<20-1, 1<<20+70000)).Draw(t, "n")
				b := pool.Alloc(n)
				if len(b) != n || n > 0 && uintptr(unsafe.Pointer(&b[0]))%alignment != 0 { //nolint:gosec // The address is only looked at.
					t.Fatalf("%d bytes: got %d, at %p", n, len(b), b)
				}
				mark := byte(len(live) + 1)
				for i := range b {
					b[i] = mark
				}
				live = append(live, owned{b, mark})
			},
			"free": func(t *rapid.T) {
				if len(live) == 0 {
					return
				}
				i := rapid.IntRange(0, len(live)-1).Draw(t, "i")
				pool.Free(live[i].b)
				live = append(live[:i], live[i+1:]...)
			},
			"reallocate": func(t *rapid.T) {
				if len(live) == 0 {
					return
				}
				o := &live[rapid.IntRange(0, len(live)-1).Draw(t, "i")]
				n := rapid.IntRange(0, 20000).Draw(t, "n")
				kept := min(n, len(o.b))
				o.b = pool.Reallocate(n, o.b)
				for _, v := range o.b[kept:] {
					if v != 0 {
						t.Fatal("bytes added by Reallocate are not zero")
					}
				}
				for i := range o.b[kept:] {
					o.b[kept+i] = o.mark
				}
			},
			"trim": func(*rapid.T) { pool.Trim() },
			"": func(t *rapid.T) {
				want := int64(0)
				for _, o := range live {
					for _, v := range o.b {
						if v != o.mark {
							t.Fatal("a buffer was written to through another one")
						}
					}
					want += int64(len(o.b))
				}
				stats := pool.Stats()
				if stats.LiveBytes < want || stats.LiveBytes > want+want/8+int64(len(live))*2*alignment {
					t.Fatalf("%d bytes in use, and the pool counts %d", want, stats.LiveBytes)
				}
				if stats.IdleBytes > maxIdle {
					t.Fatalf("%d idle bytes, more than %d", stats.IdleBytes, maxIdle)
				}
			},
		})
		for _, o := range live {
			pool.Free(o.b)
		}
		if err := pool.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// Law: a pool within a total has no more than that, in use and idle together, unless what is in use takes more.
func TestPoolStaysWithinItsTotal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.Int64Range(0, 6<<20).Draw(t, "total")
		pool := NewPoolWithin(total)
		var live [][]byte
		t.Repeat(map[string]func(*rapid.T){
			"alloc": func(t *rapid.T) {
				live = append(live, pool.Alloc(rapid.OneOf(rapid.IntRange(1, 9000), rapid.IntRange(1<<19, 2<<20)).Draw(t, "n")))
			},
			"free": func(t *rapid.T) {
				if len(live) > 0 {
					i := rapid.IntRange(0, len(live)-1).Draw(t, "i")
					pool.Free(live[i])
					live = append(live[:i], live[i+1:]...)
				}
			},
			"": func(t *rapid.T) {
				if s := pool.Stats(); s.IdleBytes > 0 && s.LiveBytes+s.IdleBytes > total || s.IdleBytes < 0 || s.LiveBuffers != int64(len(live)) {
					t.Fatalf("%d bytes in %d buffers are in use and %d idle; the total is %d", s.LiveBytes, s.LiveBuffers, s.IdleBytes, total)
				}
			},
		})
		for _, b := range live {
			pool.Free(b)
		}
		if err := pool.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestPoolGivesIdleBuffersBack(t *testing.T) {
	pool := NewPool(64 << 20)
	first := pool.Alloc(2 << 20)
	pool.Free(first)
	if again := pool.Alloc(2 << 20); &again[0] != &first[0] {
		t.Error("an idle buffer of the right size was not used again")
	} else {
		pool.Free(again)
	}
	pool.Trim()
	if idle := pool.Stats().IdleBytes; idle == 0 {
		t.Error("a buffer went at the first Trim after its use")
	}
	pool.Trim()
	if idle := pool.Stats().IdleBytes; idle != 0 {
		t.Errorf("%d bytes are still kept after two Trims without use", idle)
	}
}

func TestPoolFindsLeaksAndDoubleFrees(t *testing.T) {
	pool := NewPool(1 << 20)
	b := pool.Alloc(100)
	if err := pool.Close(); err == nil {
		t.Error("Close did not find the buffer that was never given back")
	}
	pool.Free(b)
	defer func() {
		if recover() == nil {
			t.Error("a buffer could be given back twice")
		}
	}()
	pool.Free(b)
}
