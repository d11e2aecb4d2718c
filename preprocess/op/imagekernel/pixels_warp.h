// Interpolated maps of planes. Floating point is in double, in the order of Pillow's Geometry.c, never fused.
#ifndef MILLRACE_IMAGE_PIXELS_WARP_H
#define MILLRACE_IMAGE_PIXELS_WARP_H

#include <stddef.h>
#include <stdint.h>

// A place between pixels: columns x[0…3] and rows y[0…3] around it, of which rows that lie below the image have y < 0 and
// stand for the row before, and how far it is past the second of each.
struct place {
	int x[4], y[4];
	double dx, dy;
};

static inline int within(int v, int n) { return v < 0 ? 0 : v < n ? v : n - 1; }

static inline int floor_of(double v)
{
	int i = (int)v;
	return v < (double)i ? i - 1 : i;
}

static inline void place_at(struct place *p, double x, double y, int w, int h)
{
	x -= 0.5;
	y -= 0.5;
	int fx = floor_of(x), fy = floor_of(y);
	p->dx = x - fx;
	p->dy = y - fy;
	for (int i = 0; i < 4; i++) {
		int row = fy - 1 + i;
		p->x[i] = within(fx - 1 + i, w);
		p->y[i] = row >= 0 && row < h ? row : -1;
	}
}

static inline double linear(double a, double b, double d) { return a + (b - a) * d; }

static inline double cubic(double a, double b, double c, double d, double t)
{
	double p2 = c - a;
	double p3 = 2 * (a - b) + c - d;
	double p4 = b - a - c + d;
	return b + t * (p2 + t * (p3 + t * p4));
}

static inline double bilinear(const uint8_t *plane, int w, const struct place *p)
{
	const uint8_t *row = plane + (size_t)(p->y[1] < 0 ? 0 : p->y[1]) * w;
	double v = linear(row[p->x[1]], row[p->x[2]], p->dx), below = v;
	if (p->y[2] >= 0) {
		row = plane + (size_t)p->y[2] * w;
		below = linear(row[p->x[1]], row[p->x[2]], p->dx);
	}
	return linear(v, below, p->dy);
}

static inline double bicubic(const uint8_t *plane, int w, const struct place *p)
{
	double v[4], last = 0;
	for (int i = 0; i < 4; i++) {
		if (i == 0 || p->y[i] >= 0) {
			const uint8_t *row = plane + (size_t)(p->y[i] < 0 ? 0 : p->y[i]) * w;
			last = cubic(row[p->x[0]], row[p->x[1]], row[p->x[2]], row[p->x[3]], p->dx);
		}
		v[i] = last;
	}
	return cubic(v[0], v[1], v[2], v[3], p->dy);
}

static inline uint8_t byte_of(double v) { return v <= 0 ? 0 : v >= 255 ? 255 : (uint8_t)v; }

static void warp_row(uint8_t *out, size_t out_plane, const uint8_t *in, int w, int h, int channels, int n, int y,
                     const double *m, int perspective, int cubic_filter)
{
	double fy = y + 0.5;
	for (int x = 0; x < n; x++) {
		double fx = x + 0.5;
		double sx = m[0] * fx + m[1] * fy + m[2], sy = m[3] * fx + m[4] * fy + m[5];
		if (perspective) {
			double d = m[6] * fx + m[7] * fy + 1;
			sx /= d;
			sy /= d;
		}
		if (!(sx >= 0 && sx < w && sy >= 0 && sy < h))
			continue;
		struct place p;
		place_at(&p, sx, sy, w, h);
		for (int c = 0; c < channels; c++) {
			const uint8_t *plane = in + (size_t)c * w * h;
			out[c * out_plane + x] = byte_of(cubic_filter ? bicubic(plane, w, &p) : bilinear(plane, w, &p));
		}
	}
}

#endif
