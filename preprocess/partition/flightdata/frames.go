package flightdata

import (
	"sync"

	"google.golang.org/grpc/mem"
)

// frameBytes is the size of the largest HTTP/2 frame that gRPC sends.
const frameBytes = 16 << 10

// frames hands out buffers for frames that come in. Unlike gRPC's own pool it does not clear them first: they are read
// into at once.
type frames struct{ free sync.Pool }

var _ mem.BufferPool = (*frames)(nil)

// Get returns n bytes of any content.
func (f *frames) Get(n int) *[]byte {
	if n > frameBytes {
		b := make([]byte, n)
		return &b
	}
	if b, ok := f.free.Get().(*[]byte); ok {
		*b = (*b)[:n]
		return b
	}
	b := make([]byte, n, frameBytes)
	return &b
}

// Put takes a buffer back.
func (f *frames) Put(b *[]byte) {
	if cap(*b) == frameBytes {
		f.free.Put(b)
	}
}
