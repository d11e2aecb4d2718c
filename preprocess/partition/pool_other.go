//go:build !unix

package partition

import "errors"

// mapMemory is not available on this system: buffers come from the Go heap.
func mapMemory(int) ([]byte, error) { return nil, errors.ErrUnsupported }

func unmapMemory([]byte) {}
