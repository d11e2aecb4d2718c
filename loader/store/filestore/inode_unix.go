//go:build unix

package filestore

import (
	"os"
	"syscall"
)

// inode tells a file from another one that was renamed over it within the clock's resolution.
func inode(info os.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Ino
	}
	return 0
}
