package flight

import (
	"encoding/binary"

	"github.com/millrace/millrace/internal/errkind"
)

// ackBytes is the size of an acknowledgement.
const ackBytes = 8

// parseAck reads how many batches a client has consumed.
func parseAck(raw []byte) (uint64, error) {
	if len(raw) != ackBytes {
		return 0, errkind.Errorf(errkind.Invalid, "an acknowledgement of %d bytes; it is one number of %d", len(raw), ackBytes)
	}
	return binary.LittleEndian.Uint64(raw), nil
}
