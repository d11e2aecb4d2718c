// Pixel loops that the compiler makes vectors of. Included twice, with NAME adding a suffix: once for any CPU, once for
// AVX2.

static void NAME(smooth_row)(uint8_t *restrict out, const uint8_t *restrict a, const uint8_t *restrict b,
                             const uint8_t *restrict c, int w)
{
	out[0] = b[0];
	for (int x = 1; x < w - 1; x++) {
		uint16_t sum = (uint16_t)(a[x - 1] + a[x] + a[x + 1] + b[x - 1] + 5 * b[x] + b[x + 1] + c[x - 1] + c[x] + c[x + 1]);
		// Divided by 13 and rounded: a thirteenth has no half. 5042 is 65,536 / 13, rounded up.
		out[x] = (uint8_t)((uint32_t)(uint16_t)(sum + 6) * 5042u >> 16);
	}
	out[w - 1] = b[w - 1];
}

static void NAME(blur_column)(float *restrict out, const uint8_t *restrict a, const uint8_t *restrict b, int w, float weight)
{
	for (int x = 0; x < w; x++)
		out[x] = out[x] + weight * (float)((int)a[x] + (int)b[x]);
}

static void NAME(blur_first)(float *restrict out, const uint8_t *restrict a, int w, float weight)
{
	for (int x = 0; x < w; x++)
		out[x] = weight * (float)a[x];
}

// Adding 2^23 leaves no fraction bits, so it rounds to the nearest integer, ties to even.
static void NAME(blur_row)(uint8_t *restrict out, const float *restrict in, int w, const float *restrict k, int n)
{
	for (int at = 0; at < w; at += BLUR_BLOCK) {
		float sums[BLUR_BLOCK];
		const float *p = in + at;
		for (int x = 0; x < BLUR_BLOCK; x++)
			sums[x] = k[0] * p[x];
		for (int j = 1; j < n; j++)
			for (int x = 0; x < BLUR_BLOCK; x++)
				sums[x] = sums[x] + k[j] * (p[x - j] + p[x + j]);
		int m = w - at < BLUR_BLOCK ? w - at : BLUR_BLOCK;
		for (int x = 0; x < m; x++) {
			float v = sums[x] + 8388608.0f;
			int rounded = (int)v - 8388608;
			out[at + x] = (uint8_t)(rounded > 255 ? 255 : rounded);
		}
	}
}

static void NAME(mix)(float *restrict sums, const uint8_t *restrict p, size_t n, float weight, int first)
{
	if (first) {
		for (size_t i = 0; i < n; i++)
			sums[i] = weight * (float)p[i];
		return;
	}
	for (size_t i = 0; i < n; i++)
		sums[i] = sums[i] + weight * (float)p[i];
}

static void NAME(mixed)(uint8_t *restrict out, const float *restrict sums, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		float v = sums[i];
		v = v > 255.0f ? 255.0f : v;
		out[i] = (uint8_t)(int)v;
	}
}
