// The loop over MCUs. Included twice, with NAME adding a suffix: once for any CPU, once for those with AVX2 and BMI2.

// take stores the coefficient that the next code stands for, if coefs is not NULL, and gives the place after it.
static inline __attribute__((always_inline)) unsigned NAME(take)(struct mr_bits *b, uint32_t look, int16_t *coefs, unsigned k)
{
	k += look >> 24;
	if (coefs != NULL && k < 64)
		coefs[mr_places[k]] = (int16_t)mr_value(b, look);
	mr_consume(b, look);
	return k + 1;
}

// block reads one block into coefs, or passes over it if that is NULL. It returns 0 for what no encoder writes.
static inline __attribute__((always_inline)) int NAME(block)(struct mr_bits *b, struct mr_plane *plane, int16_t *coefs)
{
	const struct mr_codes *dc = plane->dc_codes, *ac = plane->ac_codes;
	mr_refill(b);
	uint32_t look = dc->look[b->window >> (64 - MR_LOOK)];
	if (__builtin_expect(look == 0, 0) && (look = mr_code_long(dc, b->window, 1)) == 0)
		return 0;
	plane->dc += (uint32_t)mr_value(b, look);
	mr_consume(b, look);
	if (coefs != NULL)
		coefs[0] = (int16_t)plane->dc;
	unsigned k = 1;
	while (k < 64) {
		mr_refill(b);
		look = ac->look[b->window >> (64 - MR_LOOK)];
		if (__builtin_expect(look == 0, 0)) {
			if ((look = mr_code_long(ac, b->window, 0)) == 0)
				return 0;
			k = NAME(take)(b, look, coefs, k);
			continue;
		}
		k = NAME(take)(b, look, coefs, k);
		// After a short code there is enough left for another.
		look = ac->look[b->window >> (64 - MR_LOOK)];
		if (look != 0 && k < 64)
			k = NAME(take)(b, look, coefs, k);
	}
	return k == 64 || k > MR_END_RUN;
}

// keep decodes an MCU to samples, column MCUs from the left of the planes.
static inline __attribute__((always_inline)) int NAME(keep)(struct mr_baseline *b, struct mr_bits *bits, int column)
{
	uint8_t *to[2];
	size_t stride[2];
	for (int i = 0; i < b->blocks; i++) {
		struct mr_plane *p = &b->plane[b->block[i].plane];
		if (!NAME(block)(bits, p, b->coefs + 8 * (i & 1)))
			return 0;
		size_t row = (size_t)((b->row & 1) * p->size * p->v) + b->block[i].y;
		to[i & 1] = p->samples + row * p->stride + (size_t)(column * p->size * p->h) + b->block[i].x;
		stride[i & 1] = p->stride;
		if ((i & 1) == 0 && i + 1 < b->blocks)
			continue;
		if ((i & 1) == 0)
			to[1] = b->spare, stride[1] = 8;
		const int16_t *quant = b->quant + (size_t)(i >> 1) * 128;
		if (p->size == 8)
			NAME(idct)(b->coefs, quant, to, stride);
		else
			NAME(small)(b->coefs, quant, to, stride, p->size);
		memset(b->coefs, 0, sizeof b->coefs);
	}
	return 1;
}

// decode_row decodes the MCUs of the next row that are kept. It returns 0 if libjpeg-turbo should see to this file.
static int NAME(decode_row)(struct mr_baseline *b)
{
	int first = b->row * b->width_mcus + b->left, last = first + b->right - b->left;
	if (first / b->interval * b->interval > b->mcu)
		b->mcu = b->interval_end = first / b->interval * b->interval;
	struct mr_bits bits = b->bits;
	for (; b->mcu <= last; b->mcu++) {
		if (b->mcu == b->interval_end) {
			mr_interval_begin(b);
			bits = b->bits;
		}
		if (b->chunk_end - bits.at < MR_MCU_BYTES && !b->ended) {
			b->bits = bits;
			mr_chunk_fill(b);
			bits = b->bits;
		}
		if (b->mcu >= first) {
			if (!NAME(keep)(b, &bits, b->mcu - first))
				return 0;
		} else {
			for (int i = 0; i < b->blocks; i++)
				if (!NAME(block)(&bits, &b->plane[b->block[i].plane], NULL))
					return 0;
		}
		if (bits.at - (bits.count >> 3) > b->chunk_end)
			return 0;
	}
	b->bits = bits;
	b->row++;
	return 1;
}
