// Inverse cosine transforms of two blocks to 4×4, 2×2 or 1×1 samples, with the arithmetic of libjpeg-turbo's: the sums are
// those of fewer terms, 16-bit products wrap and results saturate as in its vector code.
#ifndef MILLRACE_IMAGE_BASELINE_SMALL_H
#define MILLRACE_IMAGE_BASELINE_SMALL_H

#include "baseline_idct.h"

// Cosines with 13 bits behind the point: of 4×4, the even part and the terms of coefficients 7, 5, 3 and 1 in the two odd
// ones; of 2×2, the terms of the same.
enum {
	C4_2 = 15137, C4_6 = -6270,
	C4_7A = -1730, C4_5A = 11893, C4_3A = -17799, C4_1A = 8697,
	C4_7B = -4176, C4_5B = -4926, C4_3B = 7373, C4_1B = 20995,
	C2_7 = -5906, C2_5 = 6967, C2_3 = -10426, C2_1 = 29692,
};

static uint8_t mr_sample(int v) { return (uint8_t)((v < -128 ? -128 : v > 127 ? 127 : v) + 128); }

// mr_two_values makes two values of the mean and of the odd ones of eight that lie step apart.
static void mr_two_values(int32_t to[2], int32_t mean, const int16_t *p, int step, int shift)
{
	uint32_t even = ((uint32_t)mean << 15) + (1u << (shift - 1));
	uint32_t odd = (uint32_t)(p[7 * step] * C2_7 + p[5 * step] * C2_5) + (uint32_t)(p[3 * step] * C2_3 + p[step] * C2_1);
	to[0] = (int32_t)(even + odd) >> shift;
	to[1] = (int32_t)(even - odd) >> shift;
}

// mr_small_two makes 2×2 samples of a block. Between the passes all but the means saturate at 16 bits.
static void mr_small_two(const int16_t block[64], uint8_t *to, size_t stride)
{
	int32_t mean[2], values[2];
	int16_t rows[2][8];
	for (int x = 0; x < 8; x++) {
		mr_two_values(values, block[x], block + x, 8, 13);
		for (int y = 0; y < 2; y++) {
			rows[y][x] = mr_saturate16(values[y]);
			if (x == 0)
				mean[y] = values[y];
		}
	}
	for (int y = 0; y < 2; y++) {
		mr_two_values(values, mean[y], rows[y], 1, 20);
		to[(size_t)y * stride] = mr_sample(mr_saturate16(values[0]));
		to[(size_t)y * stride + 1] = mr_sample(mr_saturate16(values[1]));
	}
}

// mr_four_line makes four values of the eight that lie step apart, in place.
static void mr_four_line(int16_t *p, int step, int shift)
{
	int32_t c1 = p[step], c2 = p[2 * step], c3 = p[3 * step], c5 = p[5 * step], c6 = p[6 * step], c7 = p[7 * step];
	int32_t round = 1 << (shift - 1);
	uint32_t dc = ((uint32_t)(int32_t)p[0] << 14) + (uint32_t)round, even = (uint32_t)(c2 * C4_2 + c6 * C4_6);
	uint32_t a = (uint32_t)(c7 * C4_7A + c5 * C4_5A) + (uint32_t)(c3 * C4_3A + c1 * C4_1A);
	uint32_t b = (uint32_t)(c7 * C4_7B + c5 * C4_5B) + (uint32_t)(c3 * C4_3B + c1 * C4_1B);
	p[0] = mr_saturate16((int32_t)(dc + even + b) >> shift);
	p[step] = mr_saturate16((int32_t)(dc - even + a) >> shift);
	p[2 * step] = mr_saturate16((int32_t)(dc - even - a) >> shift);
	p[3 * step] = mr_saturate16((int32_t)(dc + even - b) >> shift);
}

// mr_small_one writes the one sample of each block, the mean. There is no vector code for it in libjpeg-turbo: products
// are whole, and it is the result that wraps, at 10 bits.
static void mr_small_one(const int16_t *coefs, const int16_t *quant, uint8_t *const to[2])
{
	for (int lane = 0; lane < 2; lane++) {
		int v = (coefs[8 * lane] * quant[8 * lane] + 4) >> 3;
		*to[lane] = mr_sample(((v & 1023) ^ 512) - 512);
	}
}

// small_any makes size×size samples of each block.
static void small_any(const int16_t *coefs, const int16_t *quant, uint8_t *const to[2], const size_t stride[2], int size)
{
	if (size == 1) {
		mr_small_one(coefs, quant, to);
		return;
	}
	for (int lane = 0; lane < 2; lane++) {
		int16_t block[64];
		int flat = 1;
		for (int i = 0; i < 64; i++) {
			int at = (i >> 3) * 16 + 8 * lane + (i & 7);
			block[i] = (int16_t)((uint32_t)coefs[at] * (uint32_t)quant[at]);
			flat &= i < 8 || (i >> 3) == 4 || coefs[at] == 0;
		}
		if (size == 2) {
			mr_small_two(block, to[lane], stride[lane]);
			continue;
		}
		for (int x = 0; x < 8; x++) {
			if (!flat) {
				mr_four_line(block + x, 8, 12);
				continue;
			}
			for (int y = 3; y >= 0; y--)
				block[8 * y + x] = (int16_t)((uint32_t)block[x] << 2);
		}
		for (int y = 0; y < 4; y++) {
			mr_four_line(block + 8 * y, 1, 19);
			for (int x = 0; x < 4; x++)
				to[lane][(size_t)y * stride[lane] + (size_t)x] = mr_sample(block[8 * y + x]);
		}
	}
}

