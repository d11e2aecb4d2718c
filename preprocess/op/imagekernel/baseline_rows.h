// Opening a JPEG with the decoder of our own, and its rows.
#ifndef MILLRACE_IMAGE_BASELINE_ROWS_H
#define MILLRACE_IMAGE_BASELINE_ROWS_H

#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include "baseline_bits.h"

// Places of coefficients in the order of files, in blocks of 16 to a row.
static const uint8_t mr_places[64] = {
    0,  1,  16, 32, 17, 2,   3,   18, 33, 48, 64,  49, 34, 19,  4,   5,   20, 35,  50,  65,  80, 96,
    81, 66, 51, 36, 21, 6,   7,   22, 37, 52, 67,  82, 97, 112, 113, 98,  83, 68,  53,  38,  23, 39,
    54, 69, 84, 99, 114, 115, 100, 85, 70, 55, 71, 86, 101, 116, 117, 102, 87, 103, 118, 119,
};

#include "baseline_idct.h"

#include "baseline_small.h"

#include "baseline_color.h"

#define NAME(x) x##_any
#include "baseline_body.h"
#undef NAME

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2,bmi2")
#define NAME(x) x##_avx2
#include "baseline_body.h"
#undef NAME
#pragma GCC pop_options
#endif

// mr_baseline_takes says whether the decoder of our own can do the job at 1/scale: after jpeg_read_header.
static int mr_baseline_takes(const struct jpeg_decompress_struct *jpeg, int scale)
{
	const jpeg_component_info *c = jpeg->comp_info;
	int n = jpeg->num_components;
	if (jpeg->progressive_mode || jpeg->arith_code || jpeg->data_precision != 8 || jpeg->comps_in_scan != n || jpeg->Ss != 0 ||
	    jpeg->Se != DCTSIZE2 - 1 || jpeg->Ah != 0 || jpeg->Al != 0)
		return 0;
	for (int i = 0; i < n; i++) {
		const jpeg_component_info *p = &c[i];
		if (jpeg->cur_comp_info[i] != p || p->quant_tbl_no < 0 || p->quant_tbl_no >= NUM_QUANT_TBLS || p->dc_tbl_no < 0 ||
		    p->dc_tbl_no >= NUM_HUFF_TBLS || p->ac_tbl_no < 0 || p->ac_tbl_no >= NUM_HUFF_TBLS ||
		    jpeg->quant_tbl_ptrs[p->quant_tbl_no] == NULL || jpeg->dc_huff_tbl_ptrs[p->dc_tbl_no] == NULL ||
		    jpeg->ac_huff_tbl_ptrs[p->ac_tbl_no] == NULL)
			return 0;
	}
	if (n == 1)
		return jpeg->jpeg_color_space == JCS_GRAYSCALE;
	if (n != 3 || jpeg->jpeg_color_space != JCS_YCbCr || c[1].h_samp_factor != 1 || c[1].v_samp_factor != 1 ||
	    c[2].h_samp_factor != 1 || c[2].v_samp_factor != 1)
		return 0;
	int h = c[0].h_samp_factor, v = c[0].v_samp_factor;
	// Chroma that is smaller both ways makes up for it by larger transforms.
	if (scale > 1)
		return h == v && h <= 2;
	// Chroma of one or two columns is not interpolated.
	return (h <= 2 && v <= 2 && (h == 1 || jpeg->image_width > 4)) || (h == 4 && v == 1);
}

// mr_baseline_tables takes over quantisation and codes. It returns 0 if there is something odd about them.
static int mr_baseline_tables(struct mr_baseline *b, const struct jpeg_decompress_struct *jpeg)
{
	for (int i = 0; i < b->planes; i++) {
		const jpeg_component_info *c = &jpeg->comp_info[i];
		const JHUFF_TBL *dc = jpeg->dc_huff_tbl_ptrs[c->dc_tbl_no], *ac = jpeg->ac_huff_tbl_ptrs[c->ac_tbl_no];
		b->plane[i].dc_codes = &b->codes[c->dc_tbl_no];
		b->plane[i].ac_codes = &b->codes[NUM_HUFF_TBLS + c->ac_tbl_no];
		if (!mr_codes_make(&b->codes[c->dc_tbl_no], dc->bits, dc->huffval, 1) ||
		    !mr_codes_make(&b->codes[NUM_HUFF_TBLS + c->ac_tbl_no], ac->bits, ac->huffval, 0))
			return 0;
	}
	for (int i = 0; i < b->blocks; i++) {
		const UINT16 *q = jpeg->quant_tbl_ptrs[jpeg->comp_info[b->block[i].plane].quant_tbl_no]->quantval;
		for (int k = 0; k < 64; k++)
			b->quant[(i >> 1) * 128 + (k >> 3) * 16 + 8 * (i & 1) + (k & 7)] = (int16_t)q[k];
	}
	return 1;
}

