//go:build cgo && !purego

#include "pixels.h"

// -std=c11 keeps gcc from fusing a multiplication and an addition; clang needs to be told.
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

#include <string.h>

#include "pixels_avx2.h"
#include "pixels_color.h"
#include "pixels_warp.h"

#define NAME(x) x##_any
#include "pixels_body.h"
#undef NAME

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2")
#define NAME(x) x##_avx2
#include "pixels_body.h"
#undef NAME
#pragma GCC pop_options
#define CALL(f, ...) (avx2 ? f##_avx2(__VA_ARGS__) : f##_any(__VA_ARGS__))
#else
#define CALL(f, ...) ((void)avx2, f##_any(__VA_ARGS__))
#endif

void mr_blend_flat(uint8_t *p, size_t n, int32_t base, float factor, int32_t avx2) { CALL(blend_flat, p, n, base, factor); }

void mr_blend(uint8_t *p, const uint8_t *from, size_t n, float factor, int32_t avx2) { CALL(blend, p, from, n, factor); }

void mr_saturate(uint8_t *p, size_t n, float factor, int32_t avx2) { CALL(saturate, p, p + n, p + 2 * n, n, factor); }

void mr_hue(uint8_t *p, size_t n, int32_t shift, int32_t avx2) { CALL(hue, p, p + n, p + 2 * n, n, shift); }

void mr_luma(uint8_t *out, const uint8_t *p, size_t n, int32_t avx2) { CALL(luma, out, p, p + n, p + 2 * n, n); }

uint64_t mr_luma_sum(const uint8_t *p, size_t n, int32_t avx2) { return CALL(luma_sum, p, p + n, p + 2 * n, n); }

void mr_lookup(uint8_t *p, size_t n, const uint8_t *table)
{
	for (size_t i = 0; i < n; i++)
		p[i] = table[p[i]];
}

void mr_histogram(const uint8_t *p, size_t n, uint32_t *counts)
{
	// Equal neighbours go to different counts, which need not wait for each other.
	uint32_t other[256] = {0};
	size_t i = 0;
	for (; i + 2 <= n; i += 2) {
		counts[p[i]]++;
		other[p[i + 1]]++;
	}
	if (i < n)
		counts[p[i]]++;
	for (int v = 0; v < 256; v++)
		counts[v] += other[v];
}

void mr_smooth(uint8_t *out, const uint8_t *in, int32_t w, int32_t h, int32_t avx2)
{
	size_t step = (size_t)w;
	memcpy(out, in, step);
	for (int y = 1; y < h - 1; y++) {
		const uint8_t *row = in + (size_t)y * step;
		CALL(smooth_row, out + (size_t)y * step, row - step, row, row + step, w);
	}
	memcpy(out + (size_t)(h - 1) * step, in + (size_t)(h - 1) * step, step);
}

// reflect is the row or column that stands for i, beyond the edges of n by less than n.
static int reflect(int i, int n)
{
	if (i < 0)
		return -i;
	return i < n ? i : 2 * n - 2 - i;
}

void mr_blur(uint8_t *out, const uint8_t *in, int32_t w, int32_t h, const float *kx, int32_t nx, const float *ky, int32_t ny,
             float *row, int32_t avx2)
{
	float *middle = row + nx;
	for (int y = 0; y < h; y++) {
		CALL(blur_first, middle, in + (size_t)y * w, w, ky[0]);
		for (int j = 1; j < ny; j++)
			CALL(blur_column, middle, in + (size_t)reflect(y - j, h) * w, in + (size_t)reflect(y + j, h) * w, w, ky[j]);
		for (int x = 1; x < nx; x++) {
			middle[-x] = middle[x];
			middle[w - 1 + x] = middle[w - 1 - x];
		}
		CALL(blur_row, out + (size_t)y * w, middle, w, kx, nx);
	}
}

void mr_warp(uint8_t *out, int32_t out_w, int32_t out_h, const uint8_t *in, int32_t w, int32_t h, int32_t channels,
             const double *m, int32_t perspective, int32_t cubic)
{
	for (int y = 0; y < out_h; y++)
		warp_row(out + (size_t)y * out_w, (size_t)out_w * out_h, in, w, h, channels, out_w, y, m, perspective, cubic);
}

void mr_mix(float *sums, const uint8_t *p, size_t n, float weight, int32_t first, int32_t avx2)
{
	CALL(mix, sums, p, n, weight, first);
}

void mr_mixed(uint8_t *out, const float *sums, size_t n, int32_t avx2) { CALL(mixed, out, sums, n); }
