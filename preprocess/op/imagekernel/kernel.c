//go:build cgo && !purego

#include "kernel.h"

#include <stdlib.h>

#include "emit.h"
#include "passes.h"
#include "source.h"

// A run is one job in progress.
struct run {
	struct mr_source source;
	struct mr_job *job;
	const int32_t *xb, *xk, *yb, *yk;
	const uint32_t *table;
	uint8_t *dst;
	uint32_t *xp, *yp;       // Packed weights.
	uint8_t *turned;         // The upright crop, when the image is stored turned.
	uint8_t *row_buffers;    // Four rows as they are decoded or expanded.
	size_t row_bytes;        // Of one of those.
	uint8_t *ring;           // Rows that wait for the vertical pass.
	int ring_rows;
	size_t ring_bytes;       // Of one of those.
	uint8_t *out_rows;       // Four rows between the passes and the destination.
	size_t out_bytes;        // Of one of those.
	const uint8_t **taps;    // Row pointers for one vertical tap set.
};

static size_t align_up(size_t n) { return (n + 63) & ~(size_t)63; }

static size_t row_size(int pixels) { return align_up(4 * (size_t)pixels + MR_SLACK); }

// take hands out scratch memory; with data NULL it only counts.
static uint8_t *take(uint8_t *data, size_t *used, size_t n)
{
	uint8_t *p = data == NULL ? NULL : data + *used;
	*used += align_up(n);
	return p;
}

// place lays out r's scratch memory from data and returns how much that is.
static size_t place(struct run *r, uint8_t *data)
{
	struct mr_job *job = r->job;
	size_t used = 0;
	int source_px = r->source.is_jpeg ? r->source.row_px : r->source.w;
	int columns = job->x_to - job->x_from;
	// Wide enough for both uses of the ring: rows as decoded, rows after the horizontal pass.
	int ring_px = job->vertical_first ? (source_px > columns ? source_px : columns) : job->vis_w;
	int out_px = job->vertical_first ? (columns > job->vis_w ? columns : job->vis_w) : job->vis_w;
	r->row_bytes = row_size(source_px > columns ? source_px : columns);
	r->ring_bytes = row_size(ring_px);
	r->out_bytes = row_size(out_px);
	r->ring_rows = job->y_stride + 4;
	r->xp = (uint32_t *)take(data, &used, 4 * (size_t)job->x_stride * job->vis_w);
	r->yp = (uint32_t *)take(data, &used, 4 * (size_t)job->y_stride * job->vis_h);
	r->row_buffers = take(data, &used, 4 * r->row_bytes);
	r->ring = take(data, &used, (size_t)r->ring_rows * r->ring_bytes);
	r->out_rows = take(data, &used, 8 * r->out_bytes);
	r->taps = (const uint8_t **)take(data, &used, sizeof(uint8_t *) * ((size_t)job->y_stride + 2));
	r->turned = NULL;
	if (r->source.baseline != NULL)
		for (int i = 0; i < r->source.baseline->planes; i++) {
			uint8_t *plane = take(data, &used, mr_baseline_room(r->source.baseline, i));
			r->source.baseline->plane[i].samples = plane == NULL ? NULL : plane + MR_PLANE_PAD;
		}
	if (job->orientation > 1)
		r->turned = take(data, &used, 4 * (size_t)r->source.w * r->source.h);
	return used;
}

// allocate makes room in the scratch memory and lays it out.
static void allocate(struct run *r, struct mr_scratch *scratch)
{
	size_t need = place(r, NULL);
	if (need > scratch->size) {
		free(scratch->data);
		scratch->size = 0;
		scratch->data = aligned_alloc(64, align_up(need));
		if (scratch->data == NULL)
			mr_fail(&r->source, MR_NO_MEMORY, "no memory for the rows of an image");
		scratch->size = need;
	}
	place(r, scratch->data);
}

void mr_free(struct mr_scratch *scratch)
{
	free(scratch->data);
	scratch->data = NULL;
	scratch->size = 0;
	if (scratch->baseline != NULL)
		free(scratch->baseline->starts);
	free(scratch->baseline);
	scratch->baseline = NULL;
}

// oriented_source is where pixel (x, y) of the upright image is stored; w and h are the stored size.
static void oriented_source(int orientation, int x, int y, int w, int h, int *sx, int *sy)
{
	int turn = orientation >= 5;
	int a = turn ? y : x, b = turn ? x : y;
	int flip_x = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
	int flip_y = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
	*sx = flip_x ? w - 1 - a : a;
	*sy = flip_y ? h - 1 - b : b;
}

