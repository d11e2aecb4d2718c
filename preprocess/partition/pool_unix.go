//go:build unix

package partition

import "golang.org/x/sys/unix"

func mapMemory(size int) ([]byte, error) {
	return unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
}

// unmapMemory returns what mapMemory gave. It can only fail for a range that was never mapped.
func unmapMemory(mem []byte) {
	if err := unix.Munmap(mem); err != nil {
		panic("partition: unmapping a buffer: " + err.Error())
	}
}
