package ring

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/millrace/millrace/internal/errkind"
)

// Of the header of an image, see docs/formats/ring.md.
const (
	imageMagic   = 0x4c53524d // "MRSL"
	imageVersion = 1
	headerBytes  = 64
	crcAt        = 60
	// metaRoom is the room for what goes with a batch besides its columns: the header of the session protocol and a cursor.
	metaRoom  = 2048
	pairBytes = 16
)

// Format is how the batches of a schema lie in memory. It is immutable.
type Format struct {
	pairs int // nodes and buffers of all columns
}

// NewFormat makes the format of batches of a schema.
func NewFormat(schema *arrow.Schema) *Format {
	f := &Format{}
	for _, field := range schema.Fields() {
		f.pairs += pairsOf(field.Type)
	}
	return f
}

func pairsOf(t arrow.DataType) int {
	switch t := t.(type) {
	case arrow.ExtensionType:
		return pairsOf(t.StorageType())
	case *arrow.StructType:
		n := 2
		for _, f := range t.Fields() {
			n += pairsOf(f.Type)
		}
		return n
	case *arrow.FixedSizeListType:
		return 2 + pairsOf(t.Elem())
	case *arrow.ListType:
		return 3 + pairsOf(t.Elem())
	case *arrow.LargeListType:
		return 3 + pairsOf(t.Elem())
	case *arrow.StringType, *arrow.BinaryType, *arrow.LargeStringType, *arrow.LargeBinaryType:
		return 4
	default:
		return 3
	}
}

// HeadBytes is the room that header, meta data and table take at the beginning of a slot: a whole number of pages.
func (f *Format) HeadBytes() int {
	n := headerBytes + metaRoom + f.pairs*pairBytes
	return (n + pageBytes - 1) / pageBytes * pageBytes
}

// Ident says which batch an image is of.
type Ident struct {
	Arena, Generation, Sequence uint64
}

// placer gives the place of a buffer in an image.
type placer func(b []byte) (offset int, ok bool)

// appendTable appends a node and its buffers for each column and, before the next column, its children.
func appendTable(dst []byte, data arrow.ArrayData, place placer) ([]byte, error) {
	if data.Offset() != 0 {
		return nil, errkind.Errorf(errkind.Internal, "a batch has a column that begins in the middle of its buffers")
	}
	le := binary.LittleEndian
	dst = le.AppendUint64(dst, uint64(data.Len()))   //nolint:gosec // Never negative.
	dst = le.AppendUint64(dst, uint64(data.NullN())) //nolint:gosec // Known for batches that were put together.
	for _, b := range data.Buffers() {
		var offset, size int
		if b != nil && b.Len() > 0 {
			var ok bool
			if offset, ok = place(b.Bytes()); !ok {
				return nil, errkind.Errorf(errkind.Exhausted, "a batch does not lie in its slot")
			}
			size = b.Len()
		}
		dst = le.AppendUint64(dst, uint64(offset))
		dst = le.AppendUint64(dst, uint64(size))
	}
	for _, c := range data.Children() {
		var err error
		if dst, err = appendTable(dst, c, place); err != nil {
			return nil, err
		}
	}
	return dst, nil
}

