// The colour operators of pixels_color.h with AVX2: eight pixels at a time, the same operations in the same order.
#ifndef MILLRACE_IMAGE_PIXELS_AVX2_H
#define MILLRACE_IMAGE_PIXELS_AVX2_H

#include "pixels_color.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2"))) static inline

AVX2 __m256i load8(const uint8_t *p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)); }

// pack32 makes bytes of 4 × 8 integers. The saturation of both steps is the clipping.
AVX2 __m256i pack32(__m256i a, __m256i b, __m256i c, __m256i d)
{
	__m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
	return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

AVX2 void store8(uint8_t *p, __m256i v)
{
	__m128i words = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
	_mm_storel_epi64((__m128i *)p, _mm_packus_epi16(words, words));
}

AVX2 __m256i blend8(__m256i p, __m256i from, __m256 from_f, __m256 factor)
{
	__m256 diff = _mm256_cvtepi32_ps(_mm256_sub_epi32(p, from));
	return _mm256_cvttps_epi32(_mm256_add_ps(from_f, _mm256_mul_ps(factor, diff)));
}

AVX2 void blend_flat_avx2(uint8_t *p, size_t n, int base, float factor)
{
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

// luma8 splits the weight of green in two, so that all fit the signed 16-bit multiply-add.
AVX2 __m256i luma8(__m256i r, __m256i g, __m256i b)
{
	__m256i rg = _mm256_madd_epi16(_mm256_or_si256(r, _mm256_slli_epi32(g, 16)), _mm256_set1_epi32(19595 | 19235 << 16));
	__m256i gb = _mm256_madd_epi16(_mm256_or_si256(g, _mm256_slli_epi32(b, 16)), _mm256_set1_epi32(19235 | 7471 << 16));
	return _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(rg, gb), _mm256_set1_epi32(0x8000)), 16);
}

AVX2 void saturate_avx2(uint8_t *pr, uint8_t *pg, uint8_t *pb, size_t n, float factor)
{
	__m256 k = _mm256_set1_ps(factor);
	size_t i = 0;
	for (; i + 8 <= n; i += 8) {
		__m256i r = load8(pr + i), g = load8(pg + i), b = load8(pb + i);
		__m256i from = luma8(r, g, b);
		__m256 from_f = _mm256_cvtepi32_ps(from);
		store8(pr + i, blend8(r, from, from_f, k));
		store8(pg + i, blend8(g, from, from_f, k));
		store8(pb + i, blend8(b, from, from_f, k));
	}
	saturate_any(pr + i, pg + i, pb + i, n - i, factor);
}

AVX2 __m256i pick(__m256i mask, __m256i yes, __m256i no) { return _mm256_blendv_epi8(no, yes, mask); }

AVX2 __m256 pickf(__m256i mask, __m256 yes, __m256 no) { return _mm256_blendv_ps(no, yes, _mm256_castsi256_ps(mask)); }

// hue8 is the 8-bit hue of eight pixels: see hue_any.
AVX2 __m256i hue8(__m256i r, __m256i g, __m256i b, __m256i max, __m256i min, __m256i range)
{
	__m256i mid = _mm256_sub_epi32(_mm256_add_epi32(r, _mm256_add_epi32(g, b)), _mm256_add_epi32(max, min));
	__m256i low_b = _mm256_cmpeq_epi32(b, min), low_r = _mm256_cmpeq_epi32(r, min);
	__m256i is_r = _mm256_cmpeq_epi32(r, max), is_g = _mm256_cmpeq_epi32(g, max);
	const __m256 one = _mm256_set1_ps(1), three = _mm256_set1_ps(3), five = _mm256_set1_ps(5), minus = _mm256_set1_ps(-1);
	__m256 base = pickf(is_g, pickf(low_b, one, three), pickf(low_r, three, five));
	base = pickf(is_r, pickf(low_b, one, minus), base);
	// Minus for red over green over blue, green over red … : where the hue falls as the middle channel grows.
	__m256i falls = pick(is_g, _mm256_xor_si256(low_b, _mm256_set1_epi32(-1)), _mm256_xor_si256(low_r, _mm256_set1_epi32(-1)));
	falls = pick(is_r, low_b, falls);
	__m256i some = _mm256_max_epi32(range, _mm256_set1_epi32(1));
	__m256 x = _mm256_div_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(max, mid)), _mm256_cvtepi32_ps(some));
	x = _mm256_xor_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(falls, 31)));
	__m256 turn = _mm256_div_ps(_mm256_add_ps(base, x), _mm256_set1_ps(6));
	__m256 wrapped = _mm256_add_ps(turn, one);
	turn = _mm256_blendv_ps(turn, wrapped, turn);
	__m256i h = _mm256_cvttps_epi32(_mm256_mul_ps(turn, _mm256_set1_ps(255)));
	return _mm256_and_si256(h, _mm256_cmpgt_epi32(range, _mm256_setzero_si256()));
}