#if defined(__x86_64__)
// mr_raised is x·2^bits, rounded for a later shift.
MR_AVX2 struct mr_wide mr_raised(__m256i x, int bits, int shift)
{
	__m256i zero = _mm256_setzero_si256(), round = _mm256_set1_epi32(1 << (shift - 1));
	__m256i lo = _mm256_srai_epi32(_mm256_unpacklo_epi16(zero, x), 16 - bits), hi = _mm256_srai_epi32(_mm256_unpackhi_epi16(zero, x), 16 - bits);
	return (struct mr_wide){_mm256_add_epi32(lo, round), _mm256_add_epi32(hi, round)};
}

// mr_four_lines makes four vectors of eight, one line for each of their elements.
MR_AVX2 void mr_four_lines(__m256i v[8], int shift)
{
	struct mr_wide dc = mr_raised(v[0], 14, shift), even = mr_dot(v[2], v[6], C4_2, C4_6);
	struct mr_wide a = mr_plus(mr_dot(v[7], v[5], C4_7A, C4_5A), mr_dot(v[3], v[1], C4_3A, C4_1A));
	struct mr_wide b = mr_plus(mr_dot(v[7], v[5], C4_7B, C4_5B), mr_dot(v[3], v[1], C4_3B, C4_1B));
	struct mr_wide more = mr_plus(dc, even), less = mr_minus(dc, even);
	v[0] = mr_narrow(mr_plus(more, b), shift);
	v[1] = mr_narrow(mr_plus(less, a), shift);
	v[2] = mr_narrow(mr_minus(less, a), shift);
	v[3] = mr_narrow(mr_minus(more, b), shift);
}

// mr_two_sums is the sum and the difference of the means and the odd ones of vectors of eight, before they are narrowed.
MR_AVX2 void mr_two_sums(struct mr_wide to[2], struct mr_wide mean, const __m256i v[8])
{
	struct mr_wide odd = mr_plus(mr_dot(v[7], v[5], C2_7, C2_5), mr_dot(v[3], v[1], C2_3, C2_1));
	to[0] = mr_plus(mean, odd);
	to[1] = mr_minus(mean, odd);
}

// mr_two_by_two makes two columns of two values each of eight vectors. Between the passes all but the means saturate.
MR_AVX2 void mr_two_by_two(__m256i v[8])
{
	struct mr_wide sums[2], mean;
	mr_two_sums(sums, mr_raised(v[0], 15, 13), v);
	mean.lo = _mm256_unpacklo_epi32(_mm256_srai_epi32(sums[0].lo, 13), _mm256_srai_epi32(sums[1].lo, 13));
	mean.lo = _mm256_add_epi32(_mm256_slli_epi32(mean.lo, 15), _mm256_set1_epi32(1 << 19));
	mean.hi = mean.lo;
	v[0] = mr_narrow(sums[0], 13);
	v[1] = mr_narrow(sums[1], 13);
	for (int i = 2; i < 8; i++)
		v[i] = _mm256_setzero_si256();
	mr_turn(v);
	mr_two_sums(sums, mean, v);
	v[0] = v[2] = v[3] = mr_narrow(sums[0], 20);
	v[1] = mr_narrow(sums[1], 20);
}

MR_AVX2 void small_avx2(const int16_t *coefs, const int16_t *quant, uint8_t *const to[2], const size_t stride[2], int size)
{
	if (size == 1) {
		mr_small_one(coefs, quant, to);
		return;
	}
	__m256i v[8], rest = _mm256_setzero_si256();
	for (int i = 0; i < 8; i++) {
		__m256i c = _mm256_load_si256((const __m256i *)coefs + i);
		if (i != 0 && i != 4)
			rest = _mm256_or_si256(rest, c);
		v[i] = _mm256_mullo_epi16(c, _mm256_load_si256((const __m256i *)quant + i));
	}
	if (size == 4) {
		// As in the full transform, a block with no more than its first row is not saturated by the first pass.
		__m256i none = _mm256_cmpeq_epi64(rest, _mm256_setzero_si256());
		none = _mm256_and_si256(none, _mm256_shuffle_epi32(none, 0x4E));
		__m256i flat = _mm256_slli_epi16(v[0], 2);
		mr_four_lines(v, 12);
		for (int i = 0; i < 4; i++) {
			v[i] = _mm256_blendv_epi8(v[i], flat, none);
			v[4 + i] = _mm256_setzero_si256();
		}
		mr_turn(v);
		mr_four_lines(v, 19);
	} else
		mr_two_by_two(v);
	// From columns of 16-bit values to rows of four bytes, one row after the other in each half.
	__m256i left = _mm256_unpacklo_epi16(v[0], v[1]), right = _mm256_unpacklo_epi16(v[2], v[3]);
	__m256i rows = _mm256_packs_epi16(_mm256_unpacklo_epi32(left, right), _mm256_unpackhi_epi32(left, right));
	_Alignas(32) uint8_t bytes[32];
	_mm256_store_si256((__m256i *)bytes, _mm256_sub_epi8(rows, _mm256_set1_epi8(-128)));
	for (int lane = 0; lane < 2; lane++)
		for (int y = 0; y < size; y++) {
			if (size == 4)
				memcpy(to[lane] + (size_t)y * stride[lane], bytes + 16 * lane + 4 * y, 4);
			else
				memcpy(to[lane] + (size_t)y * stride[lane], bytes + 16 * lane + 4 * y, 2);
		}
}
#endif

#endif
