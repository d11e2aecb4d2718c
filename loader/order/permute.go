package order

import (
	"math"
	"math/bits"

	"github.com/millrace/millrace/internal/rng"
)

const (
	// tableDomain is the largest domain that is permuted by a table, which is exactly uniform. Feistel networks over
	// so few values are not.
	tableDomain = 256
	// feistelRounds is more than the four that make a random-looking permutation, since the halves may have as few
	// as four bits.
	feistelRounds = 8
)

// permutation is a keyed permutation of 0..n-1 that needs no memory in n, and its inverse.
//
// Large domains use a Feistel network over Z_a × Z_b with a*b just above n (Black and Rogaway's generalised Feistel
// cipher): values that fall outside are enciphered again until they fall inside, which is rare.
type permutation struct {
	n    int64
	a, b uint64
	keys [feistelRounds]uint64

	forward, backward [tableDomain]uint8
}

// init makes p the permutation of 0..n-1 named by key.
func (p *permutation) init(n int64, key uint64) {
	p.n = n
	if n <= tableDomain {
		p.fillTable(key)
		return
	}
	p.b = uint64(math.Sqrt(float64(n))) // 2^53 at most: exact to within one, and any b near the root will do
	p.a = (uint64(n) + p.b - 1) / p.b
	for i := range p.keys {
		p.keys[i] = rng.Mix2(key, uint64(i))
	}
}

func (p *permutation) fillTable(key uint64) {
	draws := rng.Key{Seed: key}.Source()
	for i := range p.n {
		j := draws.IntN(i + 1)
		p.forward[i] = p.forward[j]
		p.forward[j] = uint8(i)
	}
	for i, v := range p.forward[:p.n] {
		p.backward[v] = uint8(i)
	}
}

// at is the image of i, 0 <= i < n.
func (p *permutation) at(i int64) int64 {
	if p.n <= tableDomain {
		return int64(p.forward[i])
	}
	x := uint64(i)
	for {
		left, right := x/p.b, x%p.b
		for r := 0; r < feistelRounds; r += 2 {
			left = addMod(left, scramble(right, p.keys[r], p.a), p.a)
			right = addMod(right, scramble(left, p.keys[r+1], p.b), p.b)
		}
		if x = left*p.b + right; x < uint64(p.n) {
			return int64(x)
		}
	}
}

// indexOf is the i of which v, 0 <= v < n, is the image.
func (p *permutation) indexOf(v int64) int64 {
	if p.n <= tableDomain {
		return int64(p.backward[v])
	}
	x := uint64(v)
	for {
		left, right := x/p.b, x%p.b
		for r := feistelRounds - 2; r >= 0; r -= 2 {
			right = subMod(right, scramble(left, p.keys[r+1], p.b), p.b)
			left = subMod(left, scramble(right, p.keys[r], p.a), p.a)
		}
		if x = left*p.b + right; x < uint64(p.n) {
			return int64(x)
		}
	}
}

// scramble is the round function: a keyed hash of x, reduced to 0..m-1.
func scramble(x, key, m uint64) uint64 {
	h := (x ^ key) * 0x9FB21C651E98DF25
	h = (h ^ h>>32) * 0xD6E8FEB86659FD93
	hi, _ := bits.Mul64(h, m)
	return hi
}

func addMod(x, y, m uint64) uint64 {
	if x += y; x >= m {
		x -= m
	}
	return x
}

func subMod(x, y, m uint64) uint64 {
	if x < y {
		x += m
	}
	return x - y
}
