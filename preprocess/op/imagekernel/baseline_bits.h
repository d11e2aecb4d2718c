// Bits and codes of entropy-coded data.
#ifndef MILLRACE_IMAGE_BASELINE_BITS_H
#define MILLRACE_IMAGE_BASELINE_BITS_H

#include <string.h>

#include "baseline.h"

static uint32_t mr_look_of(unsigned symbol, unsigned length, int dc)
{
	unsigned size = dc ? symbol : symbol & 15, run = dc ? 0 : symbol >> 4;
	// A run of 15 goes on; any other one without a value ends the block, whichever it is.
	if (!dc && size == 0 && run != 15)
		run = MR_END_RUN;
	return (length + size) | length << 8 | size << 16 | run << 24;
}

// mr_codes_make fills in codes from a table as files have it. It returns 0 if the table is none that encoders write.
static int mr_codes_make(struct mr_codes *codes, const uint8_t bits[17], const uint8_t *symbols, int dc)
{
	// Most files of a data set have the same tables.
	if (codes->made && memcmp(codes->bits + 1, bits + 1, 16) == 0 && memcmp(codes->symbols, symbols, 256) == 0)
		return 1;
	codes->made = 0;
	memset(codes->look, 0, sizeof codes->look);
	uint32_t code = 0;
	int n = 0;
	for (int length = 1; length <= 16; length++, code <<= 1) {
		codes->first[length] = n - (int32_t)code;
		for (int i = 0; i < bits[length]; i++, code++, n++) {
			if (n >= 256 || code >= 1u << length)
				return 0;
			unsigned symbol = symbols[n], size = dc ? symbol : symbol & 15;
			// Two looks with their values must fit what one refill gives.
			if (size > (dc ? 15 : 10))
				return 0;
			if (length > MR_LOOK || (dc && size > 11))
				continue;
			uint32_t look = mr_look_of(symbol, (unsigned)length, dc);
			uint32_t *to = codes->look + ((size_t)code << (MR_LOOK - length));
			for (int k = 0; k < 1 << (MR_LOOK - length); k++)
				to[k] = look;
		}
		codes->limit[length] = code << (16 - length);
	}
	memcpy(codes->bits, bits, 17);
	memcpy(codes->symbols, symbols, 256);
	codes->made = 1;
	return 1;
}

// mr_code_long is the look of the next code when the table of looks has none, 0 if there is no such code.
static uint32_t mr_code_long(const struct mr_codes *codes, uint64_t window, int dc)
{
	uint32_t next = (uint32_t)(window >> 48);
	for (unsigned length = 1; length <= 16; length++)
		if (next < codes->limit[length]) {
			int32_t i = codes->first[length] + (int32_t)(next >> (16 - length));
			return mr_look_of(codes->symbols[i & 255], length, dc);
		}
	return 0;
}

static inline __attribute__((always_inline)) void mr_refill(struct mr_bits *b)
{
	uint64_t next;
	memcpy(&next, b->at, 8);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	next = __builtin_bswap64(next);
#endif
	b->window |= next >> b->count;
	b->at += (63 - b->count) >> 3;
	b->count |= 56;
}

static inline __attribute__((always_inline)) void mr_consume(struct mr_bits *b, uint32_t look)
{
	b->window <<= look & 63;
	b->count -= look & 63;
}

// mr_value is the value that follows the next code. Those that begin with a zero bit are negative.
static inline __attribute__((always_inline)) int32_t mr_value(const struct mr_bits *b, uint32_t look)
{
	unsigned size = look >> 16 & 63;
	uint64_t from = b->window << (look >> 8 & 63);
	int32_t negative = (int32_t)(from >> 63) - 1;
	return (int32_t)((from >> 1) >> (63 - size)) + (negative & (1 - (1 << size)));
}

// mr_chunk_fill makes more data ready, without the zeros that are stuffed in after bytes of ones.
static void mr_chunk_fill(struct mr_baseline *b)
{
	// What the window holds is read again.
	const uint8_t *rest = b->bits.at - (b->bits.count >> 3);
	size_t n = rest < b->chunk_end ? (size_t)(b->chunk_end - rest) : 0;
	memmove(b->chunk, rest, n);
	b->bits.at = b->chunk;
	unsigned odd = b->bits.count & 7;
	// The bits of a byte that is begun stay at the top of the window.
	b->bits.window = odd == 0 ? 0 : b->bits.window & ~(~(uint64_t)0 >> odd);
	b->bits.count = odd;
	uint8_t *to = b->chunk + n;
	size_t room = MR_CHUNK - n;
	while (room > 0 && b->data < b->end) {
		size_t left = (size_t)(b->end - b->data);
		size_t span = left < room ? left : room;
		const uint8_t *ones = memchr(b->data, 0xFF, span);
		if (ones != NULL)
			span = (size_t)(ones - b->data) + 1;
		if (ones != NULL && (b->end - ones < 2 || ones[1] != 0)) {
			memcpy(to, b->data, span - 1);
			to += span - 1;
			b->ended = 1;
			break;
		}
		memcpy(to, b->data, span);
		to += span;
		room -= span;
		b->data += span + (ones != NULL);
	}
	if (b->data >= b->end)
		b->ended = 1;
	b->chunk_end = to;
}

// mr_interval_begin goes to the start of the interval of the next MCU.
static void mr_interval_begin(struct mr_baseline *b)
{
	b->data = b->begin + b->starts[b->mcu / b->interval];
	b->interval_end = b->mcu + b->interval;
	b->ended = 0;
	b->bits.at = b->chunk_end = b->chunk;
	b->bits.window = 0;
	b->bits.count = 0;
	for (int i = 0; i < b->planes; i++)
		b->plane[i].dc = 0;
}

// mr_interval_next is the marker that ends the interval at p, NULL if it ends otherwise.
static const uint8_t *mr_interval_next(const uint8_t *p, const uint8_t *end)
{
	while (end - p >= 2 && (p = memchr(p, 0xFF, (size_t)(end - p - 1))) != NULL) {
		if (p[1] != 0)
			return p;
		p += 2;
	}
	return NULL;
}

#endif
