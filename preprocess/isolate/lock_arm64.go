//go:build linux

package isolate

import "golang.org/x/sys/unix"

const architecture = unix.AUDIT_ARCH_AARCH64

// ofArchitecture are calls that only this architecture has.
var ofArchitecture []uint32
