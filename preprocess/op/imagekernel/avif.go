package imagekernel

import (
	"encoding/binary"
	"slices"
)

// isAVIF looks for AVIF's brands in the box that a file of this family begins with (ISO/IEC 14496-12, 4.3).
func isAVIF(data []byte) bool {
	if len(data) < 16 || string(data[4:8]) != "ftyp" {
		return false
	}
	size := int(binary.BigEndian.Uint32(data))
	if size < 16 || size > len(data) {
		size = 16
	}
	// The main brand, then its version, then those that the file is compatible with.
	for brand := range slices.Chunk(slices.Concat(data[8:12], data[16:size]), 4) {
		if b := string(brand); b == "avif" || b == "avis" {
			return true
		}
	}
	return false
}
