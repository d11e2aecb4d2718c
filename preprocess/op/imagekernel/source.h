// Where rows of source pixels come from: a JPEG being decoded, or pixels in memory.
#ifndef MILLRACE_IMAGE_SOURCE_H
#define MILLRACE_IMAGE_SOURCE_H

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>

#include "baseline_rows.h"
#include "kernel.h"

// An open source hands out rows y_from … y_to-1 of columns x_from … x_to-1 in order, as 4-byte pixels.
struct mr_source {
	struct mr_job *job;
	// Rectangle of the stored image that is read.
	int x, y, w, h;
	const uint8_t *pixels;  // Memory: the stored image.
	int next;               // Memory: the next row.
	// JPEG.
	int is_jpeg;
	int full_w, full_h;  // The size in its header.
	struct jpeg_decompress_struct jpeg;
	struct jpeg_error_mgr errors;
	struct jpeg_progress_mgr progress;
	jmp_buf fail;
	int status;
	int created;
	struct mr_baseline *baseline;  // The decoder of our own, if it does this file.
	int baseline_failed;           // It began and left the file to libjpeg-turbo.
	int lead;    // Pixels of a decoded row before column x.
	int row_px;  // Pixels of a decoded row.
};

static _Noreturn void mr_fail(struct mr_source *s, int status, const char *message)
{
	s->status = status;
	snprintf(s->job->message, sizeof s->job->message, "%s", message);
	longjmp(s->fail, 1);
}

// mr_percent is how much of the image's rows had been read.
static int mr_percent(const struct jpeg_decompress_struct *jpeg)
{
	if (jpeg->image_height == 0)
		return 0;
	uint64_t rows = (uint64_t)jpeg->input_iMCU_row * (uint64_t)(jpeg->max_v_samp_factor * DCTSIZE);
	if (rows > jpeg->image_height)
		rows = jpeg->image_height;
	return (int)(rows * 100 / jpeg->image_height);
}

static void mr_jpeg_error(j_common_ptr common)
{
	struct mr_source *s = (struct mr_source *)common->client_data;
	char text[JMSG_LENGTH_MAX];
	common->err->format_message(common, text);
	if (common->err->msg_code == JERR_OUT_OF_MEMORY)
		mr_fail(s, MR_NO_MEMORY, text);
	mr_fail(s, MR_DAMAGED, text);
}

// mr_jpeg_message makes errors of the warnings that mean lost pixels. Others (stray bytes between segments, say) are
// common in real data and harmless.
static void mr_jpeg_message(j_common_ptr common, int level)
{
	struct mr_source *s = (struct mr_source *)common->client_data;
	if (level >= 0)
		return;
	switch (common->err->msg_code) {
	case JWRN_JPEG_EOF:
		s->job->percent = mr_percent(&s->jpeg);
		mr_fail(s, MR_TRUNCATED, "");
	case JWRN_HIT_MARKER:
	case JWRN_HUFF_BAD_CODE:
	case JWRN_ARITH_BAD_CODE:
	case JWRN_MUST_RESYNC: {
		char text[JMSG_LENGTH_MAX];
		s->job->percent = mr_percent(&s->jpeg);
		if (common->err->msg_code == JWRN_HIT_MARKER && !s->job->ended)
			mr_fail(s, MR_TRUNCATED, "");
		common->err->format_message(common, text);
		mr_fail(s, MR_DAMAGED, text);
	}
	default:
		return;
	}
}

static void mr_jpeg_progress(j_common_ptr common)
{
	struct mr_source *s = (struct mr_source *)common->client_data;
	if (s->jpeg.input_scan_number > s->job->max_scans) {
		char text[64];
		snprintf(text, sizeof text, "JPEG of more than %d scans", (int)s->job->max_scans);
		mr_fail(s, MR_LIMIT, text);
	}
}

