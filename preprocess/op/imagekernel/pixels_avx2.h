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

// What the hue of 32 pixels follows from, as bytes. The case is whether red and green are greatest, and whether the last
// or, of the others, the first is least: three bits that look up base and sign. away is the greatest less the middle.
struct hue_parts {
	_Alignas(32) uint8_t which[32], away[32], range[32], max[32];
};

AVX2 void hue_split(struct hue_parts *to, __m256i r, __m256i g, __m256i b)
{
	__m256i max = _mm256_max_epu8(r, _mm256_max_epu8(g, b)), min = _mm256_min_epu8(r, _mm256_min_epu8(g, b));
	__m256i is_r = _mm256_cmpeq_epi8(r, max), is_g = _mm256_cmpeq_epi8(g, max);
	__m256i low = _mm256_or_si256(_mm256_cmpeq_epi8(b, min), _mm256_andnot_si256(is_g, _mm256_cmpeq_epi8(r, min)));
	__m256i which = _mm256_or_si256(_mm256_and_si256(is_r, _mm256_set1_epi8(1)), _mm256_and_si256(is_g, _mm256_set1_epi8(2)));
	// The sum wraps, and so does what is taken from it.
	__m256i mid = _mm256_sub_epi8(_mm256_add_epi8(r, _mm256_add_epi8(g, b)), _mm256_add_epi8(max, min));
	_mm256_store_si256((__m256i *)to->which, _mm256_or_si256(which, _mm256_and_si256(low, _mm256_set1_epi8(4))));
	_mm256_store_si256((__m256i *)to->away, _mm256_sub_epi8(max, mid));
	_mm256_store_si256((__m256i *)to->range, _mm256_sub_epi8(max, min));
	_mm256_store_si256((__m256i *)to->max, max);
}

// hue8 is the 8-bit hue of eight pixels: see hue_any. Grey ones get some hue, which without saturation means nothing.
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

// turn8 gives eight pixels of the hue h, as bytes R, G, B, 0 of each 32 bits.
AVX2 __m256i turn8(__m256i h, __m256i max, __m256 range)
{
	const __m256i byte = _mm256_set1_epi32(255);
	__m256 v = _mm256_cvtepi32_ps(max);
	__m256 s = _mm256_mul_ps(_mm256_div_ps(range, _mm256_max_ps(v, _mm256_set1_ps(1))), _mm256_set1_ps(255));
	s = _mm256_cvtepi32_ps(_mm256_cvttps_epi32(s));

	// sector is h × 6 / 255, and rest what is left of it: 0 to 254. All of it fits 16 bits.
	__m256i six = _mm256_mullo_epi16(h, _mm256_set1_epi32(6));
	__m256i sector = _mm256_mulhi_epu16(_mm256_add_epi32(six, _mm256_set1_epi32(1)), _mm256_set1_epi32(257));
	__m256i rest = _mm256_sub_epi32(six, _mm256_mullo_epi16(sector, byte));
	// Even sectors take 255 - rest, which for bytes is its complement.
	__m256i even = _mm256_sub_epi32(_mm256_and_si256(sector, _mm256_set1_epi32(1)), _mm256_set1_epi32(1));
	rest = _mm256_xor_si256(rest, _mm256_and_si256(even, byte));
	__m256 part = _mm256_mul_ps(_mm256_cvtepi32_ps(rest), s);
	__m256 less_q = _mm256_mul_ps(v, _mm256_mul_ps(part, _mm256_set1_ps(1.0f / 65025)));
	__m256 less_p = _mm256_mul_ps(_mm256_mul_ps(v, s), _mm256_set1_ps(1.0f / 255));
	__m256i q = _mm256_cvttps_epi32(_mm256_add_ps(_mm256_sub_ps(v, less_q), _mm256_set1_ps(0.5f)));
	// No p is halfway between two integers, so that rounding to the nearest is the same; some q are.
	__m256i p = _mm256_cvtps_epi32(_mm256_sub_ps(v, less_p));

	// Bytes 0, 1 and 2 of each pixel are the greatest, the middle and the least; the sector says which goes where.
	__m256i values = _mm256_or_si256(max, _mm256_or_si256(_mm256_slli_epi32(q, 8), _mm256_slli_epi32(p, 16)));
	const __m256i orders = _mm256_setr_epi32(0x020100, 0x020001, 0x010002, 0x000102, 0x000201, 0x010200, 0x020100, 0);
	const __m256i places = _mm256_setr_epi32(0, 0x04040404, 0x08080808, 0x0C0C0C0C, 0, 0x04040404, 0x08080808, 0x0C0C0C0C);
	__m256i order = _mm256_add_epi32(_mm256_permutevar8x32_epi32(orders, sector), places);
	return _mm256_shuffle_epi8(values, order);
}

// planes32 makes three planes of 32 pixels of four bytes.
AVX2 void planes32(__m256i plane[3], const __m256i v[4])
{
	const __m256i apart = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
	const __m256i in_turn = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
	__m256i a = _mm256_shuffle_epi8(v[0], apart), b = _mm256_shuffle_epi8(v[1], apart);
	__m256i c = _mm256_shuffle_epi8(v[2], apart), d = _mm256_shuffle_epi8(v[3], apart);
	__m256i rg0 = _mm256_unpacklo_epi32(a, b), rg1 = _mm256_unpacklo_epi32(c, d);
	__m256i bx0 = _mm256_unpackhi_epi32(a, b), bx1 = _mm256_unpackhi_epi32(c, d);
	plane[0] = _mm256_permutevar8x32_epi32(_mm256_unpacklo_epi64(rg0, rg1), in_turn);
	plane[1] = _mm256_permutevar8x32_epi32(_mm256_unpackhi_epi64(rg0, rg1), in_turn);
	plane[2] = _mm256_permutevar8x32_epi32(_mm256_unpacklo_epi64(bx0, bx1), in_turn);
}

AVX2 void hue_avx2(uint8_t *pr, uint8_t *pg, uint8_t *pb, size_t n, int shift)
{
	const __m256i byte = _mm256_set1_epi32(255), by = _mm256_set1_epi32(shift);
	size_t i = 0;
	for (; i + 32 <= n; i += 32) {
		struct hue_parts parts;
		hue_split(&parts, _mm256_loadu_si256((const __m256i *)(pr + i)), _mm256_loadu_si256((const __m256i *)(pg + i)),
		          _mm256_loadu_si256((const __m256i *)(pb + i)));
		__m256i v[4], plane[3];
		for (int j = 0; j < 4; j++) {
			__m256 range = _mm256_cvtepi32_ps(load8(parts.range + 8 * j));
			__m256i h = hue8(load8(parts.which + 8 * j), _mm256_cvtepi32_ps(load8(parts.away + 8 * j)), range);
			v[j] = turn8(_mm256_and_si256(_mm256_add_epi32(h, by), byte), load8(parts.max + 8 * j), range);
		}
		planes32(plane, v);
		_mm256_storeu_si256((__m256i *)(pr + i), plane[0]);
		_mm256_storeu_si256((__m256i *)(pg + i), plane[1]);
		_mm256_storeu_si256((__m256i *)(pb + i), plane[2]);
	}
	hue_any(pr + i, pg + i, pb + i, n - i, shift);
}
#endif

#endif
