package isolate

import (
	"unsafe"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/op/imagekernel"
)

// What is where in the shared memory: the head, then the file, then what was made of it. Both ends are the same program, so
// the head holds Go's own structs; none of their pointers is ever set.

// request is what a process is asked for.
type request struct {
	// in and out are the sizes of the file and of what is made of it.
	in, out int64
	// fused asks for job, with table if tabled; else the file is decoded to form.
	fused, scalar, tabled bool
	form                  imagekernel.Form
	header                imagekernel.Header
	job                   imagekernel.Job
	table                 imagekernel.Table
}

// answer is what came of it.
type answer struct {
	kind errkind.Kind // Unknown: it went well
	size uint32
	text [maxText]byte
}

// maxText bounds the text of an error.
const maxText = 1 << 10

const (
	pageBytes   = 4 << 10
	answerAt    = (unsafe.Sizeof(request{}) + 63) / 64 * 64
	headBytes   = (int(answerAt+unsafe.Sizeof(answer{})) + pageBytes - 1) / pageBytes * pageBytes
	maxInBytes  = 64 << 20
	maxOutBytes = 640 << 20 // 50 million pixels of three float32, and more
	mapBytes    = headBytes + maxInBytes + maxOutBytes
)

// fits says whether a file and what is made of it have room.
func fits(in, out int) error {
	if in > maxInBytes || out > maxOutBytes {
		return errkind.Errorf(errkind.Exhausted, "image of %d encoded bytes that becomes %d; isolated decoders take %d and make %d at most", in, out, maxInBytes, maxOutBytes)
	}
	return nil
}

func requestIn(mem []byte) *request {
	return (*request)(unsafe.Pointer(&mem[0])) //nolint:gosec // Mapped memory, aligned to a page.
}

func answerIn(mem []byte) *answer {
	return (*answer)(unsafe.Pointer(&mem[answerAt])) //nolint:gosec // Mapped memory, aligned to 64 bytes.
}

// places are the file and what is made of it, which begins at a multiple of 64 bytes.
func places(mem []byte, in, out int64) (data, made []byte) {
	from := int64(headBytes)
	at := (from + in + 63) / 64 * 64
	return mem[from : from+in : from+in], mem[at : at+out : at+out]
}

// need is the size of the memory for that.
func need(in, out int) int64 { return int64(headBytes+in+63+out+pageBytes-1) / pageBytes * pageBytes }

func (a *answer) set(err error) {
	*a = answer{}
	if err == nil {
		return
	}
	a.kind = errkind.Of(err)
	if a.kind == errkind.Unknown {
		a.kind = errkind.BadData
	}
	a.size = uint32(copy(a.text[:], err.Error())) //nolint:gosec // At most maxText.
}

// err is the error of an answer, which may say anything.
func (a *answer) err() error {
	switch a.kind {
	case errkind.Unknown:
		return nil
	case errkind.Exhausted, errkind.Internal:
	default:
		a.kind = errkind.BadData
	}
	return errkind.Errorf(a.kind, "%s", printable(a.text[:min(a.size, maxText)]))
}

// printable is text of a process on one line.
func printable(text []byte) string {
	out := make([]rune, 0, len(text))
	for _, r := range string(text) {
		if r < ' ' || r == 0x7F {
			r = ' '
		}
		out = append(out, r)
	}
	return string(out)
}