// locate finds the stored rectangle that the taps read.
static void locate(struct run *r)
{
	struct mr_job *job = r->job;
	int x0, y0, x1, y1;
	oriented_source(job->orientation, job->crop_x + job->x_from, job->crop_y + job->y_from, job->width, job->height, &x0, &y0);
	oriented_source(job->orientation, job->crop_x + job->x_to - 1, job->crop_y + job->y_to - 1, job->width, job->height, &x1, &y1);
	r->source.x = x0 < x1 ? x0 : x1;
	r->source.y = y0 < y1 ? y0 : y1;
	r->source.w = (x0 < x1 ? x1 - x0 : x0 - x1) + 1;
	r->source.h = (y0 < y1 ? y1 - y0 : y0 - y1) + 1;
}

// turn reads all of the stored rectangle and makes its upright copy the source.
static void turn(struct run *r)
{
	struct mr_job *job = r->job;
	struct mr_source *s = &r->source;
	int w = job->x_to - job->x_from, h = job->y_to - job->y_from;
	int orientation = job->orientation;
	// Going along a stored row, the upright pixel moves by a constant step.
	for (int sy = 0; sy < s->h; sy++) {
		const uint8_t *row = mr_next_row(s, r->row_buffers);
		for (int sx = 0; sx < s->w; sx++) {
			int a = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8 ? s->w - 1 - sx : sx;
			int b = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7 ? s->h - 1 - sy : sy;
			int x = orientation >= 5 ? b : a, y = orientation >= 5 ? a : b;
			memcpy(r->turned + 4 * ((size_t)y * w + x), row + 4 * (size_t)sx, 4);
		}
	}
	mr_jpeg_finish(s, r->row_buffers);
	mr_source_close(s);
	s->is_jpeg = 0;
	s->pixels = r->turned;
	s->next = s->x = s->y = 0;
	s->w = w;
	s->h = h;
	job->channels = 4;
	job->planes = 0;
	job->width = w;
	job->height = h;
	job->gray = 0;
}

static void pack_weights(struct run *r)
{
#if defined(__x86_64__)
	if (!r->job->avx2)
		return;
	for (int i = 0; i < r->job->vis_w; i++)
		mr_pack(r->xp + (size_t)i * r->job->x_stride, r->xk + (size_t)i * r->job->x_stride, r->job->x_stride);
	for (int i = 0; i < r->job->vis_h; i++)
		mr_pack(r->yp + (size_t)i * r->job->y_stride, r->yk + (size_t)i * r->job->y_stride, r->job->y_stride);
#endif
}

// horizontal takes n ≤ 4 rows from in to out.
static void horizontal(struct run *r, uint8_t *const *out, const uint8_t *const *in, int n)
{
	struct mr_job *job = r->job;
	if (job->x_identity) {
		for (int i = 0; i < n; i++)
			memcpy(out[i], in[i], 4 * (size_t)job->vis_w);
		return;
	}
#if defined(__x86_64__)
	if (job->avx2) {
		uint8_t *to[4];
		const uint8_t *from[4];
		for (int i = 0; i < 4; i++) {
			to[i] = out[i < n ? i : 0];
			from[i] = in[i < n ? i : 0];
		}
		mr_h_rows_avx2(to, from, job->vis_w, r->xb, r->xp, job->x_stride);
		return;
	}
#endif
	for (int i = 0; i < n; i++)
		mr_h_row_scalar(out[i], in[i], job->vis_w, r->xb, r->xk, job->x_stride);
}

static uint8_t *ring_row(struct run *r, int y) { return r->ring + (size_t)(y % r->ring_rows) * r->ring_bytes; }

// vertical makes output row y from rows of the ring , skipping `lead` pixels of each.
static const uint8_t *vertical(struct run *r, int y, int lead, int pixels, uint8_t *out)
{
	struct mr_job *job = r->job;
	int first = r->yb[2 * y], n = r->yb[2 * y + 1];
	if (n == 1 && job->y_identity)
		return ring_row(r, first) + 4 * (size_t)lead;
	if (n == 0) {
		memset(out, 0, 4 * (size_t)pixels);
		return out;
	}
	for (int j = 0; j < n; j++)
		r->taps[j] = ring_row(r, first + j) + 4 * (size_t)lead;
	r->taps[n] = r->taps[n - 1];
#if defined(__x86_64__)
	if (job->avx2) {
		mr_v_row_avx2(out, r->taps, n, r->yp + (size_t)y * job->y_stride, 4 * pixels);
		return out;
	}
#endif
	mr_v_row_scalar(out, r->taps, n, r->yk + (size_t)y * job->y_stride, 4 * pixels);
	return out;
}

