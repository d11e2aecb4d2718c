//go:build linux && (amd64 || arm64)

package isolate

import (
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/op/imagekernel"
)

// The files of a decoder process.
const (
	socketFD = 3
	memoryFD = 4
)

// exitUnlocked is how a process ends that could not be locked up.
const exitUnlocked = 3

// largePixels is the size of an image after which a process gives its memory back.
const largePixels = 2 << 20

// A Request is what a decoder process is to do.
type Request struct {
	// Data is the file, Out where what it makes of it goes.
	Data, Out []byte
	fused     *imagekernel.Job // nil: decode to form
	form      imagekernel.Form
	header    imagekernel.Header
	kernel    *imagekernel.Kernel
}

// Decode does what is asked for.
func Decode(r *Request) error {
	if r.fused != nil {
		return r.kernel.Run(r.fused)
	}
	pix, err := imagekernel.DecodeForm(r.form, r.Data, r.header, r.Out[:0])
	if err != nil {
		return err
	}
	if len(pix) != len(r.Out) {
		return errkind.Errorf(errkind.Internal, "a decoded %s has %d bytes instead of %d", r.header.Format, len(pix), len(r.Out))
	}
	if len(pix) > 0 && &pix[0] != &r.Out[0] {
		copy(r.Out, pix)
	}
	return nil
}

// Serve is a decoder process: it locks itself up, then does what it is asked for until the one who asks is gone. It returns
// the code to exit with.
func Serve(decode func(*Request) error) int {
	mem, err := unix.Mmap(memoryFD, 0, mapBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err == nil {
		err = unix.Close(memoryFD)
	}
	if err == nil {
		// The runtime's timers open files at first use, which is too late afterwards.
		time.AfterFunc(time.Nanosecond, func() {})
		err = lock()
	}
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return exitUnlocked
	}
	k := imagekernel.New(imagekernel.DefaultLimits())
	bell := []byte{0}
	for {
		if n, err := unix.Write(socketFD, bell); n != 1 || err != nil {
			return 0
		}
		for {
			n, err := unix.Read(socketFD, bell)
			if err == unix.EINTR {
				continue
			}
			if n != 1 || err != nil {
				return 0
			}
			break
		}
		pixels := respond(mem, k, decode)
		if pixels > largePixels {
			k.Close()
			k = imagekernel.New(imagekernel.DefaultLimits())
			debug.FreeOSMemory()
		}
	}
}

// respond does the request in mem and reports the size of its image.
func respond(mem []byte, k *imagekernel.Kernel, decode func(*Request) error) (pixels int) {
	q := requestIn(mem)
	r := Request{form: q.form, header: q.header, kernel: k}
	r.Data, r.Out = places(mem, q.in, q.out)
	if q.fused {
		job := q.job
		job.JPEG, job.Dst = r.Data, r.Out
		if q.tabled {
			job.Table = &q.table
		}
		r.fused, r.header = &job, job.Header
		k.Scalar(q.scalar)
	}
	answerIn(mem).set(decode(&r))
	return r.header.W * r.header.H
}
