//go:build linux

package isolate

import "golang.org/x/sys/unix"

const architecture = unix.AUDIT_ARCH_X86_64

// ofArchitecture are calls that only this architecture has.
var ofArchitecture = []uint32{unix.SYS_EPOLL_WAIT, unix.SYS_ARCH_PRCTL} //nolint:gochecknoglobals // Never changed.