// horizontal_first streams: source rows go through the horizontal pass into the ring, output rows leave as soon as they can.
static void horizontal_first(struct run *r)
{
	struct mr_job *job = r->job;
	int ready = 0, total = job->y_to - job->y_from;
	for (int y = 0; y < job->vis_h; y++) {
		int need = r->yb[2 * y] + r->yb[2 * y + 1];
		while (ready < need) {
			const uint8_t *in[4];
			uint8_t *out[4];
			int n = total - ready < 4 ? total - ready : 4;
			for (int i = 0; i < n; i++) {
				in[i] = mr_next_row(&r->source, r->row_buffers + (size_t)i * r->row_bytes);
				out[i] = ring_row(r, ready + i);
			}
			horizontal(r, out, in, n);
			ready += n;
		}
		mr_emit(job, r->table, r->dst, vertical(r, y, 0, job->vis_w, r->out_rows), y);
	}
}

// vertical_first keeps source rows in the ring and sends rows through the horizontal pass after the vertical one.
static void vertical_first(struct run *r)
{
	struct mr_job *job = r->job;
	int columns = job->x_to - job->x_from;
	int ready = 0, lead = r->source.is_jpeg ? r->source.lead : 0;
	for (int y = 0; y < job->vis_h; y += 4) {
		const uint8_t *in[4];
		uint8_t *out[4];
		int n = job->vis_h - y < 4 ? job->vis_h - y : 4;
		for (int i = 0; i < n; i++) {
			int need = r->yb[2 * (y + i)] + r->yb[2 * (y + i) + 1];
			for (; ready < need; ready++)
				mr_next_row(&r->source, ring_row(r, ready));
			in[i] = vertical(r, y + i, lead, columns, r->out_rows + (size_t)i * r->out_bytes);
			out[i] = r->out_rows + (size_t)(4 + i) * r->out_bytes;
		}
		horizontal(r, out, in, n);
		for (int i = 0; i < n; i++)
			mr_emit(job, r->table, r->dst, out[i], y + i);
	}
}

static __attribute__((noinline)) void process(struct run *r, struct mr_scratch *scratch, const uint8_t *src, size_t src_len)
{
	struct mr_job *job = r->job;
	struct mr_source *s = &r->source;
	if (job->channels == 0)
		mr_jpeg_open(s, scratch, src, src_len);
	else
		s->pixels = src;
	allocate(r, scratch);
	if (s->is_jpeg)
		mr_jpeg_skip(s, r->row_buffers);
	if (job->orientation > 1)
		turn(r);
	pack_weights(r);
	mr_fill(job, r->table, r->dst);
	if (job->vertical_first)
		vertical_first(r);
	else
		horizontal_first(r);
	mr_jpeg_finish(s, r->row_buffers);
}

// guarded is apart from process and mr_run so that no variable changes between setjmp and longjmp.
static __attribute__((noinline)) void guarded(struct run *r, struct mr_scratch *scratch, const uint8_t *src, size_t src_len)
{
	if (setjmp(r->source.fail) == 0)
		process(r, scratch, src, src_len);
}

// attempt does the job once.
static __attribute__((noinline)) void attempt(struct run *r, struct mr_scratch *scratch, const uint8_t *src, size_t src_len)
{
	locate(r);
	guarded(r, scratch, src, src_len);
	mr_source_close(&r->source);
}

int mr_run(struct mr_job *job, struct mr_scratch *scratch, const uint8_t *src, size_t src_len, const int32_t *xb,
           const int32_t *xk, const int32_t *yb, const int32_t *yk, const uint32_t *table, uint8_t *dst)
{
	struct run r;
	memset(&r, 0, sizeof r);
	struct mr_job again = *job;
	r.job = job;
	r.source.job = job;
	r.xb = xb, r.xk = xk, r.yb = yb, r.yk = yk;
	r.table = table;
	r.dst = dst;
	job->message[0] = 0;
	r.source.full_w = job->width;
	r.source.full_h = job->height;
	job->width = (job->width + job->scale - 1) / job->scale;
	job->height = (job->height + job->scale - 1) / job->scale;
	attempt(&r, scratch, src, src_len);
	if (r.source.baseline_failed) {
		again.plain = 1;
		*job = again;
		return mr_run(job, scratch, src, src_len, xb, xk, yb, yk, table, dst);
	}
	return r.source.status;
}
