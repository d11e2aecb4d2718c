//go:build avif && cgo && !purego

package imagekernel

/*
#cgo pkg-config: libavif
#include "avif.h"
#include <stdlib.h>
*/
import "C"

import (
	"unsafe"

	"github.com/millrace/millrace/internal/errkind"
)

// ReadsAVIF says whether AVIF is among the formats that are read: builds with -tags avif, which need libavif.
const ReadsAVIF = true

// probeAVIF has libavif read all boxes but no pixels.
func probeAVIF(data []byte) (Header, error) {
	var info C.struct_mr_avif
	if !C.mr_avif_probe(&info, ptr(data), C.size_t(len(data))) {
		return Header{}, avifError(&info)
	}
	h := Header{Format: FormatAVIF, W: int(info.w), H: int(info.h), Components: int(info.components), Orientation: int(info.orientation), Ended: true}
	if exif, xmp := taken(info.exif), taken(info.xmp); h.Orientation == 0 {
		h.Orientation = orientationOf(exif, xmp)
	}
	return h, nil
}

// taken is b in Go's memory.
func taken(b C.struct_mr_avif_bytes) []byte {
	defer C.free(unsafe.Pointer(b.data))
	return C.GoBytes(unsafe.Pointer(b.data), C.int(b.size))
}

// decodeAVIF writes a file's image, or the first of a sequence, as 4-byte pixels.
func decodeAVIF(data, pix []byte, h Header) error {
	info := C.struct_mr_avif{w: C.uint32_t(h.W), h: C.uint32_t(h.H)}
	if !C.mr_avif_decode(&info, ptr(data), C.size_t(len(data)), ptr(pix[:4*h.W*h.H])) {
		return avifError(&info)
	}
	return nil
}

func avifError(info *C.struct_mr_avif) error {
	if info.truncated {
		return errkind.Errorf(errkind.BadData, "truncated AVIF")
	}
	return errkind.Errorf(errkind.BadData, "damaged AVIF: %s", C.GoString((*C.char)(unsafe.Pointer(&info.message))))
}
