// The colour operators of pixels_color.h with AVX2: the same results.
#ifndef MILLRACE_IMAGE_PIXELS_AVX2_H
#define MILLRACE_IMAGE_PIXELS_AVX2_H

#include "pixels_color.h"
#include "pixels_curve.h"

#if defined(__x86_64__)
#include <immintrin.h>

AVX2 __m256i load8(const uint8_t *p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)); }

// pack32 makes bytes of 4 × 8 integers. The saturation of both steps is the clipping.
AVX2 __m256i pack32(__m256i a, __m256i b, __m256i c, __m256i d)
{
	__m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
	return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

AVX2 __m256i blend8(__m256i p, __m256i from, __m256 from_f, __m256 factor)
{
	__m256 diff = _mm256_cvtepi32_ps(_mm256_sub_epi32(p, from));
	return _mm256_cvttps_epi32(_mm256_add_ps(from_f, _mm256_mul_ps(factor, diff)));
}

AVX2 void blend_flat_avx2(uint8_t *p, size_t n, int base, float factor)
{
	struct curve curve;
	if (n >= CURVE_PAYS && curve_flat(&curve, base, factor)) {
		size_t done = n / 32 * 32;
		for (size_t i = 0; i < done; i += 32)
			_mm256_storeu_si256((__m256i *)(p + i), curve_at(&curve, _mm256_loadu_si256((const __m256i *)(p + i))));
		p += done, n -= done;
	}
	__m256i from = _mm256_set1_epi32(base);
	__m256 from_f = _mm256_set1_ps((float)base), k = _mm256_set1_ps(factor);
	size_t i = 0;
	for (; i + 32 <= n; i += 32) {
		__m256i v[4];
		for (int j = 0; j < 4; j++)
			v[j] = blend8(load8(p + i + 8 * j), from, from_f, k);
		_mm256_storeu_si256((__m256i *)(p + i), pack32(v[0], v[1], v[2], v[3]));
	}
	blend_flat_any(p + i, n - i, base, factor);
}

AVX2 void blend_avx2(uint8_t *p, const uint8_t *from, size_t n, float factor)
{
	__m256 k = _mm256_set1_ps(factor);
	size_t i = 0;
	for (; i + 32 <= n; i += 32) {
		__m256i v[4];
		for (int j = 0; j < 4; j++) {
			__m256i f = load8(from + i + 8 * j);
			v[j] = blend8(load8(p + i + 8 * j), f, _mm256_cvtepi32_ps(f), k);
		}
		_mm256_storeu_si256((__m256i *)(p + i), pack32(v[0], v[1], v[2], v[3]));
	}
	blend_any(p + i, from + i, n - i, factor);
}

AVX2 __m256i load32(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }

AVX2 void luma_avx2(uint8_t *out, const uint8_t *r, const uint8_t *g, const uint8_t *b, size_t n)
{
	size_t i = 0;
	for (; i + 32 <= n; i += 32)
		_mm256_storeu_si256((__m256i *)(out + i), luma32(load32(r + i), load32(g + i), load32(b + i)));
	luma_any(out + i, r + i, g + i, b + i, n - i);
}

AVX2 uint64_t luma_sum_avx2(const uint8_t *r, const uint8_t *g, const uint8_t *b, size_t n)
{
	__m256i sums = _mm256_setzero_si256();
	size_t i = 0;
	for (; i + 32 <= n; i += 32) {
		__m256i luma = luma32(load32(r + i), load32(g + i), load32(b + i));
		sums = _mm256_add_epi64(sums, _mm256_sad_epu8(luma, _mm256_setzero_si256()));
	}
	_Alignas(32) uint64_t sum[4];
	_mm256_store_si256((__m256i *)sum, sums);
	return sum[0] + sum[1] + sum[2] + sum[3] + luma_sum_any(r + i, g + i, b + i, n - i);
}

AVX2 void saturate_avx2(uint8_t *pr, uint8_t *pg, uint8_t *pb, size_t n, float factor)
{
	struct curve curve;
	size_t i = 0;
	if (n >= CURVE_PAYS && curve_apart(&curve, factor))
		for (; i + 32 <= n; i += 32) {
			__m256i r = load32(pr + i), g = load32(pg + i), b = load32(pb + i), luma = luma32(r, g, b);
			_mm256_storeu_si256((__m256i *)(pr + i), apart32(&curve, r, luma));
			_mm256_storeu_si256((__m256i *)(pg + i), apart32(&curve, g, luma));
			_mm256_storeu_si256((__m256i *)(pb + i), apart32(&curve, b, luma));
		}
	_Alignas(32) uint8_t luma[BLOCK];
	for (; i < n; i += BLOCK) {
		size_t m = n - i < BLOCK ? n - i : BLOCK;
		luma_avx2(luma, pr + i, pg + i, pb + i, m);
		blend_avx2(pr + i, luma, m, factor);
		blend_avx2(pg + i, luma, m, factor);
		blend_avx2(pb + i, luma, m, factor);
	}
}

AVX2 __m256 table8(__m256 table, __m256i index) { return _mm256_permutevar8x32_ps(table, index); }

// widen32 makes four vectors of eight integers of 32 bytes, in the order that packing them twice undoes.
AVX2 void widen32(__m256i to[4], __m256i bytes)
{
	const __m256i zero = _mm256_setzero_si256();
	__m256i lo = _mm256_unpacklo_epi8(bytes, zero), hi = _mm256_unpackhi_epi8(bytes, zero);
	to[0] = _mm256_unpacklo_epi16(lo, zero), to[1] = _mm256_unpackhi_epi16(lo, zero);
	to[2] = _mm256_unpacklo_epi16(hi, zero), to[3] = _mm256_unpackhi_epi16(hi, zero);
}

AVX2 __m256 float8(__m256i v) { return _mm256_cvtepi32_ps(v); }

// hue8 is the 8-bit hue of eight pixels: see hue_any. which says whether red (1) and green (2) are greatest, and whether
// the last or, of the others, the first is least (4); away is the greatest less the middle. Grey pixels get some hue,
// which without saturation means nothing.
AVX2 __m256i hue8(__m256i which, __m256 away, __m256 range)
{
	const __m256 bases = _mm256_setr_ps(5, -1, 3, -1, 3, 1, 1, 1);
	const __m256 signs = _mm256_setr_ps(-0.0f, 0, -0.0f, 0, 0, -0.0f, 0, -0.0f);
	// The one case that is negative, always, is brought up by a turn.
	const __m256 turns = _mm256_setr_ps(0, 1, 0, 1, 0, 0, 0, 0);
	__m256 x = _mm256_div_ps(away, _mm256_max_ps(range, _mm256_set1_ps(1)));
	x = _mm256_xor_ps(x, table8(signs, which));
	__m256 turn = _mm256_div_ps(_mm256_add_ps(table8(bases, which), x), _mm256_set1_ps(6));
	turn = _mm256_add_ps(turn, table8(turns, which));
	return _mm256_cvttps_epi32(_mm256_mul_ps(turn, _mm256_set1_ps(255)));
}

// hue_parts are 32 pixels as hues of 8 bits, turned by shift, and saturations, both in 16, with the greatest channel.
struct hue_parts {
	__m256i h[2], s[2], max;
	__m256 v[4];  // max, in the order of widen32.
};

AVX2 struct hue_parts hue_split(__m256i r, __m256i g, __m256i b, int shift)
{
	struct hue_parts to;
	__m256i max = _mm256_max_epu8(r, _mm256_max_epu8(g, b)), min = _mm256_min_epu8(r, _mm256_min_epu8(g, b));
	__m256i is_r = _mm256_cmpeq_epi8(r, max), is_g = _mm256_cmpeq_epi8(g, max);
	__m256i low = _mm256_or_si256(_mm256_cmpeq_epi8(b, min), _mm256_andnot_si256(is_g, _mm256_cmpeq_epi8(r, min)));
	__m256i which = _mm256_or_si256(_mm256_and_si256(is_r, _mm256_set1_epi8(1)), _mm256_and_si256(is_g, _mm256_set1_epi8(2)));
	// The sum wraps, and so does what is taken from it.
	__m256i mid = _mm256_sub_epi8(_mm256_add_epi8(r, _mm256_add_epi8(g, b)), _mm256_add_epi8(max, min));
	__m256i cases[4], aways[4], ranges[4], maxes[4], h[4], s[4];
	widen32(cases, _mm256_or_si256(which, _mm256_and_si256(low, _mm256_set1_epi8(4))));
	widen32(aways, _mm256_sub_epi8(max, mid));
	widen32(ranges, _mm256_sub_epi8(max, min));
	widen32(maxes, max);
	for (int i = 0; i < 4; i++) {
		__m256 range = float8(ranges[i]);
		to.v[i] = float8(maxes[i]);
		h[i] = hue8(cases[i], float8(aways[i]), range);
		__m256 part = _mm256_div_ps(range, _mm256_max_ps(to.v[i], _mm256_set1_ps(1)));
		s[i] = _mm256_cvttps_epi32(_mm256_mul_ps(part, _mm256_set1_ps(255)));
	}
	for (int i = 0; i < 2; i++) {
		to.h[i] = _mm256_add_epi16(_mm256_packs_epi32(h[2 * i], h[2 * i + 1]), _mm256_set1_epi16((short)shift));
		to.h[i] = _mm256_and_si256(to.h[i], _mm256_set1_epi16(255));
		to.s[i] = _mm256_packs_epi32(s[2 * i], s[2 * i + 1]);
	}
	to.max = max;
	return to;
}

// sorted32 is where, of the greatest, middle and least channel of 32 pixels, each goes by the sector of the hue: 0 to 6.
AVX2 __m256i sorted32(__m256i most, __m256i middle, __m256i least, __m256i sector, __m128i is_most, __m128i is_middle)
{
	__m256i first = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(is_most), sector);
	__m256i second = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(is_middle), sector);
	return _mm256_blendv_epi8(_mm256_blendv_epi8(least, middle, second), most, first);
}

