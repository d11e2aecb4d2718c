package format

import (
	"encoding/binary"
	"hash/crc32"
)

const (
	envelopeMagic  = "MRFX"
	envelopeHead   = 16
	envelopeFooter = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Seal wraps the index of a format: magic, version of the format's own layout, length of head, head, body, and a
// CRC32C of all that. docs/formats/index.md describes it.
func Seal(version uint32, head, body []byte) []byte {
	out := make([]byte, 0, envelopeHead+len(head)+len(body)+envelopeFooter)
	out = append(out, envelopeMagic...)
	out = binary.LittleEndian.AppendUint32(out, version)
	out = binary.LittleEndian.AppendUint64(out, uint64(len(head)))
	out = append(append(out, head...), body...)
	return binary.LittleEndian.AppendUint32(out, crc32.Checksum(out, castagnoli))
}

// Unseal is the head and body that Seal wrapped. Anything else is BadData.
func Unseal(raw []byte, version uint32) (head, body []byte, err error) {
	if len(raw) < envelopeHead+envelopeFooter || string(raw[:4]) != envelopeMagic {
		return nil, nil, Damaged("it is no shard index")
	}
	if v := binary.LittleEndian.Uint32(raw[4:]); v != version {
		return nil, nil, Damaged("it has version %d, this program reads version %d", v, version)
	}
	content := raw[:len(raw)-envelopeFooter]
	if got, want := crc32.Checksum(content, castagnoli), binary.LittleEndian.Uint32(raw[len(content):]); got != want {
		return nil, nil, Damaged("its checksum is %08x, should be %08x", got, want)
	}
	n := binary.LittleEndian.Uint64(raw[8:])
	if n > uint64(len(content)-envelopeHead) { //nolint:gosec // not negative
		return nil, nil, Damaged("its header does not fit its size")
	}
	rest := content[envelopeHead:]
	return rest[:n:n], rest[n:], nil
}

// AppendText appends a text with its length.
func AppendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// Reader takes values off bytes. What does not fit sets Bad and yields zero values.
type Reader struct {
	Rest []byte
	Bad  bool
}

// Uvarint takes a number.
func (r *Reader) Uvarint() uint64 {
	v, n := binary.Uvarint(r.Rest)
	if n <= 0 {
		r.Bad, r.Rest = true, nil
		return 0
	}
	r.Rest = r.Rest[n:]
	return v
}

// Int takes a number of at most max.
func (r *Reader) Int(max int64) int64 {
	v := r.Uvarint()
	if v > uint64(max) { //nolint:gosec // not negative
		r.Bad, r.Rest = true, nil
		return 0
	}
	return int64(v) //nolint:gosec // at most max
}

// Text takes a text.
func (r *Reader) Text() string {
	n := r.Uvarint()
	if n > uint64(len(r.Rest)) {
		r.Bad, r.Rest = true, nil
		return ""
	}
	s := string(r.Rest[:n])
	r.Rest = r.Rest[n:]
	return s
}
