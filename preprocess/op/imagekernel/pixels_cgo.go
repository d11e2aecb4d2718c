//go:build cgo && !purego

package imagekernel

/*
#cgo noescape mr_blend_flat
#cgo nocallback mr_blend_flat
#cgo noescape mr_blend
#cgo nocallback mr_blend
#cgo noescape mr_saturate
#cgo nocallback mr_saturate
#cgo noescape mr_hue
#cgo nocallback mr_hue
#cgo noescape mr_luma
#cgo nocallback mr_luma
#cgo noescape mr_luma_sum
#cgo nocallback mr_luma_sum
#cgo noescape mr_lookup
#cgo nocallback mr_lookup
#cgo noescape mr_histogram
#cgo nocallback mr_histogram
#cgo noescape mr_smooth
#cgo nocallback mr_smooth
#cgo noescape mr_blur
#cgo nocallback mr_blur
#cgo noescape mr_warp
#cgo nocallback mr_warp
#cgo noescape mr_mix
#cgo nocallback mr_mix
#cgo noescape mr_mixed
#cgo nocallback mr_mixed
#include "pixels.h"
*/
import "C"

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

func (e *engine) avx2() C.int32_t { return truth(cpu.X86.HasAVX2 && !e.scalar) }

func ptr(p []byte) *C.uint8_t { return (*C.uint8_t)(unsafe.SliceData(p)) }

func floats(p []float32) *C.float { return (*C.float)(unsafe.SliceData(p)) }

func (e *engine) blendFlat(p []byte, base uint8, factor float32) {
	C.mr_blend_flat(ptr(p), C.size_t(len(p)), C.int32_t(base), C.float(factor), e.avx2())
}

func (e *engine) blend(p, from []byte, factor float32) {
	C.mr_blend(ptr(p), ptr(from[:len(p)]), C.size_t(len(p)), C.float(factor), e.avx2())
}

func (e *engine) saturate(p []byte, factor float32) {
	C.mr_saturate(ptr(p), C.size_t(len(p)/3), C.float(factor), e.avx2())
}

func (e *engine) hue(p []byte, shift uint8) {
	C.mr_hue(ptr(p), C.size_t(len(p)/3), C.int32_t(shift), e.avx2())
}

func (e *engine) luma(out, p []byte) {
	C.mr_luma(ptr(out[:len(p)/3]), ptr(p), C.size_t(len(p)/3), e.avx2())
}

func (e *engine) lumaSum(p []byte) uint64 {
	return uint64(C.mr_luma_sum(ptr(p), C.size_t(len(p)/3), e.avx2()))
}

func (e *engine) lookup(p []byte, table *[256]uint8) {
	C.mr_lookup(ptr(p), C.size_t(len(p)), ptr(table[:]))
}

func (e *engine) histogram(p []byte, counts *[256]uint32) {
	C.mr_histogram(ptr(p), C.size_t(len(p)), (*C.uint32_t)(&counts[0]))
}

func (e *engine) smooth(out, p []byte, w, h int) {
	C.mr_smooth(ptr(out[:w*h]), ptr(p[:w*h]), C.int32_t(w), C.int32_t(h), e.avx2())
}

func (e *engine) blur(out, p []byte, w, h int, kx, ky, row []float32) {
	C.mr_blur(ptr(out[:w*h]), ptr(p[:w*h]), C.int32_t(w), C.int32_t(h), floats(kx), C.int32_t(len(kx)), floats(ky),
		C.int32_t(len(ky)), floats(row[:w+2*len(kx)+blurBlock]), e.avx2())
}

func (e *engine) mix(sums []float32, p []byte, weight float32, first bool) {
	C.mr_mix(floats(sums[:len(p)]), ptr(p), C.size_t(len(p)), C.float(weight), truth(first), e.avx2())
}

func (e *engine) mixed(p []byte, sums []float32) {
	C.mr_mixed(ptr(p), floats(sums[:len(p)]), C.size_t(len(p)), e.avx2())
}

func (e *engine) warp(out, in Planes, w *Warp) {
	n := out.C * out.W * out.H
	C.mr_warp(ptr(out.Pix[:n]), C.int32_t(out.W), C.int32_t(out.H), ptr(in.Pix[:out.C*in.W*in.H]), C.int32_t(in.W), C.int32_t(in.H),
		C.int32_t(out.C), (*C.double)(&w.M[0]), truth(w.Perspective), truth(w.Filter == Bicubic))
}