// mr_can_crop says whether decoding a part of the columns gives the same pixels as decoding all. Upsampling looks one
// chroma sample to each side, and smoothing of unfinished progressive images looks at blocks.
static int mr_can_crop(const struct jpeg_decompress_struct *jpeg)
{
	for (int i = 0; i < jpeg->num_components; i++) {
		const jpeg_component_info *c = &jpeg->comp_info[i];
		int luma = c->h_samp_factor == jpeg->max_h_samp_factor && c->v_samp_factor == jpeg->max_v_samp_factor;
		if (!luma && (c->h_samp_factor != 1 || c->v_samp_factor != 1))
			return 0;
		for (int k = 0; jpeg->coef_bits != NULL && k < DCTSIZE2; k++)
			if (jpeg->coef_bits[i][k] != 0)
				return 0;
	}
	return jpeg->max_h_samp_factor <= 2 && jpeg->max_v_samp_factor <= 2;
}

static void mr_drop_rows(struct mr_source *s, uint8_t *buf, int n)
{
	JSAMPROW rows[1] = {buf};
	while (n-- > 0)
		if (jpeg_read_scanlines(&s->jpeg, rows, 1) != 1)
			mr_fail(s, MR_DAMAGED, "decoder gave no row");
}

// mr_baseline_begin gives the file to the decoder of our own, if it is for it.
static int mr_baseline_begin(struct mr_source *s, struct mr_scratch *scratch)
{
	// Of a file that ends too early libjpeg-turbo knows how much of it can be read.
	if (s->job->plain || s->baseline_failed || !s->job->ended)
		return 0;
	if (scratch->baseline == NULL) {
		size_t size = (sizeof *scratch->baseline + 63) & ~(size_t)63;
		scratch->baseline = aligned_alloc(64, size);
		if (scratch->baseline == NULL)
			return 0;
		memset(scratch->baseline, 0, size);
	}
	if (!mr_baseline_open(scratch->baseline, &s->jpeg, s->job->scale, s->x, s->y, s->w, s->h))
		return 0;
	s->baseline = scratch->baseline;
	s->lead = s->x % s->baseline->h;
	s->row_px = s->w + s->lead + 32;
	return 1;
}

// mr_jpeg_open starts decoding. Call it, and all that reads rows, under setjmp(s->fail).
static void mr_jpeg_open(struct mr_source *s, struct mr_scratch *scratch, const uint8_t *src, size_t len)
{
	struct mr_job *job = s->job;
	struct jpeg_decompress_struct *jpeg = &s->jpeg;
	s->is_jpeg = 1;
	jpeg->err = jpeg_std_error(&s->errors);
	s->errors.error_exit = mr_jpeg_error;
	s->errors.emit_message = mr_jpeg_message;
	jpeg->client_data = s;
	jpeg_create_decompress(jpeg);
	jpeg->client_data = s;
	s->created = 1;
	s->progress.progress_monitor = mr_jpeg_progress;
	jpeg->progress = &s->progress;
	jpeg_mem_src(jpeg, src, len);
	jpeg_read_header(jpeg, TRUE);
	if ((int)jpeg->image_width != s->full_w || (int)jpeg->image_height != s->full_h)
		mr_fail(s, MR_DAMAGED, "two frame headers disagree");
	if (jpeg_has_multiple_scans(jpeg) && (int64_t)s->full_w * s->full_h > job->max_multiscan_pixels)
		mr_fail(s, MR_LIMIT, "JPEG stored in several scans has too many pixels");
	if (mr_baseline_begin(s, scratch))
		return;
	jpeg->out_color_space = jpeg->num_components == 4 ? JCS_CMYK : JCS_EXT_RGBX;
	jpeg->scale_num = 1;
	jpeg->scale_denom = (unsigned)job->scale;
	jpeg_start_decompress(jpeg);
	if ((int)jpeg->output_width != job->width || (int)jpeg->output_height != job->height)
		mr_fail(s, MR_DAMAGED, "decoder gives another size");

	s->lead = s->x;
	s->row_px = job->width;
	if (!mr_can_crop(jpeg))
		return;
	// Upsampling needs a column to each side; narrow crops get more, which keeps them on its usual path.
	int margin = s->w < 32 ? 16 : 2;
	int left = s->x > margin ? s->x - margin : 0;
	int right = s->x + s->w + margin < job->width ? s->x + s->w + margin : job->width;
	if (right - left < job->width) {
		JDIMENSION x = (JDIMENSION)left, w = (JDIMENSION)(right - left);
		jpeg_crop_scanline(jpeg, &x, &w);
		s->lead = s->x - (int)x;
		s->row_px = (int)jpeg->output_width;
	}
}

