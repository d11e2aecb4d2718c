// The two resample passes over rows of 4-byte pixels, portable and AVX2. Both give the same bytes: 32-bit sums wrap, so
// their order is free.
#ifndef MILLRACE_IMAGE_PASSES_H
#define MILLRACE_IMAGE_PASSES_H

#include <stdint.h>
#include <string.h>

#define MR_PRECISION 22
#define MR_HALF (1 << (MR_PRECISION - 1))
// Rows have this many bytes beyond their last pixel that may be read (or, on outputs, written).
#define MR_SLACK 64

static inline uint8_t mr_clip(uint32_t sum)
{
	int32_t v = (int32_t)sum >> MR_PRECISION;
	return v < 0 ? 0 : v > 255 ? 255 : (uint8_t)v;
}

static void mr_h_row_scalar(uint8_t *out, const uint8_t *in, int n, const int32_t *bounds, const int32_t *weights, int stride)
{
	for (int x = 0; x < n; x++) {
		const uint8_t *p = in + 4 * (size_t)bounds[2 * x];
		const int32_t *k = weights + (size_t)x * stride;
		uint32_t s0 = MR_HALF, s1 = MR_HALF, s2 = MR_HALF;
		for (int j = 0; j < bounds[2 * x + 1]; j++, p += 4) {
			s0 += (uint32_t)p[0] * (uint32_t)k[j];
			s1 += (uint32_t)p[1] * (uint32_t)k[j];
			s2 += (uint32_t)p[2] * (uint32_t)k[j];
		}
		out[4 * x] = mr_clip(s0);
		out[4 * x + 1] = mr_clip(s1);
		out[4 * x + 2] = mr_clip(s2);
		out[4 * x + 3] = 255;
	}
}

static void mr_v_row_scalar(uint8_t *out, const uint8_t *const *rows, int taps, const int32_t *k, int bytes)
{
	enum { STEP = 64 };
	for (int at = 0; at < bytes; at += STEP) {
		uint32_t sums[STEP];
		int n = bytes - at < STEP ? bytes - at : STEP;
		for (int i = 0; i < n; i++)
			sums[i] = MR_HALF;
		for (int j = 0; j < taps; j++) {
			const uint8_t *p = rows[j] + at;
			uint32_t w = (uint32_t)k[j];
			for (int i = 0; i < n; i++)
				sums[i] += p[i] * w;
		}
		for (int i = 0; i < n; i++)
			out[at + i] = mr_clip(sums[i]);
	}
}

#if defined(__x86_64__)
#include <immintrin.h>

// A weight is hi·2048 + lo with 0 ≤ lo < 2048, so that both halves fit the 16-bit multiply-add.
// mr_pack lays four weights out as two pairs of hi and two of lo.
static void mr_pack(uint32_t *out, const int32_t *k, int count)
{
	for (int j = 0; j < count; j += 4, out += 4) {
		for (int pair = 0; pair < 2; pair++) {
			int32_t a = k[j + 2 * pair], b = k[j + 2 * pair + 1];
			out[pair] = ((uint32_t)(a >> 11) & 0xFFFF) | (uint32_t)(b >> 11) << 16;
			out[2 + pair] = ((uint32_t)a & 2047) | ((uint32_t)b & 2047) << 16;
		}
	}
}

__attribute__((target("avx2"))) static inline __m256i mr_two_rows(const uint8_t *a, const uint8_t *b)
{
	return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)a)),
	                               _mm_loadu_si128((const __m128i *)b), 1);
}

__attribute__((target("avx2"))) static inline __m256i mr_scale(__m256i hi, __m256i lo)
{
	__m256i sum = _mm256_add_epi32(_mm256_slli_epi32(hi, 11), lo);
	return _mm256_srai_epi32(sum, MR_PRECISION);
}

// mr_h_rows_avx2 does four rows at once. packed holds stride words per output, from mr_pack.
__attribute__((target("avx2"))) static void mr_h_rows_avx2(uint8_t *const out[4], const uint8_t *const in[4], int n,
                                                           const int32_t *bounds, const uint32_t *packed, int stride)
{
	const __m256i first = _mm256_broadcastsi128_si256(
	    _mm_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1));
	const __m256i second = _mm256_broadcastsi128_si256(
	    _mm_setr_epi8(8, -1, 12, -1, 9, -1, 13, -1, 10, -1, 14, -1, 11, -1, 15, -1));
	for (int x = 0; x < n; x++) {
		size_t at = 4 * (size_t)bounds[2 * x];
		int taps = bounds[2 * x + 1];
		const uint32_t *k = packed + (size_t)x * stride;
		__m256i hi0 = _mm256_setzero_si256(), hi1 = hi0;
		__m256i lo0 = _mm256_set1_epi32(MR_HALF), lo1 = lo0;
		for (int j = 0; j < taps; j += 4, at += 16, k += 4) {
			__m256i wh0 = _mm256_set1_epi32((int)k[0]), wh1 = _mm256_set1_epi32((int)k[1]);
			__m256i wl0 = _mm256_set1_epi32((int)k[2]), wl1 = _mm256_set1_epi32((int)k[3]);
			__m256i p = mr_two_rows(in[0] + at, in[1] + at);
			__m256i q = mr_two_rows(in[2] + at, in[3] + at);
			__m256i a = _mm256_shuffle_epi8(p, first), b = _mm256_shuffle_epi8(p, second);
			hi0 = _mm256_add_epi32(hi0, _mm256_add_epi32(_mm256_madd_epi16(a, wh0), _mm256_madd_epi16(b, wh1)));
			lo0 = _mm256_add_epi32(lo0, _mm256_add_epi32(_mm256_madd_epi16(a, wl0), _mm256_madd_epi16(b, wl1)));
			a = _mm256_shuffle_epi8(q, first), b = _mm256_shuffle_epi8(q, second);
			hi1 = _mm256_add_epi32(hi1, _mm256_add_epi32(_mm256_madd_epi16(a, wh0), _mm256_madd_epi16(b, wh1)));
			lo1 = _mm256_add_epi32(lo1, _mm256_add_epi32(_mm256_madd_epi16(a, wl0), _mm256_madd_epi16(b, wl1)));
		}
		__m256i words = _mm256_packs_epi32(mr_scale(hi0, lo0), mr_scale(hi1, lo1));
		__m256i bytes = _mm256_packus_epi16(words, words);
		__m128i even = _mm256_castsi256_si128(bytes), odd = _mm256_extracti128_si256(bytes, 1);
		uint32_t v[4] = {(uint32_t)_mm_cvtsi128_si32(even), (uint32_t)_mm_cvtsi128_si32(odd),
		                 (uint32_t)_mm_extract_epi32(even, 1), (uint32_t)_mm_extract_epi32(odd, 1)};
		for (int r = 0; r < 4; r++)
			memcpy(out[r] + 4 * (size_t)x, &v[r], 4);
	}
}

