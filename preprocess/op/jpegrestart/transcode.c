//go:build cgo && !purego

#include "transcode.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>

// What the error handlers of both sides need.
struct mr_guard {
	struct jpeg_error_mgr errors;
	jmp_buf fail;
	char *message;
};

struct mr_transcoder {
	struct mr_guard guard;
	struct jpeg_decompress_struct in;
	struct jpeg_progress_mgr progress;
	jvirt_barray_ptr *coefs;
	int max_scans;
	unsigned char *out;
	unsigned long out_len;
	int row_mcus, rows;
};

static _Noreturn void mr_refuse(j_common_ptr common)
{
	struct mr_guard *g = (struct mr_guard *)common->err;
	char text[JMSG_LENGTH_MAX];
	common->err->format_message(common, text);
	snprintf(g->message, 200, "%s", text);
	longjmp(g->fail, 1);
}

// mr_doubt refuses files that warnings are about: what libjpeg makes up for them is not in the file.
static void mr_doubt(j_common_ptr common, int level)
{
	if (level < 0)
		mr_refuse(common);
}

static void mr_count_scans(j_common_ptr common)
{
	struct mr_transcoder *t = (struct mr_transcoder *)((char *)common - offsetof(struct mr_transcoder, in));
	if (t->in.input_scan_number > t->max_scans) {
		snprintf(t->guard.message, 200, "more than %d scans", t->max_scans);
		longjmp(t->guard.fail, 1);
	}
}

// mr_read is apart from mr_transcoder_open so that no variable changes between setjmp and longjmp.
static __attribute__((noinline)) int mr_read(struct mr_transcoder *t, const uint8_t *src, size_t len)
{
	if (setjmp(t->guard.fail) != 0)
		return MR_REFUSED;
	jpeg_create_decompress(&t->in);
	t->progress.progress_monitor = mr_count_scans;
	t->in.progress = &t->progress;
	jpeg_mem_src(&t->in, src, len);
	jpeg_save_markers(&t->in, JPEG_COM, 0xFFFF);
	for (int i = 0; i < 16; i++)
		jpeg_save_markers(&t->in, JPEG_APP0 + i, 0xFFFF);
	jpeg_read_header(&t->in, TRUE);
	t->coefs = jpeg_read_coefficients(&t->in);
	// Decoders smooth the blocks of a progressive file that lacks scans; in a baseline file they would not.
	for (int i = 0; t->in.coef_bits != NULL && i < t->in.num_components * DCTSIZE2; i++)
		if (t->in.coef_bits[i / DCTSIZE2][i % DCTSIZE2] != 0) {
			snprintf(t->guard.message, 200, "a progressive file without its last scans");
			return MR_REFUSED;
		}
	int h = t->in.max_h_samp_factor * DCTSIZE, v = t->in.max_v_samp_factor * DCTSIZE;
	if (t->in.num_components == 1)
		h = v = DCTSIZE;  // A scan of one component has one block to an MCU, whatever its factors.
	t->row_mcus = ((int)t->in.image_width + h - 1) / h;
	t->rows = ((int)t->in.image_height + v - 1) / v;
	return MR_TRANSCODED;
}

struct mr_transcoder *mr_transcoder_open(const uint8_t *src, size_t len, int max_scans, char message[200])
{
	struct mr_transcoder *t = calloc(1, sizeof *t);
	if (t == NULL) {
		snprintf(message, 200, "no memory");
		return NULL;
	}
	t->max_scans = max_scans;
	t->guard.message = message;
	t->in.err = jpeg_std_error(&t->guard.errors);
	t->guard.errors.error_exit = mr_refuse;
	t->guard.errors.emit_message = mr_doubt;
	if (mr_read(t, src, len) == MR_TRANSCODED)
		return t;
	mr_transcoder_close(t);
	return NULL;
}

void mr_transcoder_size(const struct mr_transcoder *t, int *row_mcus, int *rows, size_t *after)
{
	*after = t->in.src->bytes_in_buffer;
	*row_mcus = t->row_mcus;
	*rows = t->rows;
}

// mr_own says whether libjpeg writes this marker itself.
static int mr_own(const struct jpeg_compress_struct *out, const struct jpeg_marker_struct *m)
{
	return (out->write_JFIF_header && m->marker == JPEG_APP0 && m->data_length >= 5 && memcmp(m->data, "JFIF", 5) == 0) ||
	       (out->write_Adobe_marker && m->marker == JPEG_APP0 + 14 && m->data_length >= 5 && memcmp(m->data, "Adobe", 5) == 0);
}

static __attribute__((noinline)) int mr_write(struct mr_transcoder *t, struct jpeg_compress_struct *out, int interval)
{
	if (setjmp(t->guard.fail) != 0)
		return MR_REFUSED;
	jpeg_create_compress(out);
	jpeg_mem_dest(out, &t->out, &t->out_len);
	jpeg_copy_critical_parameters(&t->in, out);
	out->optimize_coding = TRUE;
	out->restart_interval = (unsigned)interval;
	jpeg_write_coefficients(out, t->coefs);
	for (const struct jpeg_marker_struct *m = t->in.marker_list; m != NULL; m = m->next)
		if (!mr_own(out, m))
			jpeg_write_marker(out, m->marker, m->data, m->data_length);
	jpeg_finish_compress(out);
	return MR_TRANSCODED;
}

int mr_transcoder_write(struct mr_transcoder *t, int interval, const uint8_t **out, size_t *len, char message[200])
{
	struct jpeg_compress_struct writer;
	memset(&writer, 0, sizeof writer);
	writer.err = &t->guard.errors;
	t->guard.message = message;
	free(t->out);
	t->out = NULL;
	t->out_len = 0;
	int status = mr_write(t, &writer, interval);
	jpeg_destroy_compress(&writer);
	*out = t->out;
	*len = t->out_len;
	return status;
}

void mr_transcoder_close(struct mr_transcoder *t)
{
	jpeg_destroy_decompress(&t->in);
	free(t->out);
	free(t);
}
