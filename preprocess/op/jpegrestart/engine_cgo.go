//go:build cgo && !purego

package jpegrestart

/*
#cgo CFLAGS: -std=c11 -O2 -Wall -Wextra
#cgo LDFLAGS: -ljpeg
#include <stdlib.h>
#include "transcode.h"
*/
import "C"

import (
	"unsafe"
)

// transcoder keeps the file in memory of C, since libjpeg holds on to it between calls.
type transcoder struct {
	t    *C.struct_mr_transcoder
	data unsafe.Pointer
}

func open(data []byte, maxScans int) (source, error) {
	var message [200]C.char
	copied := C.CBytes(data)
	t := C.mr_transcoder_open((*C.uint8_t)(copied), C.size_t(len(data)), C.int(maxScans), &message[0])
	if t == nil {
		C.free(copied)
		return nil, refused(C.GoString(&message[0]))
	}
	return &transcoder{t: t, data: copied}, nil
}

func (c *transcoder) size() (rowMCUs, rows, after int) {
	var w, h C.int
	var n C.size_t
	C.mr_transcoder_size(c.t, &w, &h, &n)
	return int(w), int(h), int(n)
}

func (c *transcoder) write(interval int) ([]byte, error) {
	var message [200]C.char
	var out *C.uint8_t
	var n C.size_t
	if C.mr_transcoder_write(c.t, C.int(interval), &out, &n, &message[0]) != C.MR_TRANSCODED {
		return nil, refused(C.GoString(&message[0]))
	}
	return unsafe.Slice((*byte)(out), int(n)), nil
}

func (c *transcoder) close() {
	C.mr_transcoder_close(c.t)
	C.free(c.data)
}