// mr_jpeg_skip passes over the rows before the first; buf holds one decoded row.
static void mr_jpeg_skip(struct mr_source *s, uint8_t *buf)
{
	if (s->baseline != NULL)
		return;
	enum { LEAD_ROWS = 2 };
	int skip = s->y - LEAD_ROWS;
	if (skip > 0 && mr_can_crop(&s->jpeg)) {
		if ((int)jpeg_skip_scanlines(&s->jpeg, (JDIMENSION)skip) != skip)
			mr_fail(s, MR_DAMAGED, "decoder skipped too few rows");
		mr_drop_rows(s, buf, LEAD_ROWS);
		return;
	}
	mr_drop_rows(s, buf, s->y);
}

static inline uint8_t mr_cmyk_channel(unsigned c, unsigned k)
{
	// Adobe stores ink inverted: c and k are 255 minus ink, so k is what Pillow's formula calls nk.
	unsigned t = (255 - c) * k + 128;
	unsigned ink = ((t >> 8) + t) >> 8;
	return (uint8_t)(ink > k ? 0 : k - ink);
}

static void mr_cmyk_row(uint8_t *p, int n, int ink)
{
	for (size_t i = 0; ink && i < 4 * (size_t)n; i++)
		p[i] = (uint8_t)(255 - p[i]);
	for (int i = 0; i < n; i++, p += 4) {
		unsigned k = p[3];
		for (int c = 0; c < 3; c++)
			p[c] = mr_cmyk_channel(p[c], k);
		p[3] = 255;
	}
}

static void mr_gray_row(uint8_t *p, int n)
{
	for (int i = 0; i < n; i++, p += 4) {
		uint8_t v = (uint8_t)((p[0] * 19595u + p[1] * 38470u + p[2] * 7471u + 0x8000u) >> 16);
		p[0] = p[1] = p[2] = v;
	}
}

#if defined(__x86_64__)
// mr_expand_avx2 gives pixels of three bytes a fourth, four at a time; it returns how many it did.
__attribute__((target("avx2"))) static int mr_expand_avx2(uint8_t *out, const uint8_t *in, int n)
{
	const __m128i spread = _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1);
	const __m128i opaque = _mm_set1_epi32((int)0xFF000000u);
	int x = 0;
	// A load takes 16 bytes, of which 12 are used.
	for (; x + 6 <= n; x += 4) {
		__m128i v = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(in + 3 * (size_t)x)), spread);
		_mm_storeu_si128((__m128i *)(out + 4 * (size_t)x), _mm_or_si128(v, opaque));
	}
	return x;
}

// mr_join_avx2 joins three planes to pixels of four bytes, 16 at a time; it returns how many it did.
__attribute__((target("avx2"))) static int mr_join_avx2(uint8_t *out, const uint8_t *in, size_t plane, int n)
{
	const __m128i opaque = _mm_set1_epi8(-1);
	int x = 0;
	for (; x + 16 <= n; x += 16) {
		const uint8_t *p = in + x;
		__m128i r = _mm_loadu_si128((const __m128i *)p), g = _mm_loadu_si128((const __m128i *)(p + plane));
		__m128i b = _mm_loadu_si128((const __m128i *)(p + 2 * plane));
		__m128i rg[2] = {_mm_unpacklo_epi8(r, g), _mm_unpackhi_epi8(r, g)};
		__m128i bx[2] = {_mm_unpacklo_epi8(b, opaque), _mm_unpackhi_epi8(b, opaque)};
		__m128i *to = (__m128i *)(out + 4 * (size_t)x);
		for (int i = 0; i < 2; i++) {
			_mm_storeu_si128(to + 2 * i, _mm_unpacklo_epi16(rg[i], bx[i]));
			_mm_storeu_si128(to + 2 * i + 1, _mm_unpackhi_epi16(rg[i], bx[i]));
		}
	}
	return x;
}
#endif

