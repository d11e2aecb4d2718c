// Writing finished rows into the destination: flip, layout, element type, padding.
#ifndef MILLRACE_IMAGE_EMIT_H
#define MILLRACE_IMAGE_EMIT_H

#include "kernel.h"
#include "passes.h"

static inline void mr_put(const struct mr_job *job, const uint32_t *table, uint8_t *dst, size_t i, int c, uint8_t v)
{
	switch (job->element) {
	case MR_UINT8:
		dst[i] = v;
		break;
	case MR_TABLE16: {
		uint16_t bits = (uint16_t)table[256 * c + v];
		memcpy(dst + 2 * i, &bits, 2);
		break;
	}
	default:
		memcpy(dst + 4 * i, &table[256 * c + v], 4);
	}
}

// mr_index is the element of channel c of column x of row y, both of the window as it is written.
static inline size_t mr_index(const struct mr_job *job, int c, int x, int y)
{
	if (job->planar)
		return ((size_t)c * job->out_h + y) * job->out_w + x;
	return ((size_t)y * job->out_w + x) * job->out_channels + c;
}

static void mr_fill(const struct mr_job *job, const uint32_t *table, uint8_t *dst)
{
	if (job->vis_w == job->out_w && job->vis_h == job->out_h)
		return;
	for (int c = 0; c < job->out_channels; c++)
		for (int y = 0; y < job->out_h; y++)
			for (int x = 0; x < job->out_w; x++)
				mr_put(job, table, dst, mr_index(job, c, x, y), c, job->fill[c]);
}

// mr_span_table writes n elements step apart, backwards if step is negative, from every fourth byte of row.
#define MR_SPAN(NAME, TYPE, VALUE)                                                                                      \
	static void NAME(uint8_t *dst, ptrdiff_t step, const uint8_t *row, int n, const uint32_t *table)                \
	{                                                                                                               \
		(void)table;                                                                                            \
		for (int x = 0; x < n; x++, dst += step * (ptrdiff_t)sizeof(TYPE)) {                                    \
			TYPE v = (TYPE)(VALUE);                                                                         \
			memcpy(dst, &v, sizeof v);                                                                      \
		}                                                                                                       \
	}
MR_SPAN(mr_span8, uint8_t, row[4 * x])
MR_SPAN(mr_span16, uint16_t, table[row[4 * x]])
MR_SPAN(mr_span32, uint32_t, table[row[4 * x]])

// mr_emit writes row y of the visible part.
static void mr_emit(const struct mr_job *job, const uint32_t *table, uint8_t *dst, const uint8_t *row, int y)
{
	int n = job->vis_w;
	y += job->vis_y;
	if (job->flop)
		y = job->out_h - 1 - y;
	int done = 0;
	int from = job->flip ? job->out_w - job->vis_x - n : job->vis_x;
#if defined(__x86_64__)
	if (job->avx2 && job->planar && job->element == MR_UINT8 && job->out_channels == 3) {
		uint8_t *plane[3];
		for (int c = 0; c < 3; c++)
			plane[c] = dst + mr_index(job, c, from, y);
		done = mr_planes_avx2(plane, row, n, job->flip);
	}
#endif
	row += 4 * (size_t)done;
	// Column `done` of the row goes to the next place from the left, or from the right when mirrored.
	int at = job->flip ? from + n - 1 - done : from + done;
	ptrdiff_t step = (job->planar ? 1 : job->out_channels) * (job->flip ? -1 : 1);
	if (done == n)
		return;
	for (int c = 0; c < job->out_channels; c++) {
		size_t i = mr_index(job, c, at, y);
		switch (job->element) {
		case MR_UINT8:
			mr_span8(dst + i, step, row + c, n - done, NULL);
			break;
		case MR_TABLE16:
			mr_span16(dst + 2 * i, step, row + c, n - done, table + 256 * c);
			break;
		default:
			mr_span32(dst + 4 * i, step, row + c, n - done, table + 256 * c);
		}
	}
}

#endif
