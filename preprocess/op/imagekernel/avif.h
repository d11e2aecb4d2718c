// AVIF by libavif.
#ifndef MILLRACE_IMAGE_AVIF_H
#define MILLRACE_IMAGE_AVIF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// What a file says of its image, or why it can't be read.
struct mr_avif {
	uint32_t w, h;
	// Of colours, 1 or 3, and alpha.
	uint32_t components;
	// Orientation that the file's own turns and mirrors make, as EXIF counts them; 0 if it has none.
	uint32_t orientation;
	// Copies of the EXIF and the XMP, to be freed; NULL for what there is not.
	struct mr_avif_bytes {
		uint8_t *data;
		size_t size;
	} exif, xmp;
	bool truncated;
	char message[96];
};

// mr_avif_probe reads the boxes of a file.
bool mr_avif_probe(struct mr_avif *info, const uint8_t *data, size_t n);

// mr_avif_decode writes info->w × info->h pixels of four bytes: red, green, blue and alpha.
bool mr_avif_decode(struct mr_avif *info, const uint8_t *data, size_t n, uint8_t *pixels);

#endif
