package session

import (
	"encoding/binary"

	"github.com/millrace/millrace/internal/errkind"
)

// Of the header that goes with every batch, see docs/formats/session.md.
const (
	headerVersion = 1
	flagLast      = 1
	flagLastPart  = 2
	maxHeaderText = 1<<16 - 1
)

// AppendHeader appends the header of b, and the cursor after it.
func (b *Batch) AppendHeader(dst []byte) ([]byte, error) {
	if len(b.Cursor) > maxHeaderText {
		return nil, errkind.Errorf(errkind.Internal, "a cursor of %d bytes", len(b.Cursor))
	}
	var flags byte
	if b.Last {
		flags |= flagLast
	}
	if b.LastPart {
		flags |= flagLastPart
	}
	le := binary.LittleEndian
	dst = append(dst, headerVersion, flags)
	dst = le.AppendUint16(dst, uint16(len(b.Cursor))) //nolint:gosec // Checked above.
	dst = le.AppendUint32(dst, uint32(b.Part))        //nolint:gosec // Never negative.
	dst = le.AppendUint64(dst, b.Epoch)
	dst = le.AppendUint64(dst, uint64(b.Step))    //nolint:gosec // Never negative.
	dst = le.AppendUint64(dst, uint64(b.NextRow)) //nolint:gosec // Never negative.
	dst = le.AppendUint64(dst, b.Generation)
	dst = le.AppendUint32(dst, uint32(b.NumRows))  //nolint:gosec // Record batches are smaller.
	dst = le.AppendUint32(dst, uint32(b.NumValid)) //nolint:gosec // Record batches are smaller.
	dst = le.AppendUint64(dst, b.Sequence)
	return append(dst, b.Cursor...), nil
}
