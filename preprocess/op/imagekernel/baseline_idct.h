// The inverse cosine transform of two blocks, with the arithmetic of libjpeg-turbo's slow-and-exact one as its vector
// code does it: 16-bit products and sums that wrap, 32-bit sums, results that saturate.
#ifndef MILLRACE_IMAGE_BASELINE_IDCT_H
#define MILLRACE_IMAGE_BASELINE_IDCT_H

#include <stdint.h>
#include <string.h>

// Cosines with 13 bits behind the point, in the sums in which they are used.
enum {
	C_EVEN = 4433,                 // 0.541196100
	C_EVEN_2 = 4433 + 6270,        // + 0.765366865
	C_EVEN_6 = 4433 - 15137,       // - 1.847759065
	C_ODD = 9633,                  // 1.175875602
	C_ODD_73 = 9633 - 16069,       // - 1.961570560
	C_ODD_51 = 9633 - 3196,        // - 0.390180644
	C_71 = -7373,                  // -0.899976223
	C_7 = 2446 - 7373,             // 0.298631336 - 0.899976223
	C_1 = 12299 - 7373,            // 1.501321110 - 0.899976223
	C_53 = -20995,                 // -2.562915447
	C_5 = 16819 - 20995,           // 2.053119869 - 2.562915447
	C_3 = 25172 - 20995,           // 3.072711026 - 2.562915447
};

static inline int16_t mr_saturate16(int32_t v) { return v < -32768 ? -32768 : v > 32767 ? 32767 : (int16_t)v; }

// mr_idct_line transforms eight values that lie step apart in place.
static void mr_idct_line(int16_t *p, int step, int shift)
{
	int32_t round = 1 << (shift - 1);
	int32_t z2 = p[2 * step], z3 = p[6 * step];
	int32_t even0 = (int32_t)((uint32_t)(int16_t)(p[0] + p[4 * step]) << 13);
	int32_t even1 = (int32_t)((uint32_t)(int16_t)(p[0] - p[4 * step]) << 13);
	int32_t even2 = z2 * C_EVEN + z3 * C_EVEN_6, even3 = z2 * C_EVEN_2 + z3 * C_EVEN;
	int32_t a[4] = {even0 + even3 + round, even1 + even2 + round, even1 - even2 + round, even0 - even3 + round};
	int32_t t0 = p[7 * step], t1 = p[5 * step], t2 = p[3 * step], t3 = p[step];
	int32_t s3 = (int16_t)(t0 + t2), s4 = (int16_t)(t1 + t3);
	int32_t o3 = s3 * C_ODD_73 + s4 * C_ODD, o4 = s3 * C_ODD + s4 * C_ODD_51;
	int32_t b[4] = {t0 * C_71 + t3 * C_1 + o4, t1 * C_53 + t2 * C_3 + o3, t1 * C_5 + t2 * C_53 + o4, t0 * C_7 + t3 * C_71 + o3};
	for (int i = 0; i < 4; i++) {
		p[i * step] = mr_saturate16((int32_t)((uint32_t)a[i] + (uint32_t)b[i]) >> shift);
		p[(7 - i) * step] = mr_saturate16((int32_t)((uint32_t)a[i] - (uint32_t)b[i]) >> shift);
	}
}

static void idct_any(const int16_t *coefs, const int16_t *quant, uint8_t *const to[2], const size_t stride[2])
{
	for (int lane = 0; lane < 2; lane++) {
		int16_t block[64];
		int flat = 1;
		for (int i = 0; i < 64; i++) {
			int at = (i >> 3) * 16 + 8 * lane + (i & 7);
			block[i] = (int16_t)((uint32_t)coefs[at] * (uint32_t)quant[at]);
			flat &= i < 8 || coefs[at] == 0;
		}
		for (int x = 0; x < 8; x++) {
			if (!flat) {
				mr_idct_line(block + x, 8, 11);
				continue;
			}
			for (int y = 7; y >= 0; y--)
				block[8 * y + x] = (int16_t)((uint32_t)block[x] << 2);
		}
		for (int y = 0; y < 8; y++) {
			mr_idct_line(block + 8 * y, 1, 18);
			for (int x = 0; x < 8; x++) {
				int v = block[8 * y + x];
				to[lane][(size_t)y * stride[lane] + (size_t)x] = (uint8_t)((v < -128 ? -128 : v > 127 ? 127 : v) + 128);
			}
		}
	}
}

