// The fused image kernel: one call takes an encoded or decoded image to pixels of a batch.
#ifndef MILLRACE_IMAGE_KERNEL_H
#define MILLRACE_IMAGE_KERNEL_H

#include <stddef.h>
#include <stdint.h>

// What mr_run returns.
enum {
	MR_OK = 0,
	MR_DAMAGED = 1,    // The file is damaged; message says how.
	MR_TRUNCATED = 2,  // The file ends too early; percent says how much of it was read.
	MR_LIMIT = 3,      // A limit is passed; message says which.
	MR_NO_MEMORY = 4,
};

// An element of the output.
enum { MR_UINT8 = 0, MR_TABLE16 = 1, MR_TABLE32 = 2 };

// Scratch memory, kept between calls.
struct mr_scratch {
	uint8_t *data;
	size_t size;
	struct mr_baseline *baseline;
};

// One image's job. No pointers, so that Go may keep it in its own memory.
struct mr_job {
	// The stored image. channels is 0 for a JPEG, else the bytes per pixel: 1, 3 or 4, planes if planes is set.
	int32_t width, height, channels, planes;
	// A JPEG is decoded at 1/scale of its size: 1, 2, 4 or 8. mr_run divides width and height by it.
	int32_t scale;
	// EXIF orientation to undo, 1 to 8; whether to take the luma; whether the file has its end marker.
	int32_t orientation, gray, ended;
	// Four components of a JPEG are inks as they are, not turned over.
	int32_t ink;
	// The part of the upright image that is resized.
	int32_t crop_x, crop_y, crop_w, crop_h;
	// The visible part of the resized image; tap tables are for its columns and rows.
	int32_t vis_w, vis_h;
	int32_t x_stride, y_stride, x_identity, y_identity;
	// Source columns and rows that the taps read, relative to the crop.
	int32_t x_from, x_to, y_from, y_to;
	int32_t vertical_first;
	// The window that is written, and where the visible part lies in it before the flip.
	int32_t out_w, out_h, vis_x, vis_y;
	int32_t flip, flop, out_channels, planar, element;
	uint8_t fill[4];
	// Whether to use the instructions of AVX2 and BMI2, and whether to leave every JPEG to libjpeg-turbo.
	int32_t avx2, plain;
	int32_t max_scans;
	int64_t max_multiscan_pixels;
	// The answer, when it is not MR_OK.
	int32_t percent;
	char message[200];
};

// mr_run does one job. xb, yb hold (first, count) pairs, first counted from x_from and y_from, and xk, yk the weights; table has 3×256 entries.
int mr_run(struct mr_job *job, struct mr_scratch *scratch, const uint8_t *src, size_t src_len, const int32_t *xb,
           const int32_t *xk, const int32_t *yb, const int32_t *yk, const uint32_t *table, uint8_t *dst);

// mr_free gives back the scratch memory.
void mr_free(struct mr_scratch *scratch);

#endif
