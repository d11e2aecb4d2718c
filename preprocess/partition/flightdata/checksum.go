package flightdata

import "hash/crc32"

// Checksum is the CRC-32C of a message's header followed by its body, which may come in pieces. A receiver compares it
// before it lets Arrow read the header: a damaged one can ask for more memory than there is.
func Checksum(header []byte, body ...[]byte) uint32 {
	sum := update(0, header)
	for _, b := range body {
		sum = update(sum, b)
	}
	return sum
}

func update(sum uint32, b []byte) uint32 {
	return crc32.Update(sum, crc32.MakeTable(crc32.Castagnoli), b)
}