static int mr_least(int a, int b) { return a < b ? a : b; }

// mr_baseline_shape lays out MCUs and finds those that a rectangle of the image, at 1/scale of its size, needs.
static void mr_baseline_shape(struct mr_baseline *b, const struct jpeg_decompress_struct *jpeg, int scale, int x, int y, int w, int h)
{
	b->planes = jpeg->num_components;
	int wide = b->planes == 1 ? 1 : jpeg->comp_info[0].h_samp_factor, tall = b->planes == 1 ? 1 : jpeg->comp_info[0].v_samp_factor;
	int least = 8 / scale, most = scale > 1 ? least * wide : 8;
	b->h = wide * least / most;
	b->v = tall * least / most;
	b->blocks = 0;
	int width = ((int)jpeg->image_width + scale - 1) / scale, height = ((int)jpeg->image_height + scale - 1) / scale;
	for (int i = 0; i < b->planes; i++) {
		struct mr_plane *p = &b->plane[i];
		p->h = i == 0 ? wide : 1;
		p->v = i == 0 ? tall : 1;
		p->size = i == 0 ? least : most;
		p->w = i == 0 ? width : (width + b->h - 1) / b->h;
		p->rows = i == 0 ? height : (height + b->v - 1) / b->v;
		for (int k = 0; k < p->h * p->v; k++, b->blocks++) {
			b->block[b->blocks].plane = (uint8_t)i;
			b->block[b->blocks].x = (uint8_t)(p->size * (k % p->h));
			b->block[b->blocks].y = (uint8_t)(p->size * (k / p->h));
		}
	}
	const struct mr_plane *last = &b->plane[b->planes - 1];
	b->step_x = last->h * last->size;
	b->step_y = last->v * last->size;
	// Interpolation looks at a sample of chroma to each side.
	int beside = b->h == 2, above = b->v == 2;
	b->left = (x - beside) / b->h / b->step_x;
	b->right = mr_least((x + w - 1 + beside) / b->h, last->w - 1) / b->step_x;
	b->top = (y - above) / b->v / b->step_y;
	b->bottom = mr_least((y + h - 1 + above) / b->v, last->rows - 1) / b->step_y;
	b->width_mcus = (last->w + b->step_x - 1) / b->step_x;
	b->mcus = b->width_mcus * ((last->rows + b->step_y - 1) / b->step_y);
	b->row = b->top;
}

// mr_baseline_starts finds where the intervals that are needed begin. It returns 0 if their markers are not in order.
static int mr_baseline_starts(struct mr_baseline *b, int interval)
{
	b->interval = interval == 0 ? b->mcus : interval;
	size_t n = (size_t)(b->bottom * b->width_mcus + b->right) / (size_t)b->interval + 1;
	if (n > b->starts_size) {
		free(b->starts);
		b->starts_size = 0;
		b->starts = malloc(n * sizeof *b->starts);
		if (b->starts == NULL)
			return 0;
		b->starts_size = n;
	}
	const uint8_t *p = b->data;
	for (size_t i = 0; i < n; i++) {
		b->starts[i] = (uint32_t)(p - b->data);
		if (i + 1 == n)
			break;
		p = mr_interval_next(p, b->end);
		if (p == NULL || p[1] != 0xD0 + (i & 7))
			return 0;
		p += 2;
	}
	return 1;
}

