package rng

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The known answers of Random123 1.14 (kat_vectors, philox4x64 10).
func TestPhiloxGivesThePublishedAnswers(t *testing.T) {
	const ones = math.MaxUint64
	for _, c := range []struct {
		counter [4]uint64
		key     [2]uint64
		want    [4]uint64
	}{
		{
			want: [4]uint64{0x16554d9eca36314c, 0xdb20fe9d672d0fdc, 0xd7e772cee186176b, 0x7e68b68aec7ba23b},
		},
		{
			counter: [4]uint64{ones, ones, ones, ones},
			key:     [2]uint64{ones, ones},
			want:    [4]uint64{0x87b092c3013fe90b, 0x438c3c67be8d0224, 0x9cc7d7c69cd777b6, 0xa09caebf594f0ba0},
		},
		{
			counter: [4]uint64{0x243f6a8885a308d3, 0x13198a2e03707344, 0xa4093822299f31d0, 0x082efa98ec4e6c89},
			key:     [2]uint64{0x452821e638d01377, 0xbe5466cf34e90c6c},
			want:    [4]uint64{0xa528f45403e61d95, 0x38c72dbd566e9788, 0xa5a1610e72fd18b5, 0x57bd43b5e52b7fe6},
		},
	} {
		if got := philox(c.counter, c.key); got != c.want {
			t.Errorf("philox(%#x, %#x) = %#x, want %#x", c.counter, c.key, got, c.want)
		}
	}
}

// Python operators draw from the same sequence: these are what NumPy 2 prints for
// numpy.random.Philox(key=[7, 3], counter=[0, 1041, 2, 0]).random_raw(9).
func TestSourceEqualsNumPy(t *testing.T) {
	want := []uint64{
		0x3a2bca9cfd0908f9, 0xc0758ec38e89a756, 0x21fab9116fa182da, 0xeaebe06939fd46bf, 0x67f8dbefca14cc3a,
		0x7892c40810ae30a1, 0x223fb3c02f8e0745, 0x1ecf42715486112f, 0xd7888c41e9cb5ad9,
	}
	s := Key{Seed: 7, Epoch: 2, Sample: 1041, Op: 3}.Source()
	for i, w := range want {
		if got := s.Uint64(); got != w {
			t.Errorf("number %d is %#x, want %#x", i, got, w)
		}
	}
	// The same generator's .random(3).
	s = Key{Seed: 7, Epoch: 2, Sample: 1041, Op: 3}.Source()
	for i, w := range []float64{0x1.d15e54e7e8484p-3, 0x1.80eb1d871d134p-1, 0x1.0fd5c88b7d0c0p-3} {
		if got := s.Float64(); got != w {
			t.Errorf("float %d is %x, want %x", i, got, w)
		}
	}
}

// Any change here changes the pixels and the order of every job there is: it needs a new operator or order version.
func TestBitsNeverChange(t *testing.T) {
	s := Key{Seed: 7, Epoch: 2, Sample: 1041, Op: 3}.Source()
	for range 12 {
		s.Uint64()
	}
	want := map[string]any{
		"IntN": []int64{0, 5, 51, 48715296071, 4440624626226787880, 8386183307323740907},
		"Uniform": []uint64{
			4615067449721498562, 4617198149990131292, 4617280222807435277, 13835881852903049168,
		},
		"LogUniform": []uint64{
			4606637628311999275, 4605737645372068569, 7000734353885858213, 4616336897691877153,
		},
		"Perm": []int{6, 3, 0, 4, 8, 5, 9, 2, 7, 1},
		"Bool": []bool{false, false, false, true, false, false, false, true},
		"Mix": []uint64{
			13190958424272077119, 15829713065663489932, 16078906097072842533, 15671464815516945479, 5506699670891628486,
		},
	}
	got := map[string]any{
		"IntN": []int64{
			s.IntN(1), s.IntN(6), s.IntN(1000), s.IntN(1 << 40), s.IntN(1<<62 + 1), s.IntN(math.MaxInt64),
		},
		"Uniform": []uint64{
			math.Float64bits(s.Uniform(-3, 5)), math.Float64bits(s.Uniform(-3, 5)),
			math.Float64bits(s.Uniform(-3, 5)), math.Float64bits(s.Uniform(-3, 5)),
		},
		"LogUniform": []uint64{
			math.Float64bits(s.LogUniform(0.75, 4.0/3)), math.Float64bits(s.LogUniform(0.75, 4.0/3)),
			math.Float64bits(s.LogUniform(1e-300, 1e300)), math.Float64bits(s.LogUniform(3, 5)),
		},
		"Perm": s.Perm(10),
		"Bool": []bool{s.Bool(.3), s.Bool(.3), s.Bool(.3), s.Bool(.3), s.Bool(.3), s.Bool(.3), s.Bool(.3), s.Bool(.3)},
		"Mix":  []uint64{Mix(), Mix(0), Mix(0, 0), Mix(1, 2), Mix(1, 2, 3)},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("draws changed (-want +got):\n%s", diff)
	}
}