// mr_v_row_avx2 writes bytes rounded up to 32. packed comes from mr_pack; rows has an even number of entries.
__attribute__((target("avx2"))) static void mr_v_row_avx2(uint8_t *out, const uint8_t *const *rows, int taps,
                                                          const uint32_t *packed, int bytes)
{
	const __m256i zero = _mm256_setzero_si256();
	for (int at = 0; at < bytes; at += 32) {
		__m256i hi0 = zero, hi1 = zero, hi2 = zero, hi3 = zero;
		__m256i lo0 = _mm256_set1_epi32(MR_HALF), lo1 = lo0, lo2 = lo0, lo3 = lo0;
		for (int j = 0; j < taps; j += 2) {
			const uint32_t *k = packed + (size_t)(j / 4) * 4 + (j / 2) % 2;
			__m256i wh = _mm256_set1_epi32((int)k[0]), wl = _mm256_set1_epi32((int)k[2]);
			__m256i a = _mm256_loadu_si256((const __m256i *)(rows[j] + at));
			__m256i b = _mm256_loadu_si256((const __m256i *)(rows[j + 1] + at));
			__m256i low = _mm256_unpacklo_epi8(a, b), high = _mm256_unpackhi_epi8(a, b);
			__m256i p0 = _mm256_unpacklo_epi8(low, zero), p1 = _mm256_unpackhi_epi8(low, zero);
			__m256i p2 = _mm256_unpacklo_epi8(high, zero), p3 = _mm256_unpackhi_epi8(high, zero);
			hi0 = _mm256_add_epi32(hi0, _mm256_madd_epi16(p0, wh));
			hi1 = _mm256_add_epi32(hi1, _mm256_madd_epi16(p1, wh));
			hi2 = _mm256_add_epi32(hi2, _mm256_madd_epi16(p2, wh));
			hi3 = _mm256_add_epi32(hi3, _mm256_madd_epi16(p3, wh));
			lo0 = _mm256_add_epi32(lo0, _mm256_madd_epi16(p0, wl));
			lo1 = _mm256_add_epi32(lo1, _mm256_madd_epi16(p1, wl));
			lo2 = _mm256_add_epi32(lo2, _mm256_madd_epi16(p2, wl));
			lo3 = _mm256_add_epi32(lo3, _mm256_madd_epi16(p3, wl));
		}
		__m256i w0 = _mm256_packs_epi32(mr_scale(hi0, lo0), mr_scale(hi1, lo1));
		__m256i w1 = _mm256_packs_epi32(mr_scale(hi2, lo2), mr_scale(hi3, lo3));
		_mm256_storeu_si256((__m256i *)(out + at), _mm256_packus_epi16(w0, w1));
	}
}

// mr_planes_avx2 spreads 16 pixels at a time over three planes, forwards or mirrored; it returns how many it did.
__attribute__((target("avx2"))) static int mr_planes_avx2(uint8_t *const plane[3], const uint8_t *in, int n, int flip)
{
	const __m128i forward = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
	const __m128i mirror = _mm_setr_epi8(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
	int x = 0;
	for (; x + 16 <= n; x += 16) {
		const __m128i *p = (const __m128i *)(in + 4 * (size_t)x);
		__m128i a = _mm_shuffle_epi8(_mm_loadu_si128(p), forward), b = _mm_shuffle_epi8(_mm_loadu_si128(p + 1), forward);
		__m128i c = _mm_shuffle_epi8(_mm_loadu_si128(p + 2), forward), d = _mm_shuffle_epi8(_mm_loadu_si128(p + 3), forward);
		__m128i rg0 = _mm_unpacklo_epi32(a, b), rg1 = _mm_unpacklo_epi32(c, d);
		__m128i bx0 = _mm_unpackhi_epi32(a, b), bx1 = _mm_unpackhi_epi32(c, d);
		__m128i v[3] = {_mm_unpacklo_epi64(rg0, rg1), _mm_unpackhi_epi64(rg0, rg1), _mm_unpacklo_epi64(bx0, bx1)};
		for (int i = 0; i < 3; i++) {
			if (flip)
				_mm_storeu_si128((__m128i *)(plane[i] + n - x - 16), _mm_shuffle_epi8(v[i], mirror));
			else
				_mm_storeu_si128((__m128i *)(plane[i] + x), v[i]);
		}
	}
	return x;
}
#endif

#endif