AVX2 void hue_avx2(uint8_t *pr, uint8_t *pg, uint8_t *pb, size_t n, int shift)
{
	const __m256i byte = _mm256_set1_epi32(255), add = _mm256_set1_epi32(shift), zero = _mm256_setzero_si256();
	const __m256 scale = _mm256_set1_ps(255), half = _mm256_set1_ps(0.5f);
	// Which of max, middle and least each channel becomes, by sector: 0 least, -1 middle, 1 greatest.
	const __m256i roles_r = _mm256_setr_epi32(1, -1, 0, 0, -1, 1, 1, 0);
	const __m256i roles_g = _mm256_setr_epi32(-1, 1, 1, -1, 0, 0, -1, 0);
	const __m256i roles_b = _mm256_setr_epi32(0, 0, -1, 1, 1, -1, 0, 0);
	size_t i = 0;
	for (; i + 8 <= n; i += 8) {
		__m256i r = load8(pr + i), g = load8(pg + i), b = load8(pb + i);
		__m256i max = _mm256_max_epi32(r, _mm256_max_epi32(g, b)), min = _mm256_min_epi32(r, _mm256_min_epi32(g, b));
		__m256i range = _mm256_sub_epi32(max, min);
		__m256i h = _mm256_and_si256(_mm256_add_epi32(hue8(r, g, b, max, min, range), add), byte);
		__m256 v = _mm256_cvtepi32_ps(max);
		__m256 most = _mm256_cvtepi32_ps(_mm256_max_epi32(max, _mm256_set1_epi32(1)));
		__m256 s = _mm256_cvtepi32_ps(_mm256_cvttps_epi32(_mm256_mul_ps(_mm256_div_ps(_mm256_cvtepi32_ps(range), most), scale)));

		__m256i six = _mm256_mullo_epi16(h, _mm256_set1_epi32(6));
		__m256i sector = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(_mm256_slli_epi32(six, 8), six), _mm256_set1_epi32(257)), 16);
		__m256i rest = _mm256_sub_epi32(six, _mm256_sub_epi32(_mm256_slli_epi32(sector, 8), sector));
		__m256i odd = _mm256_cmpgt_epi32(_mm256_and_si256(sector, _mm256_set1_epi32(1)), zero);
		__m256 part = _mm256_mul_ps(_mm256_cvtepi32_ps(pick(odd, rest, _mm256_sub_epi32(byte, rest))), s);
		__m256 less_q = _mm256_mul_ps(v, _mm256_mul_ps(part, _mm256_set1_ps(1.0f / 65025)));
		__m256 less_p = _mm256_mul_ps(_mm256_mul_ps(v, s), _mm256_set1_ps(1.0f / 255));
		__m256i q = _mm256_cvttps_epi32(_mm256_add_ps(_mm256_sub_ps(v, less_q), half));
		__m256i p = _mm256_cvttps_epi32(_mm256_add_ps(_mm256_sub_ps(v, less_p), half));
		uint8_t *to[3] = {pr + i, pg + i, pb + i};
		const __m256i roles[3] = {roles_r, roles_g, roles_b};
		for (int c = 0; c < 3; c++) {
			__m256i role = _mm256_permutevar8x32_epi32(roles[c], sector);
			store8(to[c], pick(_mm256_cmpgt_epi32(role, zero), max, pick(_mm256_cmpgt_epi32(zero, role), q, p)));
		}
	}
	hue_any(pr + i, pg + i, pb + i, n - i, shift);
}
#endif

#endif
