// Re-emits a JPEG from its coefficients, with restart markers.
#ifndef MILLRACE_JPEG_TRANSCODE_H
#define MILLRACE_JPEG_TRANSCODE_H

#include <stddef.h>
#include <stdint.h>

enum { MR_TRANSCODED = 0, MR_REFUSED = 1 };

struct mr_transcoder;

// mr_transcoder_open reads all coefficients of a JPEG. It returns NULL, with a message, if that is not possible without
// a doubt. The file must stay where it is until mr_transcoder_close.
struct mr_transcoder *mr_transcoder_open(const uint8_t *src, size_t len, int max_scans, char message[200]);

// mr_transcoder_size gives the MCUs of a row, the rows of MCUs and the bytes that come after the end marker.
void mr_transcoder_size(const struct mr_transcoder *t, int *row_mcus, int *rows, size_t *after);

// mr_transcoder_write emits the file, with a marker after every interval MCUs, or none if that is 0. out stays valid until the
// next write or mr_transcoder_close.
int mr_transcoder_write(struct mr_transcoder *t, int interval, const uint8_t **out, size_t *len, char message[200]);

void mr_transcoder_close(struct mr_transcoder *t);

#endif