static void mr_expand_row(uint8_t *out, const uint8_t *in, int n, int channels, int avx2)
{
	int done = 0;
	switch (channels) {
	case 4:
		memcpy(out, in, 4 * (size_t)n);
		return;
	case 3:
#if defined(__x86_64__)
		if (avx2)
			done = mr_expand_avx2(out, in, n);
#endif
		(void)avx2;
		in += 3 * (size_t)done, out += 4 * (size_t)done;
		for (int i = done; i < n; i++, in += 3, out += 4) {
			out[0] = in[0];
			out[1] = in[1];
			out[2] = in[2];
			out[3] = 255;
		}
		return;
	default:
		for (int i = 0; i < n; i++, out += 4) {
			out[0] = out[1] = out[2] = in[i];
			out[3] = 255;
		}
	}
}

static void mr_join_row(uint8_t *out, const uint8_t *in, size_t plane, int n, int avx2)
{
	const uint8_t *r = in, *g = in + plane, *b = in + 2 * plane;
	int done = 0;
#if defined(__x86_64__)
	if (avx2)
		done = mr_join_avx2(out, in, plane, n);
#endif
	(void)avx2;
	for (int i = done; i < n; i++) {
		uint32_t v = 0xFF000000u | (uint32_t)b[i] << 16 | (uint32_t)g[i] << 8 | r[i];
		out[4 * i] = (uint8_t)v;
		out[4 * i + 1] = (uint8_t)(v >> 8);
		out[4 * i + 2] = (uint8_t)(v >> 16);
		out[4 * i + 3] = (uint8_t)(v >> 24);
	}
}

// mr_next_row reads the next row into buf and returns where its first pixel is.
static uint8_t *mr_next_row(struct mr_source *s, uint8_t *buf)
{
	if (s->baseline != NULL) {
		if (!mr_baseline_row(s->baseline, buf, s->x - s->lead, s->y + s->next++, s->w + s->lead, s->job->avx2)) {
			s->baseline_failed = 1;
			longjmp(s->fail, 1);
		}
		buf += 4 * (size_t)s->lead;
	} else if (s->is_jpeg) {
		mr_drop_rows(s, buf, 1);
		buf += 4 * (size_t)s->lead;
		if (s->jpeg.out_color_space == JCS_CMYK)
			mr_cmyk_row(buf, s->w, s->job->ink);
	} else {
		int channels = s->job->channels;
		size_t at = (size_t)(s->y + s->next) * s->job->width + s->x;
		if (s->job->planes && channels == 3)
			mr_join_row(buf, s->pixels + at, (size_t)s->job->width * s->job->height, s->w, s->job->avx2);
		else
			mr_expand_row(buf, s->pixels + at * channels, s->w, channels, s->job->avx2);
		s->next++;
	}
	if (s->job->gray)
		mr_gray_row(buf, s->w);
	return buf;
}

// mr_jpeg_finish makes sure that a file without its end marker is refused, wherever the crop lay.
static void mr_jpeg_finish(struct mr_source *s, uint8_t *buf)
{
	if (!s->is_jpeg || s->job->ended)
		return;
	mr_drop_rows(s, buf, (int)(s->jpeg.output_height - s->jpeg.output_scanline));
	s->job->percent = 100;
	mr_fail(s, MR_TRUNCATED, "");
}

static void mr_source_close(struct mr_source *s)
{
	if (s->created)
		jpeg_destroy_decompress(&s->jpeg);
	s->created = 0;
	s->baseline = NULL;
}

#endif