#if defined(__x86_64__)
#include <immintrin.h>

#define MR_AVX2 __attribute__((target("avx2,bmi2"))) static inline __attribute__((always_inline))

MR_AVX2 __m256i mr_pair(int a, int b) { return _mm256_set1_epi32((int)(((uint32_t)a & 0xFFFF) | (uint32_t)b << 16)); }

struct mr_wide {
	__m256i lo, hi;
};

// mr_dot is a·x + b·y of each pair of 16-bit values.
MR_AVX2 struct mr_wide mr_dot(__m256i x, __m256i y, int a, int b)
{
	__m256i k = mr_pair(a, b);
	return (struct mr_wide){_mm256_madd_epi16(_mm256_unpacklo_epi16(x, y), k), _mm256_madd_epi16(_mm256_unpackhi_epi16(x, y), k)};
}

MR_AVX2 struct mr_wide mr_plus(struct mr_wide a, struct mr_wide b)
{
	return (struct mr_wide){_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}

MR_AVX2 struct mr_wide mr_minus(struct mr_wide a, struct mr_wide b)
{
	return (struct mr_wide){_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}

// mr_times is x·2^13, rounded for a later shift.
MR_AVX2 struct mr_wide mr_times(__m256i x, int shift)
{
	__m256i zero = _mm256_setzero_si256(), round = _mm256_set1_epi32(1 << (shift - 1));
	__m256i lo = _mm256_srai_epi32(_mm256_unpacklo_epi16(zero, x), 3), hi = _mm256_srai_epi32(_mm256_unpackhi_epi16(zero, x), 3);
	return (struct mr_wide){_mm256_add_epi32(lo, round), _mm256_add_epi32(hi, round)};
}

MR_AVX2 __m256i mr_narrow(struct mr_wide v, int shift)
{
	return _mm256_packs_epi32(_mm256_srai_epi32(v.lo, shift), _mm256_srai_epi32(v.hi, shift));
}

// mr_idct_lines transforms eight vectors, one line for each of their elements.
MR_AVX2 void mr_idct_lines(__m256i v[8], int shift)
{
	struct mr_wide even0 = mr_times(_mm256_add_epi16(v[0], v[4]), shift), even1 = mr_times(_mm256_sub_epi16(v[0], v[4]), shift);
	struct mr_wide even2 = mr_dot(v[2], v[6], C_EVEN, C_EVEN_6), even3 = mr_dot(v[2], v[6], C_EVEN_2, C_EVEN);
	struct mr_wide a[4] = {mr_plus(even0, even3), mr_plus(even1, even2), mr_minus(even1, even2), mr_minus(even0, even3)};
	__m256i s3 = _mm256_add_epi16(v[7], v[3]), s4 = _mm256_add_epi16(v[5], v[1]);
	struct mr_wide o3 = mr_dot(s3, s4, C_ODD_73, C_ODD), o4 = mr_dot(s3, s4, C_ODD, C_ODD_51);
	struct mr_wide b[4] = {
	    mr_plus(mr_dot(v[7], v[1], C_71, C_1), o4), mr_plus(mr_dot(v[5], v[3], C_53, C_3), o3),
	    mr_plus(mr_dot(v[5], v[3], C_5, C_53), o4), mr_plus(mr_dot(v[7], v[1], C_7, C_71), o3)};
	for (int i = 0; i < 4; i++) {
		v[i] = mr_narrow(mr_plus(a[i], b[i]), shift);
		v[7 - i] = mr_narrow(mr_minus(a[i], b[i]), shift);
	}
}

// mr_turn transposes 8×8 values of 16 bits in each half.
MR_AVX2 void mr_turn(__m256i v[8])
{
	__m256i a[8], b[8];
	for (int i = 0; i < 4; i++) {
		a[2 * i] = _mm256_unpacklo_epi16(v[2 * i], v[2 * i + 1]);
		a[2 * i + 1] = _mm256_unpackhi_epi16(v[2 * i], v[2 * i + 1]);
	}
	for (int i = 0; i < 2; i++) {
		b[4 * i] = _mm256_unpacklo_epi32(a[4 * i], a[4 * i + 2]);
		b[4 * i + 1] = _mm256_unpackhi_epi32(a[4 * i], a[4 * i + 2]);
		b[4 * i + 2] = _mm256_unpacklo_epi32(a[4 * i + 1], a[4 * i + 3]);
		b[4 * i + 3] = _mm256_unpackhi_epi32(a[4 * i + 1], a[4 * i + 3]);
	}
	for (int i = 0; i < 4; i++) {
		v[2 * i] = _mm256_unpacklo_epi64(b[i], b[4 + i]);
		v[2 * i + 1] = _mm256_unpackhi_epi64(b[i], b[4 + i]);
	}
}

// mr_turn_bytes narrows eight columns of 16-bit values and makes rows of bytes of them, two in each half of a vector.
MR_AVX2 void mr_turn_bytes(__m256i rows[4], const __m256i v[8])
{
	const __m256i bias = _mm256_set1_epi8(-128);
	__m256i q[4], a[4], b[4];
	for (int i = 0; i < 4; i++)
		q[i] = _mm256_sub_epi8(_mm256_packs_epi16(v[i], v[4 + i]), bias);
	for (int i = 0; i < 2; i++) {
		a[i] = _mm256_unpacklo_epi8(q[2 * i], q[2 * i + 1]);
		a[2 + i] = _mm256_unpackhi_epi8(q[2 * i], q[2 * i + 1]);
	}
	for (int i = 0; i < 2; i++) {
		b[2 * i] = _mm256_unpacklo_epi16(a[2 * i], a[2 * i + 1]);
		b[2 * i + 1] = _mm256_unpackhi_epi16(a[2 * i], a[2 * i + 1]);
	}
	for (int i = 0; i < 2; i++) {
		rows[2 * i] = _mm256_unpacklo_epi32(b[i], b[2 + i]);
		rows[2 * i + 1] = _mm256_unpackhi_epi32(b[i], b[2 + i]);
	}
}

MR_AVX2 void idct_avx2(const int16_t *coefs, const int16_t *quant, uint8_t *const to[2], const size_t stride[2])
{
	__m256i v[8], rows[4], rest = _mm256_setzero_si256();
	for (int i = 0; i < 8; i++) {
		__m256i c = _mm256_load_si256((const __m256i *)coefs + i);
		if (i > 0)
			rest = _mm256_or_si256(rest, c);
		v[i] = _mm256_mullo_epi16(c, _mm256_load_si256((const __m256i *)quant + i));
	}
	// A block with no more than its first row of coefficients is not saturated by the first pass.
	__m256i none = _mm256_cmpeq_epi64(rest, _mm256_setzero_si256());
	none = _mm256_and_si256(none, _mm256_shuffle_epi32(none, 0x4E));
	__m256i flat = _mm256_slli_epi16(v[0], 2);
	mr_idct_lines(v, 11);
	for (int i = 0; i < 8; i++)
		v[i] = _mm256_blendv_epi8(v[i], flat, none);
	mr_turn(v);
	mr_idct_lines(v, 18);
	mr_turn_bytes(rows, v);
	for (int i = 0; i < 4; i++) {
		__m128i lo = _mm256_castsi256_si128(rows[i]), hi = _mm256_extracti128_si256(rows[i], 1);
		uint8_t *p = to[0] + (size_t)(2 * i) * stride[0], *q = to[1] + (size_t)(2 * i) * stride[1];
		_mm_storel_epi64((__m128i *)p, lo);
		_mm_storeh_pd((double *)(p + stride[0]), _mm_castsi128_pd(lo));
		_mm_storel_epi64((__m128i *)q, hi);
		_mm_storeh_pd((double *)(q + stride[1]), _mm_castsi128_pd(hi));
	}
}
#endif

#endif
