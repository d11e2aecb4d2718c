// From planes of samples to rows of pixels: upsampling of chroma and conversion to RGB, both with libjpeg-turbo's results.
#ifndef MILLRACE_IMAGE_BASELINE_COLOR_H
#define MILLRACE_IMAGE_BASELINE_COLOR_H

#include <stdint.h>

#include "baseline.h"

// One row's samples. Chroma has the nearer row and, if it is upsampled vertically, the one on the other side.
struct mr_lines {
	const uint8_t *luma, *near[2], *far[2];
};

static inline uint8_t mr_clip8(int32_t v) { return v < 0 ? 0 : v > 255 ? 255 : (uint8_t)v; }

// mr_rgb converts one pixel; 16 bits behind the point.
static inline void mr_rgb(uint8_t *out, int32_t y, int32_t cb, int32_t cr)
{
	cb -= 128, cr -= 128;
	out[0] = mr_clip8(y + ((91881 * cr + 32768) >> 16));
	out[1] = mr_clip8(y + ((-22554 * cb - 46802 * cr + 32768) >> 16));
	out[2] = mr_clip8(y + ((116130 * cb + 32768) >> 16));
	out[3] = 255;
}

static void mr_gray_pixels(uint8_t *out, const uint8_t *luma, int n)
{
	for (int i = 0; i < n; i++) {
		out[4 * i] = out[4 * i + 1] = out[4 * i + 2] = luma[i];
		out[4 * i + 3] = 255;
	}
}

// mr_full is pixels whose chroma has the size of the luma, or a fraction 1/h of its width without interpolation.
static void mr_full(uint8_t *out, const struct mr_lines *l, int n, int h)
{
	for (int i = 0; i < n; i++)
		mr_rgb(out + 4 * i, l->luma[i], l->near[0][i / h], l->near[1][i / h]);
}

// mr_tall is pixels whose chroma has half the height: three quarters of the nearer sample and one of the farther.
static void mr_tall(uint8_t *out, const struct mr_lines *l, int n, int bias)
{
	for (int i = 0; i < n; i++)
		mr_rgb(out + 4 * i, l->luma[i], (3 * l->near[0][i] + l->far[0][i] + bias) >> 2, (3 * l->near[1][i] + l->far[1][i] + bias) >> 2);
}

// How the two pixels of a chroma sample round.
struct mr_bias {
	int even, odd;
};

// mr_wide_any is pixels whose chroma has half the width, the same way; near and far are one row if it has the full height.
static void mr_wide_any(uint8_t *out, const struct mr_lines *l, int n, struct mr_bias bias)
{
	for (int i = 0; i < n; i++) {
		int32_t c[2];
		int at = i >> 1, side = i & 1 ? at + 1 : at - 1;
		for (int k = 0; k < 2; k++) {
			int32_t here = 3 * l->near[k][at] + l->far[k][at], there = 3 * l->near[k][side] + l->far[k][side];
			c[k] = (3 * here + there + (i & 1 ? bias.odd : bias.even)) >> 4;
		}
		mr_rgb(out + 4 * i, l->luma[i], c[0], c[1]);
	}
}

#if defined(__x86_64__)
// mr_rgb_avx2 converts 16 pixels of 16-bit values, chroma without its middle, to channels within 0 … 255.
MR_AVX2 void mr_rgb_avx2(__m256i rgb[3], __m256i y, __m256i cb, __m256i cr)
{
	const __m256i one = _mm256_set1_epi16(1), zero = _mm256_setzero_si256(), most = _mm256_set1_epi16(255);
	// Products with what the factors are above or below a whole number; twice the chroma halves the rounding.
	__m256i r = _mm256_mulhi_epi16(_mm256_add_epi16(cr, cr), _mm256_set1_epi16(91881 - 65536));
	__m256i b = _mm256_mulhi_epi16(_mm256_add_epi16(cb, cb), _mm256_set1_epi16(116130 - 131072));
	r = _mm256_add_epi16(_mm256_srai_epi16(_mm256_add_epi16(r, one), 1), cr);
	b = _mm256_add_epi16(_mm256_srai_epi16(_mm256_add_epi16(b, one), 1), _mm256_add_epi16(cb, cb));
	struct mr_wide g = mr_dot(cb, cr, -22554, 65536 - 46802);
	const __m256i half = _mm256_set1_epi32(32768);
	g.lo = _mm256_srai_epi32(_mm256_add_epi32(g.lo, half), 16);
	g.hi = _mm256_srai_epi32(_mm256_add_epi32(g.hi, half), 16);
	__m256i v[3] = {r, _mm256_sub_epi16(_mm256_packs_epi32(g.lo, g.hi), cr), b};
	for (int i = 0; i < 3; i++)
		rgb[i] = _mm256_min_epi16(_mm256_max_epi16(_mm256_add_epi16(y, v[i]), zero), most);
}

