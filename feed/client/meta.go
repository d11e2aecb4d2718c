package client

import (
	"encoding/binary"

	"github.com/millrace/millrace/internal/errkind"
)

// metaBytes is the size of the fixed header of a batch's app_metadata.
const metaBytes = 56

// Meta is what goes with a batch besides its columns.
type Meta struct {
	// Last marks the last batch of the epoch, LastPart the last part of a global batch.
	Last, LastPart bool
	// Part of the global batch, from 0.
	Part uint32
	// Epoch, Step and NextRow say where the batch is; NextRow is the row of the next global batch.
	Epoch, Step, NextRow uint64
	Generation           uint64
	// Rows of the batch; ValidRows do not count padding.
	Rows, ValidRows uint32
	// Sequence number in its stream.
	Sequence uint64
	// Cursor continues after this batch; empty unless LastPart.
	Cursor string
}

// Next is the position of the global batch that follows.
func (m Meta) Next() Position {
	if m.Last {
		return Position{Epoch: m.Epoch + 1}
	}
	return Position{Epoch: m.Epoch, Step: m.Step + 1, Row: m.NextRow}
}

// ParseMeta reads app_metadata. Errors have kind BadData.
func ParseMeta(b []byte) (Meta, error) {
	if len(b) < metaBytes {
		return Meta{}, errkind.Errorf(errkind.BadData, "a batch came with %d bytes of metadata; %d are expected", len(b), metaBytes)
	}
	if b[0] != 1 {
		return Meta{}, errkind.Errorf(errkind.BadData, "a batch came with metadata of version %d; this client reads 1", b[0])
	}
	u32, u64 := binary.LittleEndian.Uint32, binary.LittleEndian.Uint64
	cursor := int(binary.LittleEndian.Uint16(b[2:]))
	if len(b) != metaBytes+cursor {
		return Meta{}, errkind.Errorf(errkind.BadData, "a batch's metadata has %d bytes, its header says %d", len(b), metaBytes+cursor)
	}
	return Meta{
		Last: b[1]&1 != 0, LastPart: b[1]&2 != 0, Part: u32(b[4:]), Epoch: u64(b[8:]), Step: u64(b[16:]), NextRow: u64(b[24:]),
		Generation: u64(b[32:]), Rows: u32(b[40:]), ValidRows: u32(b[44:]), Sequence: u64(b[48:]), Cursor: string(b[metaBytes:]),
	}, nil
}