// mr_baseline_open makes ready for rows y … y+h-1 of columns x … x+w-1 at 1/scale. It returns 0 if libjpeg-turbo is to do it.
static int mr_baseline_open(struct mr_baseline *b, const struct jpeg_decompress_struct *jpeg, int scale, int x, int y, int w,
                            int h)
{
	if (!mr_baseline_takes(jpeg, scale) || jpeg->src->bytes_in_buffer > UINT32_MAX)
		return 0;
	mr_baseline_shape(b, jpeg, scale, x, y, w, h);
	b->data = jpeg->src->next_input_byte;
	b->end = b->data + jpeg->src->bytes_in_buffer;
	b->begin = b->data;
	b->mcu = b->interval_end = 0;
	memset(b->coefs, 0, sizeof b->coefs);
	return mr_baseline_tables(b, jpeg) && mr_baseline_starts(b, (int)jpeg->restart_interval);
}

// mr_baseline_room is the memory that a plane takes.
static size_t mr_baseline_room(struct mr_baseline *b, int i)
{
	struct mr_plane *p = &b->plane[i];
	p->stride = (size_t)(b->right - b->left + 1) * (size_t)(p->size * p->h) + 2 * MR_PLANE_PAD;
	return p->stride * 2 * (size_t)(p->size * p->v) + 2 * MR_PLANE_PAD;
}

// mr_baseline_edges repeats the last columns of the image, and those of what was decoded, beyond them.
static void mr_baseline_edges(struct mr_baseline *b, int row)
{
	for (int i = 1; i < b->planes; i++) {
		struct mr_plane *p = &b->plane[i];
		int n = mr_least(p->w - b->left * p->size, (b->right - b->left + 1) * p->size);
		for (int y = 0; y < p->size; y++) {
			uint8_t *line = p->samples + ((size_t)(row & 1) * (size_t)p->size + (size_t)y) * p->stride;
			line[-1] = line[0];
			line[n] = line[n - 1];
		}
	}
}

static const uint8_t *mr_baseline_line(const struct mr_baseline *b, int i, int y, int x)
{
	const struct mr_plane *p = &b->plane[i];
	y = y < 0 ? 0 : mr_least(y, p->rows - 1);
	return p->samples + (size_t)(y % (2 * p->size * p->v)) * p->stride + (size_t)(x - b->left * p->size * p->h);
}

// mr_baseline_row writes n pixels of row y from column x, which is even, and up to 31 more. It returns 0 if
// libjpeg-turbo should see to this file.
static int mr_baseline_row(struct mr_baseline *b, uint8_t *out, int x, int y, int n, int avx2)
{
	int tall = b->v == 2;
	int near = y / b->v, far = tall ? near + (y & 1 ? 1 : -1) : near;
	int need = mr_least(near > far ? near : far, b->plane[b->planes - 1].rows - 1) / b->step_y;
	while (b->row <= need) {
#if defined(__x86_64__)
		int ok = avx2 ? decode_row_avx2(b) : decode_row_any(b);
#else
		int ok = ((void)avx2, decode_row_any(b));
#endif
		if (!ok)
			return 0;
		mr_baseline_edges(b, b->row - 1);
	}
	struct mr_lines l = {.luma = mr_baseline_line(b, 0, y, x)};
	if (b->planes == 1) {
		mr_gray_pixels(out, l.luma, n);
		return 1;
	}
	for (int k = 0; k < 2; k++) {
		l.near[k] = mr_baseline_line(b, 1 + k, near, x / b->h);
		l.far[k] = mr_baseline_line(b, 1 + k, far, x / b->h);
	}
	if (b->h == 2) {
		struct mr_bias bias = tall ? (struct mr_bias){8, 7} : (struct mr_bias){4, 8};
#if defined(__x86_64__)
		if (avx2) {
			mr_wide_avx2(out, &l, n, bias);
			return 1;
		}
#endif
		mr_wide_any(out, &l, n, bias);
		return 1;
	}
	if (tall) {
		mr_tall(out, &l, n, y & 1 ? 2 : 1);
		return 1;
	}
#if defined(__x86_64__)
	if (avx2 && b->h == 1) {
		mr_full_avx2(out, &l, n);
		return 1;
	}
#endif
	mr_full(out, &l, n, b->h);
	return 1;
}

#endif