// mr_store_avx2 writes 32 pixels from the channels of the even and the odd ones.
MR_AVX2 void mr_store_avx2(uint8_t *out, const __m256i even[3], const __m256i odd[3])
{
	__m256i c[3];
	for (int i = 0; i < 3; i++)
		c[i] = _mm256_or_si256(even[i], _mm256_slli_epi16(odd[i], 8));
	const __m256i opaque = _mm256_set1_epi8(-1);
	__m256i rg0 = _mm256_unpacklo_epi8(c[0], c[1]), rg1 = _mm256_unpackhi_epi8(c[0], c[1]);
	__m256i bx0 = _mm256_unpacklo_epi8(c[2], opaque), bx1 = _mm256_unpackhi_epi8(c[2], opaque);
	__m256i p0 = _mm256_unpacklo_epi16(rg0, bx0), p1 = _mm256_unpackhi_epi16(rg0, bx0);
	__m256i p2 = _mm256_unpacklo_epi16(rg1, bx1), p3 = _mm256_unpackhi_epi16(rg1, bx1);
	__m256i *to = (__m256i *)out;
	_mm256_storeu_si256(to, _mm256_permute2x128_si256(p0, p1, 0x20));
	_mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(p2, p3, 0x20));
	_mm256_storeu_si256(to + 2, _mm256_permute2x128_si256(p0, p1, 0x31));
	_mm256_storeu_si256(to + 3, _mm256_permute2x128_si256(p2, p3, 0x31));
}

// mr_column is three times the nearer of 16 samples and the farther.
MR_AVX2 __m256i mr_column(const uint8_t *near, const uint8_t *far)
{
	__m256i n = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)near));
	__m256i f = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)far));
	return _mm256_add_epi16(_mm256_add_epi16(n, n), _mm256_add_epi16(n, f));
}

// mr_wide_avx2 writes pixels rounded up to 32.
__attribute__((target("avx2,bmi2"))) static void mr_wide_avx2(uint8_t *out, const struct mr_lines *l, int n, struct mr_bias bias)
{
	const __m256i low = _mm256_set1_epi16(255), middle = _mm256_set1_epi16(128);
	const __m256i round[2] = {_mm256_set1_epi16((short)bias.even), _mm256_set1_epi16((short)bias.odd)};
	for (int at = 0; at < n; at += 32) {
		__m256i c[2][2], rgb[2][3];
		for (int k = 0; k < 2; k++) {
			const uint8_t *near = l->near[k] + at / 2, *far = l->far[k] + at / 2;
			__m256i here = mr_column(near, far);
			__m256i three = _mm256_add_epi16(_mm256_add_epi16(here, here), here);
			for (int side = 0; side < 2; side++) {
				__m256i there = mr_column(near + 2 * side - 1, far + 2 * side - 1);
				__m256i sum = _mm256_add_epi16(_mm256_add_epi16(three, there), round[side]);
				c[side][k] = _mm256_sub_epi16(_mm256_srli_epi16(sum, 4), middle);
			}
		}
		__m256i y = _mm256_loadu_si256((const __m256i *)(l->luma + at));
		mr_rgb_avx2(rgb[0], _mm256_and_si256(y, low), c[0][0], c[0][1]);
		mr_rgb_avx2(rgb[1], _mm256_srli_epi16(y, 8), c[1][0], c[1][1]);
		mr_store_avx2(out + 4 * (size_t)at, rgb[0], rgb[1]);
	}
}

// mr_full_avx2 writes pixels rounded up to 32, whose chroma has the size of the luma.
__attribute__((target("avx2,bmi2"))) static void mr_full_avx2(uint8_t *out, const struct mr_lines *l, int n)
{
	const __m256i low = _mm256_set1_epi16(255), middle = _mm256_set1_epi16(128);
	for (int at = 0; at < n; at += 32) {
		__m256i y = _mm256_loadu_si256((const __m256i *)(l->luma + at)), rgb[2][3];
		__m256i cb = _mm256_loadu_si256((const __m256i *)(l->near[0] + at)), cr = _mm256_loadu_si256((const __m256i *)(l->near[1] + at));
		mr_rgb_avx2(rgb[0], _mm256_and_si256(y, low), _mm256_sub_epi16(_mm256_and_si256(cb, low), middle),
		            _mm256_sub_epi16(_mm256_and_si256(cr, low), middle));
		mr_rgb_avx2(rgb[1], _mm256_srli_epi16(y, 8), _mm256_sub_epi16(_mm256_srli_epi16(cb, 8), middle),
		            _mm256_sub_epi16(_mm256_srli_epi16(cr, 8), middle));
		mr_store_avx2(out + 4 * (size_t)at, rgb[0], rgb[1]);
	}
}
#endif

#endif
