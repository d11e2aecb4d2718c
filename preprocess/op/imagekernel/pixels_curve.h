// Tables of 256 bytes that rise nearly as a line does, looked up 32 at a time with AVX2.
#ifndef MILLRACE_IMAGE_PIXELS_CURVE_H
#define MILLRACE_IMAGE_PIXELS_CURVE_H

#include <stdint.h>
#include <string.h>

#include "pixels_color.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2"))) static inline

// A curve's entry for a byte is, within 0 … 255, that for the byte's high four bits (top less under, of which one is 0),
// with the step that its low four bits make, and one more where a bit says so: the steps of a line that is cut to
// integers differ by no more.
struct curve {
	_Alignas(16) uint8_t top[16], under[16], step[16], more[2][16];
	int dips;  // Some of under is not 0.
};

static uint8_t clipped(int v) { return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v); }

// curve_make fills in c from entries, which may lie outside 0 … 255. It returns 0 if they are no such curve.
static int curve_make(struct curve *c, const int32_t entries[256])
{
	memset(c, 0, sizeof *c);
	int step[16];
	for (int low = 0; low < 16; low++) {
		step[low] = entries[low] - entries[0];
		for (int high = 1; high < 16; high++) {
			int rise = entries[16 * high + low] - entries[16 * high];
			step[low] = rise < step[low] ? rise : step[low];
		}
		if (step[low] < 0 || step[low] > 254)
			return 0;
		c->step[low] = (uint8_t)step[low];
	}
	for (int high = 0; high < 16; high++) {
		int first = entries[16 * high];
		c->top[high] = clipped(first);
		c->under[high] = clipped(-first);
		c->dips |= first < 0;
		for (int low = 0; low < 16; low++) {
			int more = entries[16 * high + low] - first - step[low];
			if (more > 1)
				return 0;
			c->more[low >> 3][high] |= (uint8_t)(more << (low & 7));
		}
	}
	return 1;
}

AVX2 __m256i curve_part(const uint8_t part[16]) { return _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)part)); }

// curve_at is the entries for 32 bytes.
AVX2 __m256i curve_at(const struct curve *c, __m256i p)
{
	const __m256i four = _mm256_set1_epi8(15);
	const __m256i bits = _mm256_broadcastsi128_si256(_mm_setr_epi8(1, 2, 4, 8, 16, 32, 64, -128, 1, 2, 4, 8, 16, 32, 64, -128));
	__m256i high = _mm256_and_si256(_mm256_srli_epi16(p, 4), four), low = _mm256_and_si256(p, four);
	// Bit 3 of the byte comes to be the highest, which chooses.
	__m256i more = _mm256_blendv_epi8(_mm256_shuffle_epi8(curve_part(c->more[0]), high),
	                                  _mm256_shuffle_epi8(curve_part(c->more[1]), high), _mm256_slli_epi16(p, 4));
	__m256i bit = _mm256_shuffle_epi8(bits, low);
	more = _mm256_cmpeq_epi8(_mm256_and_si256(more, bit), bit);
	__m256i step = _mm256_sub_epi8(_mm256_shuffle_epi8(curve_part(c->step), low), more);
	__m256i v = _mm256_adds_epu8(_mm256_shuffle_epi8(curve_part(c->top), high), step);
	return c->dips ? _mm256_subs_epu8(v, _mm256_shuffle_epi8(curve_part(c->under), high)) : v;
}

// curve_flat is the curve of blend_flat. It returns 0 if that is none.
static int curve_flat(struct curve *c, int base, float factor)
{
	if (!(factor >= 0.0f && factor <= 8.0f))
		return 0;
	int32_t entries[256];
	float b = (float)base;
	for (int p = 0; p < 256; p++)
		entries[p] = (int32_t)(b + factor * (float)(p - base));
	return curve_make(c, entries);
}

// curve_apart is the curve of how far pixels move from their luma, by how far they are from it, without fractions. It
// returns 0 if that is none, or if adding a fraction to the luma may round to another integer than it has.
static int curve_apart(struct curve *c, float factor)
{
	if (!(factor >= 0.0f && factor <= 2.0f))
		return 0;
	int32_t entries[256];
	for (int a = 0; a < 256; a++) {
		float v = factor * (float)a;
		entries[a] = (int32_t)v;
		float fraction = v - (float)entries[a], least = 1.0f / 32768;
		if (a > 0 && !(fraction > least && fraction < 1.0f - least))
			return 0;
	}
	return curve_make(c, entries);
}

// luma32 is the luma of 32 pixels. The weight of green is less by 1, which adding green makes up for, so that all fit the
// signed 16-bit multiply-add; the rest is within -128 … 127.
AVX2 __m256i luma32(__m256i r, __m256i g, __m256i b)
{
	const __m256i zero = _mm256_setzero_si256(), two = _mm256_set1_epi8(2);
	const __m256i red_green = _mm256_set1_epi32((int)(19595u | (uint32_t)(38470 - 65536) << 16));
	const __m256i blue_half = _mm256_set1_epi32(7471 | 0x4000 << 16);
	__m256i rg[2] = {_mm256_unpacklo_epi8(r, g), _mm256_unpackhi_epi8(r, g)};
	__m256i bt[2] = {_mm256_unpacklo_epi8(b, two), _mm256_unpackhi_epi8(b, two)}, v[2];
	for (int i = 0; i < 2; i++) {
		__m256i lo = _mm256_add_epi32(_mm256_madd_epi16(_mm256_unpacklo_epi8(rg[i], zero), red_green),
		                              _mm256_madd_epi16(_mm256_unpacklo_epi8(bt[i], zero), blue_half));
		__m256i hi = _mm256_add_epi32(_mm256_madd_epi16(_mm256_unpackhi_epi8(rg[i], zero), red_green),
		                              _mm256_madd_epi16(_mm256_unpackhi_epi8(bt[i], zero), blue_half));
		v[i] = _mm256_packs_epi32(_mm256_srai_epi32(lo, 16), _mm256_srai_epi32(hi, 16));
	}
	return _mm256_add_epi8(_mm256_packs_epi16(v[0], v[1]), g);
}

// apart32 brings 32 bytes to luma + factor × (byte - luma), by the curve of the factor.
AVX2 __m256i apart32(const struct curve *c, __m256i p, __m256i luma)
{
	__m256i above = _mm256_subs_epu8(p, luma), below = _mm256_subs_epu8(luma, p);
	__m256i move = curve_at(c, _mm256_or_si256(above, below));
	__m256i up = _mm256_cmpeq_epi8(below, _mm256_setzero_si256());
	// Going down, what the fraction takes away is a whole one.
	__m256i down = _mm256_andnot_si256(up, _mm256_adds_epu8(move, _mm256_set1_epi8(1)));
	return _mm256_subs_epu8(_mm256_adds_epu8(luma, _mm256_and_si256(up, move)), down);
}
#endif

#endif
