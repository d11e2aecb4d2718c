package ring

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/errkind"
)

// newMemory makes size bytes of shared memory, all of them present, mapped here for writing. Nobody can change its size;
// where readOnly is set, nobody who maps it from now on can write to it.
func newMemory(size int, readOnly bool) (file *os.File, mem []byte, err error) {
	fd, err := memfd()
	if err != nil {
		return nil, nil, errkind.With(errkind.Unavailable, fmt.Errorf("creating shared memory (memfd): %w", err))
	}
	file = os.NewFile(uintptr(fd), "memfd:millrace-ring")
	defer func() {
		if err != nil {
			err = errkind.With(errkind.Exhausted, fmt.Errorf("providing %d bytes of shared memory: %w", size, err))
			_ = file.Close()
		}
	}()
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return nil, nil, err
	}
	// Without this a page that is not to be had would be a SIGBUS when it is first written to.
	if err := unix.Fallocate(fd, 0, 0, int64(size)); err != nil {
		return nil, nil, err
	}
	mem, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, nil, err
	}
	seals := unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	if readOnly {
		seals |= unix.F_SEAL_FUTURE_WRITE
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals|unix.F_SEAL_SEAL); err != nil {
		_ = unix.Munmap(mem)
		return nil, nil, err
	}
	return file, mem, nil
}

func memfd() (int, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate("millrace-ring", flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("millrace-ring", flags)
	}
	return fd, err
}

// unmap returns what newMemory gave. It can only fail for a range that was never mapped.
func unmap(mem []byte) {
	if err := unix.Munmap(mem); err != nil {
		panic("ring: unmapping an arena: " + err.Error())
	}
}
