package partition

import (
	"encoding/binary"
	"math"

	"github.com/millrace/millrace/internal/errkind"
)

// SchemaSlice is what the first message of a stream, its schema, has in place of the index of a slice.
const SchemaSlice = math.MaxUint32

// AppMetadata goes with each message of a stream, as 8 bytes, little endian.
type AppMetadata struct {
	// Slice is the index of the slice in the ticket, or SchemaSlice.
	Slice uint32
	// CRC32C is the checksum of the message, see flightdata.Checksum.
	CRC32C uint32
}

// Append appends the encoded form to dst.
func (a AppMetadata) Append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, a.Slice)
	return binary.LittleEndian.AppendUint32(dst, a.CRC32C)
}

// ParseAppMetadata reads what [AppMetadata.Append] writes. Its error is of kind BadData.
func ParseAppMetadata(b []byte) (AppMetadata, error) {
	if len(b) != 8 {
		return AppMetadata{}, errkind.Errorf(errkind.BadData, "app_metadata of a message has %d bytes, not 8", len(b))
	}
	return AppMetadata{Slice: binary.LittleEndian.Uint32(b), CRC32C: binary.LittleEndian.Uint32(b[4:])}, nil
}
