package rng

import "math/bits"

// Constants of Philox4x64 (Random123, philox.h): multipliers of the two halves and the Weyl steps of the key.
const (
	philoxMul0  = 0xD2E7470EE14C6C93
	philoxMul1  = 0xCA5A826395121157
	philoxStep0 = 0x9E3779B97F4A7C15
	philoxStep1 = 0xBB67AE8584CAA73B

	philoxRounds = 10
)

// philox is Philox4x64-10: a keyed bijection of 256-bit counters whose output passes for random.
func philox(counter [4]uint64, key [2]uint64) [4]uint64 {
	c0, c1, c2, c3 := counter[0], counter[1], counter[2], counter[3]
	k0, k1 := key[0], key[1]
	for range philoxRounds {
		hi0, lo0 := bits.Mul64(philoxMul0, c0)
		hi1, lo1 := bits.Mul64(philoxMul1, c2)
		c0, c1, c2, c3 = hi1^c1^k0, lo1, hi0^c3^k1, lo0
		k0 += philoxStep0
		k1 += philoxStep1
	}
	return [4]uint64{c0, c1, c2, c3}
}
