//go:build !linux

package ring

import (
	"os"

	"github.com/millrace/millrace/internal/errkind"
)

func newMemory(int, bool) (*os.File, []byte, error) {
	return nil, nil, errkind.Errorf(errkind.Unavailable, "shared memory for batches needs Linux (memfd)")
}

func unmap([]byte) {}
