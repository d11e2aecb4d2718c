package rng

// Mix hashes words to one well-mixed word. It is a bijection of each word when the others are held, and depends on
// their number and order. It names things (keys of permutations, of windows, of sources); it is no cryptographic hash.
func Mix(words ...uint64) uint64 {
	h := avalanche(mixStart + uint64(len(words)))
	for _, w := range words {
		h = avalanche(h ^ w)
	}
	return h
}

// Mix2 is Mix(a, b) without a slice.
func Mix2(a, b uint64) uint64 {
	return avalanche(avalanche(avalanche(mixStart+2)^a) ^ b)
}

// Mix3 is Mix(a, b, c) without a slice.
func Mix3(a, b, c uint64) uint64 {
	return avalanche(avalanche(avalanche(avalanche(mixStart+3)^a)^b) ^ c)
}

// mixStart is the golden ratio's fraction: any constant whose small neighbours differ after avalanche would do.
const mixStart = 0x9E3779B97F4A7C15

// avalanche is a bijection in which every input bit flips every output bit about half the time
// (Pelle Evensen's moremur: MurmurHash3's finaliser with better constants).
func avalanche(x uint64) uint64 {
	x ^= x >> 27
	x *= 0x3C79AC492BA7B653
	x ^= x >> 33
	x *= 0x1C69B3F74AC4AE35
	x ^= x >> 27
	return x
}
