// Operators on decoded pixels: planes of bytes, one per channel, without gaps.
#ifndef MILLRACE_IMAGE_PIXELS_H
#define MILLRACE_IMAGE_PIXELS_H

#include <stddef.h>
#include <stdint.h>

// All take avx2: whether the vector variant runs. Both variants are one source, so their bytes are the same.

// mr_blend_flat brings n bytes to base + factor × (byte - base), truncated and clipped.
void mr_blend_flat(uint8_t *p, size_t n, int32_t base, float factor, int32_t avx2);

// mr_blend brings n bytes of p to from + factor × (p - from), truncated and clipped.
void mr_blend(uint8_t *p, const uint8_t *from, size_t n, float factor, int32_t avx2);

// mr_saturate blends three planes of n bytes with their luma.
void mr_saturate(uint8_t *p, size_t n, float factor, int32_t avx2);

// mr_hue turns the 8-bit hue of three planes of n bytes by shift.
void mr_hue(uint8_t *p, size_t n, int32_t shift, int32_t avx2);

// mr_luma writes the luma of three planes of n bytes to out, which may be one of them.
void mr_luma(uint8_t *out, const uint8_t *p, size_t n, int32_t avx2);

// mr_luma_sum is the sum of the luma of n pixels of three planes.
uint64_t mr_luma_sum(const uint8_t *p, size_t n, int32_t avx2);

// mr_lookup replaces n bytes by their entries in table.
void mr_lookup(uint8_t *p, size_t n, const uint8_t *table);

// mr_histogram adds n bytes to 256 counts.
void mr_histogram(const uint8_t *p, size_t n, uint32_t *counts);

// mr_smooth writes a w×h plane convolved with Pillow's SMOOTH to out; the border is copied.
void mr_smooth(uint8_t *out, const uint8_t *in, int32_t w, int32_t h, int32_t avx2);

// mr_blur convolves a w×h plane with the symmetric kernels whose right halves, centre first, are kx (nx weights) and
// ky (ny weights), reflecting at the edges. row has room for w + 2×nx floats.
void mr_blur(uint8_t *out, const uint8_t *in, int32_t w, int32_t h, const float *kx, int32_t nx, const float *ky, int32_t ny,
             float *row, int32_t avx2);

// mr_warp writes channels planes of in (w×h), mapped by m, to those of out (out_w×out_h), where the map leads into in.
void mr_warp(uint8_t *out, int32_t out_w, int32_t out_h, const uint8_t *in, int32_t w, int32_t h, int32_t channels,
             const double *m, int32_t perspective, int32_t cubic);

// mr_mix adds weight × byte to each of n sums; mr_mixed writes them, truncated.
void mr_mix(float *sums, const uint8_t *p, size_t n, float weight, int32_t first, int32_t avx2);
void mr_mixed(uint8_t *out, const float *sums, size_t n, int32_t avx2);

#endif
