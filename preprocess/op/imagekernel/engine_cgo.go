//go:build cgo && !purego

package imagekernel

/*
#cgo CFLAGS: -std=c11 -O3 -Wall -Wextra
#cgo LDFLAGS: -ljpeg
#cgo noescape mr_run
#cgo nocallback mr_run
#cgo noescape mr_free
#cgo nocallback mr_free
#include "kernel.h"
*/
import "C"

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/cpu"

	"github.com/millrace/millrace/internal/errkind"
)

// Exact says whether JPEG pixels are libjpeg-turbo's.
const Exact = true

// engine runs jobs in C.
type engine struct {
	scalar  bool
	plain   bool // libjpeg-turbo decodes every JPEG, for tests
	memory  *memory
	cleanup runtime.Cleanup
}

// memory is what a cleanup must reach without reaching the Kernel.
type memory struct {
	job     C.struct_mr_job
	scratch C.struct_mr_scratch
}

// keptScratch is how much scratch memory outlives a job; one huge image must not hold its memory for good.
const keptScratch = 32 << 20

func (e *engine) open() {
	e.memory = &memory{}
	e.cleanup = runtime.AddCleanup(e, func(m *memory) { m.free() }, e.memory)
}

func (e *engine) close() {
	e.cleanup.Stop()
	e.memory.free()
}

func (m *memory) free() { C.mr_free(&m.scratch) }

func (e *engine) run(k *Kernel, job *Job, visible Rect) error {
	x, y := &k.xTaps, &k.yTaps
	xFrom, xTo := x.rebase()
	yFrom, yTo := y.rebase()
	j := &e.memory.job
	j.width, j.height, j.channels = C.int32_t(job.W), C.int32_t(job.H), C.int32_t(job.C)
	src := job.Pix
	if job.JPEG != nil {
		j.width, j.height, j.channels = C.int32_t(job.Header.W), C.int32_t(job.Header.H), 0
		src = job.JPEG
	}
	j.scale = 1
	if job.scaled() {
		j.scale = C.int32_t(job.Scale)
	}
	j.planes, j.ink = truth(job.PlanarPix), truth(job.Ink)
	j.orientation, j.gray, j.ended = C.int32_t(job.orientation()), truth(job.Gray), truth(job.Header.Ended)
	j.crop_x, j.crop_y, j.crop_w, j.crop_h = C.int32_t(k.crop.X), C.int32_t(k.crop.Y), C.int32_t(k.crop.W), C.int32_t(k.crop.H)
	j.vis_w, j.vis_h = C.int32_t(visible.W), C.int32_t(visible.H)
	j.x_stride, j.y_stride, j.x_identity, j.y_identity = C.int32_t(x.stride), C.int32_t(y.stride), truth(x.identity), truth(y.identity)
	j.x_from, j.x_to, j.y_from, j.y_to = C.int32_t(xFrom), C.int32_t(xTo), C.int32_t(yFrom), C.int32_t(yTo)
	j.vertical_first = truth(k.verticalFirst(job))
	j.out_w, j.out_h = C.int32_t(job.Window.W), C.int32_t(job.Window.H)
	j.vis_x, j.vis_y = C.int32_t(visible.X-job.Window.X), C.int32_t(visible.Y-job.Window.Y)
	j.flip, j.flop = truth(job.Flip), truth(job.Flop)
	j.out_channels, j.planar, j.element = C.int32_t(job.Channels), truth(job.Planar), C.int32_t(job.Element)
	for c, v := range job.Fill {
		j.fill[c] = C.uint8_t(v)
	}
	j.avx2, j.plain = truth(cpu.X86.HasAVX2 && cpu.X86.HasBMI2 && !e.scalar), truth(e.plain)
	j.max_scans, j.max_multiscan_pixels = C.int32_t(k.limits.Scans), C.int64_t(k.limits.ProgressivePixels)

	var table *C.uint32_t
	if job.Table != nil {
		table = (*C.uint32_t)(&job.Table[0][0])
	}
	status := C.mr_run(j, &e.memory.scratch, (*C.uint8_t)(unsafe.SliceData(src)), C.size_t(len(src)),
		first(x.bounds), first(x.weights), first(y.bounds), first(y.weights), table, (*C.uint8_t)(unsafe.SliceData(job.Dst)))
	if e.memory.scratch.size > keptScratch {
		e.memory.free()
	}
	if status == C.MR_OK {
		return nil
	}
	return failure(j, status)
}

func first(s []int32) *C.int32_t { return (*C.int32_t)(unsafe.SliceData(s)) }

func truth(b bool) C.int32_t {
	if b {
		return 1
	}
	return 0
}

// failure is the error for a status other than MR_OK.
func failure(j *C.struct_mr_job, status C.int) error {
	text := C.GoString(&j.message[0])
	switch status {
	case C.MR_TRUNCATED:
		return errkind.Errorf(errkind.BadData, "truncated JPEG, %d %% of rows read", int(j.percent))
	case C.MR_LIMIT:
		return errkind.Errorf(errkind.Exhausted, "%s", text)
	case C.MR_NO_MEMORY:
		return errkind.Errorf(errkind.Exhausted, "image kernel: %s", text)
	}
	return errkind.Errorf(errkind.BadData, "damaged JPEG: %s", text)
}
