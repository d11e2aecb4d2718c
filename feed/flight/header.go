package flight

import (
	"encoding/binary"

	"github.com/millrace/millrace/feed/session"
	"github.com/millrace/millrace/internal/errkind"
)

// ackBytes is the size of an acknowledgement.
const ackBytes = 8

// Of the header that goes with the rows of a batch, see docs/formats/flight.md. Up to checksumAt it is that of a batch.
const (
	batchHeaderBytes = 56
	pieceVersion     = 2
	flagMore         = 4
	checksumAt       = batchHeaderBytes
	firstRowAt       = batchHeaderBytes + 4
	pieceBytes       = batchHeaderBytes + 8
)

// pieceHeader is the header of the rows of b from first on; more says that others of b follow. The checksum is set by
// setChecksum.
func pieceHeader(b *session.Batch, first int64, more bool) ([]byte, error) {
	some := *b
	if more {
		some.Cursor = "" // it goes on after the batch, so it comes with its last rows
	}
	whole, err := some.AppendHeader(nil)
	if err != nil {
		return nil, err
	}
	header := make([]byte, pieceBytes, pieceBytes+len(some.Cursor))
	copy(header, whole[:batchHeaderBytes])
	header[0] = pieceVersion
	if more {
		header[1] |= flagMore
	}
	binary.LittleEndian.PutUint32(header[firstRowAt:], uint32(first)) //nolint:gosec // A batch has fewer rows.
	return append(header, some.Cursor...), nil
}

// setChecksum puts a checksum into the header of a piece.
func setChecksum(header []byte, sum uint32) []byte {
	binary.LittleEndian.PutUint32(header[checksumAt:], sum)
	return header
}

// parseAck reads how many batches a client has consumed.
func parseAck(raw []byte) (uint64, error) {
	if len(raw) != ackBytes {
		return 0, errkind.Errorf(errkind.Invalid, "an acknowledgement of %d bytes; it is one number of %d", len(raw), ackBytes)
	}
	return binary.LittleEndian.Uint64(raw), nil
}