#define SECTORS(a, b, c, d, e, f) _mm_setr_epi8(-(a), -(b), -(c), -(d), -(e), -(f), -(a), 0, 0, 0, 0, 0, 0, 0, 0, 0)

AVX2 void hue_avx2(uint8_t *pr, uint8_t *pg, uint8_t *pb, size_t n, int shift)
{
	const __m256i one = _mm256_set1_epi16(1), byte = _mm256_set1_epi16(255), zero = _mm256_setzero_si256();
	size_t i = 0;
	for (; i + 32 <= n; i += 32) {
		struct hue_parts parts = hue_split(load32(pr + i), load32(pg + i), load32(pb + i), shift);
		__m256i v[2] = {_mm256_unpacklo_epi8(parts.max, zero), _mm256_unpackhi_epi8(parts.max, zero)};
		__m256i sectors[2], p[2], q[2];
		for (int j = 0; j < 2; j++) {
			// The sector is h × 6 / 255, and rest what is left of it: 0 to 254.
			__m256i six = _mm256_mullo_epi16(parts.h[j], _mm256_set1_epi16(6)), s = parts.s[j];
			sectors[j] = _mm256_mulhi_epu16(_mm256_add_epi16(six, one), _mm256_set1_epi16(257));
			__m256i rest = _mm256_sub_epi16(six, _mm256_mullo_epi16(sectors[j], byte));
			// Even sectors take 255 - rest, which for bytes is its complement.
			__m256i even = _mm256_sub_epi16(_mm256_and_si256(sectors[j], one), one);
			__m256i part = _mm256_mullo_epi16(_mm256_xor_si256(rest, _mm256_and_si256(even, byte)), s);
			// v × (255 - s) / 255, rounded; it is never halfway between two integers.
			p[j] = _mm256_add_epi16(_mm256_mullo_epi16(v[j], _mm256_xor_si256(s, byte)), _mm256_set1_epi16(128));
			p[j] = _mm256_srli_epi16(_mm256_add_epi16(p[j], _mm256_srli_epi16(p[j], 8)), 8);
			__m256i halves[2] = {_mm256_unpacklo_epi16(part, zero), _mm256_unpackhi_epi16(part, zero)};
			for (int k = 0; k < 2; k++) {
				__m256 most = parts.v[2 * j + k];
				__m256 less = _mm256_mul_ps(most, _mm256_mul_ps(float8(halves[k]), _mm256_set1_ps(1.0f / 65025)));
				halves[k] = _mm256_cvttps_epi32(_mm256_add_ps(_mm256_sub_ps(most, less), _mm256_set1_ps(0.5f)));
			}
			q[j] = _mm256_packs_epi32(halves[0], halves[1]);
		}
		__m256i sector = _mm256_packus_epi16(sectors[0], sectors[1]);
		__m256i middle = _mm256_packus_epi16(q[0], q[1]), least = _mm256_packus_epi16(p[0], p[1]);
		// Sectors 0 to 5 are (v q p) (q v p) (p v q) (p q v) (q p v) (v p q), and 6 is 0 again.
		__m256i r = sorted32(parts.max, middle, least, sector, SECTORS(1, 0, 0, 0, 0, 1), SECTORS(0, 1, 0, 0, 1, 0));
		__m256i g = sorted32(parts.max, middle, least, sector, SECTORS(0, 1, 1, 0, 0, 0), SECTORS(1, 0, 0, 1, 0, 0));
		__m256i b = sorted32(parts.max, middle, least, sector, SECTORS(0, 0, 0, 1, 1, 0), SECTORS(0, 0, 1, 0, 0, 1));
		_mm256_storeu_si256((__m256i *)(pr + i), r);
		_mm256_storeu_si256((__m256i *)(pg + i), g);
		_mm256_storeu_si256((__m256i *)(pb + i), b);
	}
	hue_any(pr + i, pg + i, pb + i, n - i, shift);
}
#endif

#endif
