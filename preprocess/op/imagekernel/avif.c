//go:build avif && cgo && !purego

#include "avif.h"

#include <avif/avif.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool failed(struct mr_avif *info, avifResult why)
{
	info->truncated = why == AVIF_RESULT_TRUNCATED_DATA;
	snprintf(info->message, sizeof info->message, "%s", avifResultToString(why));
	return false;
}

// opened is a decoder that has read the boxes, NULL if it could not. Pillow, too, takes files without what some encoders
// leave out.
static avifDecoder *opened(struct mr_avif *info, const uint8_t *data, size_t n)
{
	avifDecoder *decoder = avifDecoderCreate();
	if (decoder == NULL) {
		failed(info, AVIF_RESULT_OUT_OF_MEMORY);
		return NULL;
	}
	decoder->maxThreads = 1;
	decoder->strictFlags &= ~(avifStrictFlags)(AVIF_STRICT_PIXI_REQUIRED | AVIF_STRICT_CLAP_VALID);
	// The size is known when pixels are wanted. Tiles of a grid may reach beyond the image.
	if (info->w > 0)
		decoder->imageSizeLimit = info->w * info->h < 1u << 26 ? 4 * info->w * info->h + (1u << 16) : AVIF_DEFAULT_IMAGE_SIZE_LIMIT;
	avifResult result = avifDecoderSetIOMemory(decoder, data, n);
	if (result == AVIF_RESULT_OK)
		result = avifDecoderParse(decoder);
	if (result == AVIF_RESULT_OK)
		return decoder;
	failed(info, result);
	avifDecoderDestroy(decoder);
	return NULL;
}

// orientation is EXIF's number for a turn against the clock and, after it, a mirror.
static uint32_t orientation(const avifImage *image)
{
	static const uint8_t turned[4] = {1, 8, 3, 6}, upended[4] = {4, 5, 2, 7}, mirrored[4] = {2, 7, 4, 5};
	bool turn = image->transformFlags & AVIF_TRANSFORM_IROT, mirror = image->transformFlags & AVIF_TRANSFORM_IMIR;
	if (!turn && !mirror)
		return 0;
	unsigned angle = turn ? image->irot.angle & 3 : 0;
	if (!mirror)
		return turned[angle];
#if AVIF_VERSION >= 1000000
	return image->imir.axis == 1 ? mirrored[angle] : upended[angle];
#else
	return image->imir.mode == 1 ? mirrored[angle] : upended[angle];
#endif
}

static struct mr_avif_bytes copied(const avifRWData *from)
{
	struct mr_avif_bytes to = {NULL, 0};
	if (from->size > 0 && (to.data = malloc(from->size)) != NULL) {
		memcpy(to.data, from->data, from->size);
		to.size = from->size;
	}
	return to;
}

bool mr_avif_probe(struct mr_avif *info, const uint8_t *data, size_t n)
{
	memset(info, 0, sizeof *info);
	avifDecoder *decoder = opened(info, data, n);
	if (decoder == NULL)
		return false;
	const avifImage *image = decoder->image;
	info->w = image->width;
	info->h = image->height;
	info->components = (image->yuvFormat == AVIF_PIXEL_FORMAT_YUV400 ? 1 : 3) + (decoder->alphaPresent ? 1 : 0);
	info->orientation = orientation(image);
	info->exif = copied(&image->exif);
	info->xmp = copied(&image->xmp);
	avifDecoderDestroy(decoder);
	return true;
}

bool mr_avif_decode(struct mr_avif *info, const uint8_t *data, size_t n, uint8_t *pixels)
{
	avifDecoder *decoder = opened(info, data, n);
	if (decoder == NULL)
		return false;
	avifResult result = avifDecoderNextImage(decoder);
	avifImage *image = decoder->image;
	if (result == AVIF_RESULT_OK && (image->width != info->w || image->height != info->h))
		result = AVIF_RESULT_BMFF_PARSE_FAILED;
	if (result == AVIF_RESULT_OK) {
		avifRGBImage rgb;
		avifRGBImageSetDefaults(&rgb, image);
		rgb.format = AVIF_RGB_FORMAT_RGBA;
		rgb.depth = 8;
		rgb.pixels = pixels;
		rgb.rowBytes = 4 * image->width;
		result = avifImageYUVToRGB(image, &rgb);
	}
	avifDecoderDestroy(decoder);
	return result == AVIF_RESULT_OK || failed(info, result);
}
