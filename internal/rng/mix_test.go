package rng

import (
	"math/bits"
	"testing"

	"pgregory.net/rapid"
)

func TestMixVariantsAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := rapid.Uint64().Draw(t, "a"), rapid.Uint64().Draw(t, "b"), rapid.Uint64().Draw(t, "c")
		if Mix(a, b) != Mix2(a, b) || Mix(a, b, c) != Mix3(a, b, c) {
			t.Fatalf("Mix(%d, %d, %d) differs from Mix2 or Mix3", a, b, c)
		}
	})
}

// Each bit of either word flips each bit of the hash about half the time.
func TestMixAvalanches(t *testing.T) {
	const rounds = 2000
	s := Key{Seed: 8}.Source()
	for in := range 128 {
		var flips [64]int
		for range rounds {
			a, b := s.Uint64()>>40, s.Uint64()>>40 // small words, as in use
			delta := Mix2(a, b)
			if in < 64 {
				delta ^= Mix2(a^1<<in, b)
			} else {
				delta ^= Mix2(a, b^1<<(in-64))
			}
			for ; delta != 0; delta &= delta - 1 {
				flips[bits.TrailingZeros64(delta)]++
			}
		}
		for out, n := range flips {
			// Half of 2000 has a standard deviation of 22; 8192 such counts stay within six of them.
			if n < rounds/2-134 || n > rounds/2+134 {
				t.Errorf("input bit %d flips output bit %d in %d of %d cases", in, out, n, rounds)
			}
		}
	}
}

// Lengths, orders and neighbours of small words all get hashes of their own.
func TestMixTellsTuplesApart(t *testing.T) {
	seen := map[uint64][]uint64{}
	add := func(words ...uint64) {
		h := Mix(words...)
		if other, ok := seen[h]; ok {
			t.Fatalf("%v and %v have one hash", words, other)
		}
		seen[h] = words
	}
	add()
	for a := range uint64(40) {
		add(a)
		for b := range uint64(40) {
			add(a, b)
			for c := range uint64(40) {
				add(a, b, c)
			}
		}
	}
}
