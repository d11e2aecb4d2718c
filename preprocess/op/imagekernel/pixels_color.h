// Colour operators on planes. Floating point is single multiplications, additions, divisions and truncations in the
// order of Pillow's, never fused or reordered, so that every CPU rounds alike.
#ifndef MILLRACE_IMAGE_PIXELS_COLOR_H
#define MILLRACE_IMAGE_PIXELS_COLOR_H

#include <stddef.h>
#include <stdint.h>

enum {
	BLOCK = 4096,
	BLUR_BLOCK = 32,
	CURVE_PAYS = 2048,  // Pixels from which on making a curve costs less than it spares.
};

#define LUMA(r, g, b) (((r) * 19595u + (g) * 38470u + (b) * 7471u + 0x8000u) >> 16)

static void luma_any(uint8_t *out, const uint8_t *r, const uint8_t *g, const uint8_t *b, size_t n)
{
	for (size_t i = 0; i < n; i++)
		out[i] = (uint8_t)LUMA(r[i], g[i], b[i]);
}

static uint64_t luma_sum_any(const uint8_t *restrict r, const uint8_t *restrict g, const uint8_t *restrict b, size_t n)
{
	uint64_t total = 0;
	for (size_t at = 0; at < n; at += BLOCK) {
		size_t m = n - at < BLOCK ? n - at : BLOCK;
		uint32_t sum = 0;
		for (size_t i = 0; i < m; i++)
			sum += LUMA(r[at + i], g[at + i], b[at + i]);
		total += sum;
	}
	return total;
}

static void blend_flat_any(uint8_t *restrict p, size_t n, int base, float factor)
{
	float b = (float)base;
	for (size_t i = 0; i < n; i++) {
		float v = b + factor * (float)((int)p[i] - base);
		v = v < 0.0f ? 0.0f : v;
		v = v > 255.0f ? 255.0f : v;
		p[i] = (uint8_t)(int)v;
	}
}

static void blend_any(uint8_t *restrict p, const uint8_t *restrict from, size_t n, float factor)
{
	for (size_t i = 0; i < n; i++) {
		float v = (float)from[i] + factor * (float)((int)p[i] - (int)from[i]);
		v = v < 0.0f ? 0.0f : v;
		v = v > 255.0f ? 255.0f : v;
		p[i] = (uint8_t)(int)v;
	}
}

static void saturate_any(uint8_t *restrict r, uint8_t *restrict g, uint8_t *restrict b, size_t n, float factor)
{
	uint8_t luma[BLOCK];
	for (size_t at = 0; at < n; at += BLOCK) {
		size_t m = n - at < BLOCK ? n - at : BLOCK;
		for (size_t i = 0; i < m; i++)
			luma[i] = (uint8_t)LUMA(r[at + i], g[at + i], b[at + i]);
		blend_any(r + at, luma, m, factor);
		blend_any(g + at, luma, m, factor);
		blend_any(b + at, luma, m, factor);
	}
}

// The hue of a pixel is base + sign × (max - mid)/(max - min) sixths of a turn; saturation is 255 × (max - min)/max.
// Pillow has divisions in place of the products with a reciprocal, and goes by way of doubles; a test holds the two
// against each other for all colours.
static void hue_any(uint8_t *restrict pr, uint8_t *restrict pg, uint8_t *restrict pb, size_t n, int shift)
{
	for (size_t k = 0; k < n; k++) {
		int r = pr[k], g = pg[k], b = pb[k];
		int max = r > g ? r : g, min = r < g ? r : g;
		max = b > max ? b : max;
		min = b < min ? b : min;
		int range = max - min, mid = r + g + b - max - min;
		int low = b == min;
		int red_base = low ? 1 : -1, green_base = low ? 1 : 3, blue_base = r == min ? 3 : 5;
		int red_sign = low ? -1 : 1, green_sign = low ? 1 : -1, blue_sign = r == min ? 1 : -1;
		int base = g == max ? green_base : blue_base, sign = g == max ? green_sign : blue_sign;
		base = r == max ? red_base : base;
		sign = r == max ? red_sign : sign;
		int some = range > 0 ? range : 1;
		float turn = (float)base + (float)sign * ((float)(max - mid) / (float)some);
		turn = turn / 6.0f;
		turn = turn < 0.0f ? 1.0f + turn : turn;
		int h = range > 0 ? (int)(turn * 255.0f) : 0;
		int s = (int)((float)range / (float)(max > 0 ? max : 1) * 255.0f);

		h = (h + shift) & 255;
		int sector = (h * 6 * 257 + 257) >> 16; // h × 6 / 255.
		int rest = h * 6 - sector * 255;
		int odd = sector & 1;
		float part = (float)(odd ? rest : 255 - rest) * (float)s;
		float v = (float)max;
		int q = (int)(v - v * (part * (1.0f / 65025)) + 0.5f);
		int p = (int)(v - v * (float)s * (1.0f / 255) + 0.5f);
		int at = sector == 6 ? 0 : sector;
		// Sectors 0 to 5 are (v q p) (q v p) (p v q) (p q v) (q p v) (v p q).
		int top_r = at == 0 || at == 5, top_g = at == 1 || at == 2;
		int mid_r = at == 1 || at == 4, mid_g = at == 0 || at == 3;
		int out_r = top_r ? max : mid_r ? q : p;
		int out_g = top_g ? max : mid_g ? q : p;
		int out_b = (at == 3 || at == 4) ? max : (at == 2 || at == 5) ? q : p;
		pr[k] = (uint8_t)out_r;
		pg[k] = (uint8_t)out_g;
		pb[k] = (uint8_t)out_b;
	}
}

#endif
