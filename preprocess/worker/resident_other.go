//go:build !linux

package worker

// residentBytes is not known on this system.
func residentBytes() int64 { return 0 }
