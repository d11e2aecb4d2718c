// A decoder of our own for the JPEGs that data sets are made of: baseline, 8 bits, grey or YCbCr, all components in one
// scan. It decodes only what a crop needs and gives libjpeg-turbo's pixels; whatever it does not know or finds odd is
// left to libjpeg-turbo, which then says what is wrong.
#ifndef MILLRACE_IMAGE_BASELINE_H
#define MILLRACE_IMAGE_BASELINE_H

#include <stddef.h>
#include <stdint.h>

enum {
	MR_LOOK = 11,          // Bits that one look into a table of codes sees.
	MR_END_RUN = 128,      // The run of the symbol that ends a block.
	MR_CHUNK = 16 << 10,   // Bytes of entropy-coded data made ready at a time.
	MR_MCU_BYTES = 2048,   // More than one MCU can take, with what a refill reads beyond.
	MR_MCU_BLOCKS = 6,
	MR_PLANE_PAD = 64,     // Bytes before and after each row of a plane.
};

// A table of Huffman codes. A look has the length of code and value together in bits 0–7, that of the code in 8–15, that
// of the value in 16–23 and the run of zeros before it in 24–31; 0 is for codes that are too long or too rare.
struct mr_codes {
	uint32_t look[1 << MR_LOOK];
	uint32_t limit[17];  // Of codes of each length, the first that is longer, as if it had 16 bits.
	int32_t first[17];   // What to add to a code of each length to find its symbol.
	uint8_t bits[17], symbols[256], made;
};

// A reader of bits. The next bit is the highest of window; the lowest 64-count bits of it may be anything.
struct mr_bits {
	uint64_t window;
	unsigned count;
	const uint8_t *at;
};

struct mr_plane {
	int h, v;                // Sampling factors.
	int size;                // Samples that a block has on each side: 8, or fewer when the image is decoded smaller.
	int w, rows;             // Size in samples, without padding of blocks.
	uint32_t dc;             // The last DC coefficient.
	uint8_t *samples;        // A ring of two rows of MCUs, from the first column that is kept.
	size_t stride;
	const struct mr_codes *dc_codes, *ac_codes;
};

struct mr_baseline {
	int planes;
	struct mr_plane plane[3];
	int h, v;                // Samples of the luma by those of the chroma.
	int step_x, step_y;      // Samples of the chroma, or of a lone plane, that an MCU has.
	int width_mcus, mcus;    // In a row, in all.
	int left, right;         // The first MCU of a row that is kept, and the last.
	int top, bottom;         // The first row of MCUs that is kept, and the last.
	int row;                 // The next row of MCUs to decode.
	int mcu;                 // The MCU where the reader is.
	int interval;            // MCUs between restart markers; all if there are none.
	int interval_end;        // The first MCU after the interval that is being read.
	uint32_t *starts;        // Where intervals begin.
	size_t starts_size;      // Room in starts, in intervals.
	const uint8_t *begin, *data, *end;  // Entropy-coded data, what of it is yet to be made ready, and the end of the file.
	int ended;               // A marker or the end of the file follows the chunk.
	struct mr_bits bits;
	const uint8_t *chunk_end;
	struct {
		uint8_t plane, x, y;  // In samples from the corner of the MCU.
	} block[MR_MCU_BLOCKS];
	int blocks;
	_Alignas(64) int16_t quant[MR_MCU_BLOCKS / 2 * 128];
	_Alignas(64) int16_t coefs[128];  // Of two blocks, rows in turn; zero between MCUs.
	_Alignas(64) uint8_t spare[64];
	struct mr_codes codes[8];  // DC, then AC.
	uint8_t chunk[MR_CHUNK + MR_MCU_BYTES];
};

#endif