// head makes what an image of total bytes begins with: header, meta and table.
func (f *Format) head(id Ident, meta []byte, rec arrow.RecordBatch, total int, place placer) ([]byte, error) {
	padded := (len(meta) + 7) / 8 * 8
	if padded > metaRoom {
		return nil, errkind.Errorf(errkind.Exhausted, "the state after a batch takes %d bytes; %d have room", len(meta), metaRoom)
	}
	head := make([]byte, headerBytes+padded, headerBytes+padded+f.pairs*pairBytes)
	copy(head[headerBytes:], meta)
	var err error
	for _, c := range rec.Columns() {
		if head, err = appendTable(head, c.Data(), place); err != nil {
			return nil, err
		}
	}
	table := len(head) - headerBytes - padded
	if table != f.pairs*pairBytes {
		return nil, errkind.Errorf(errkind.Internal, "the table of a batch has %d bytes, not %d", table, f.pairs*pairBytes)
	}
	le := binary.LittleEndian
	le.PutUint32(head[0:], imageMagic)
	le.PutUint16(head[4:], imageVersion)
	le.PutUint64(head[8:], id.Arena)
	le.PutUint64(head[16:], id.Generation)
	le.PutUint64(head[24:], id.Sequence)
	le.PutUint32(head[32:], uint32(len(meta))) //nolint:gosec // Bounded above.
	le.PutUint32(head[36:], uint32(table))     //nolint:gosec // Bounded by the schema.
	le.PutUint64(head[40:], uint64(total))     //nolint:gosec // Never negative.
	sum := crc32.ChecksumIEEE(head[:crcAt])
	le.PutUint32(head[crcAt:], crc32.Update(sum, crc32.IEEETable, head[headerBytes:]))
	return head, nil
}

// Write completes the image of a batch that was put together in s, all of it: what precedes its columns. It gives the
// bytes of the image and of its head. A batch that does not lie in s, or whose meta data is too large, is an error of
// kind Exhausted. What is shared was written for all who get it by whoever came first, who must have the same to write.
func (s *Slot) Write(f *Format, sequence uint64, meta []byte, rec arrow.RecordBatch) (total, head int, err error) {
	if s.arena.Shared() {
		s.writing.Lock()
		defer s.writing.Unlock()
		if s.head > 0 {
			return s.used, s.head, nil
		}
		defer func() { s.head = head }()
	}
	id := Ident{Arena: s.arena.id, Generation: s.generation, Sequence: sequence}
	b, err := f.head(id, meta, rec, s.used, s.offset)
	if err != nil {
		return 0, 0, err
	}
	return s.used, copy(s.mem, b), nil
}

// Checksum is the CRC-32C of what follows the room of the head in s.
func (s *Slot) Checksum(f *Format) uint32 {
	return crc32.Checksum(s.mem[f.HeadBytes():s.used], crc32.MakeTable(crc32.Castagnoli))
}

// Holds says whether all buffers of a batch lie in s.
func (s *Slot) Holds(rec arrow.RecordBatch) bool {
	for _, c := range rec.Columns() {
		if !s.holds(c.Data()) {
			return false
		}
	}
	return true
}

func (s *Slot) holds(data arrow.ArrayData) bool {
	for _, b := range data.Buffers() {
		if b == nil || b.Len() == 0 {
			continue
		}
		if _, ok := s.offset(b.Bytes()); !ok {
			return false
		}
	}
	for _, c := range data.Children() {
		if !s.holds(c) {
			return false
		}
	}
	return true
}

// Pieces is the image of a batch that lies in no slot, as pieces of memory that follow each other: its head, then its
// buffers with what aligns them. It refers to the buffers of rec.
func (f *Format) Pieces(sequence uint64, meta []byte, rec arrow.RecordBatch) (pieces [][]byte, total, head int, err error) {
	var fill [alignment]byte
	at := f.HeadBytes()
	var body [][]byte
	place := func(b []byte) (int, bool) {
		if gap := (alignment - at%alignment) % alignment; gap > 0 {
			body = append(body, fill[:gap])
			at += gap
		}
		offset := at
		body = append(body, b)
		at += len(b)
		return offset, true
	}
	// The table comes before the header is made, which has the size of the whole.
	for _, c := range rec.Columns() {
		if _, err := appendTable(nil, c.Data(), place); err != nil {
			return nil, 0, 0, err
		}
	}
	total, at, body = at, f.HeadBytes(), nil
	b, err := f.head(Ident{Sequence: sequence}, meta, rec, total, place)
	if err != nil {
		return nil, 0, 0, err
	}
	room := make([]byte, f.HeadBytes())
	copy(room, b)
	return append([][]byte{room}, body...), total, len(b), nil
}
