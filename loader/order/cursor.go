package order

import (
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"strings"

	"github.com/millrace/millrace/internal/errkind"
)

// MaxJobBytes is the longest job name with which a cursor is sure to fit in [MaxCursorBytes].
const MaxJobBytes = 200

// MaxCursorBytes is the most characters that [Cursor.String] has for job names up to MaxJobBytes.
const MaxCursorBytes = 500

// Cursor is a place in the stream of a job, from which every rank can go on. It is equal on all ranks and says
// nothing of world size or batch size.
type Cursor struct {
	// Job is the name of the job.
	Job string
	// Order is the digest of all that the order of rows depends on, Pixels of all else that their bytes depend on.
	Order, Pixels Digest
	// Epoch, Step and Rows: the epoch under way, and the steps and rows of it that were consumed.
	Epoch, Step, Rows uint64
	// Partition is the source partition of the next row, RowInPartition that row's place in its output.
	Partition, RowInPartition uint64
	// LogPosition and LogHash name the state of the job log that the cursor was taken under.
	LogPosition uint64
	LogHash     Digest
}

const (
	cursorPrefix  = "mr"
	cursorVersion = "1"
	cursorCRC     = 4
	// maxCursorText is far above what any release writes; longer input is refused unread.
	maxCursorText = 16 << 10
	// maxLengthBytes is how many bytes a length up to maxCursorText takes.
	maxLengthBytes = 3
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// String is c as one word: "mr1." and the base64url of a binary form that ends in a CRC32C.
func (c Cursor) String() string {
	body := make([]byte, 0, 160+len(c.Job))
	body = binary.AppendUvarint(body, uint64(len(c.Job)))
	body = append(body, c.Job...)
	body = append(body, c.Order[:]...)
	body = append(body, c.Pixels[:]...)
	for _, v := range [...]uint64{c.Epoch, c.Step, c.Rows, c.Partition, c.RowInPartition, c.LogPosition} {
		body = binary.AppendUvarint(body, v)
	}
	body = append(body, c.LogHash[:]...)
	// The length comes first, so that a cursor that was cut off can be told from one that was damaged.
	out := binary.AppendUvarint(nil, uint64(len(body)))
	out = append(out, body...)
	out = binary.BigEndian.AppendUint32(out, crc32.Checksum(out, castagnoli))
	return cursorPrefix + cursorVersion + "." + base64.RawURLEncoding.EncodeToString(out)
}

// ParseCursor reads what [Cursor.String] writes, and nothing else. Its errors, of kind Invalid, say whether s is no
// cursor at all, one of another version, cut off, or damaged.
func ParseCursor(s string) (Cursor, error) {
	text, err := cursorText(s)
	if err != nil {
		return Cursor{}, err
	}
	raw, err := decodeCursorText(text)
	if err != nil {
		return Cursor{}, err
	}
	body, err := cursorBody(raw)
	if err != nil {
		return Cursor{}, err
	}
	c, ok := decodeCursor(body)
	if !ok || c.String() != s {
		return Cursor{}, errkind.Errorf(errkind.Invalid, "cursor is damaged: its checksum is right, but its fields are not; use another checkpoint")
	}
	return c, nil
}

// cursorText is the part of s after its prefix, the version having been checked.
func cursorText(s string) (string, error) {
	if len(s) > maxCursorText {
		return "", errkind.Errorf(errkind.Invalid, "text of %d bytes is not a cursor: cursors have at most a few hundred", len(s))
	}
	head, text, found := strings.Cut(s, ".")
	version, isCursor := strings.CutPrefix(head, cursorPrefix)
	switch {
	case s == "":
		return "", errkind.Errorf(errkind.Invalid, "cursor is empty; leave it out to begin at the start")
	case !isCursor || !isNumber(version):
		if strings.HasPrefix(cursorPrefix+cursorVersion+".", s) {
			return "", errkind.Errorf(errkind.Invalid, "cursor %q is cut off after %d characters", s, len(s))
		}
		return "", errkind.Errorf(errkind.Invalid, "%.20q is not a cursor: those begin with %q", s, cursorPrefix+cursorVersion+".")
	case version != cursorVersion:
		return "", errkind.Errorf(errkind.Invalid, "cursor is of version %.8s, and this release reads version %s; resume with the release that saved it",
			version, cursorVersion)
	case !found || text == "":
		return "", errkind.Errorf(errkind.Invalid, "cursor %q is cut off after its version", s)
	}
	return text, nil
}

func isNumber(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// decodeCursorText is text from base64. A last character that stands alone holds no byte yet: the text was cut there.
func decodeCursorText(text string) ([]byte, error) {
	for i := range len(text) {
		if c := text[i]; c >= 0x80 || !isBase64URL(c) {
			return nil, errkind.Errorf(errkind.Invalid, "cursor is damaged: character %d is %q, which no cursor holds",
				len(cursorPrefix+cursorVersion)+1+i, text[i:i+1])
		}
	}
	whole := text
	if len(text)%4 == 1 {
		whole = text[:len(text)-1]
	}
	// Stray bits in the last character are caught where the text is compared with what its content is written as.
	raw, err := base64.RawURLEncoding.DecodeString(whole)
	if err != nil {
		return nil, errkind.Errorf(errkind.Invalid, "cursor is damaged: %w", err)
	}
	return raw, nil
}

func isBase64URL(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_'
}

// cursorBody is the content of raw: the part between its length and its checksum, both checked.
func cursorBody(raw []byte) ([]byte, error) {
	length, n := binary.Uvarint(raw)
	if n == 0 && len(raw) < maxLengthBytes {
		return nil, errkind.Errorf(errkind.Invalid, "cursor is cut off after its version; copy it whole")
	}
	if n <= 0 || length > maxCursorText {
		return nil, errkind.Errorf(errkind.Invalid, "cursor is damaged: its length is impossible; use another checkpoint")
	}
	want := n + int(length) + cursorCRC
	switch {
	case len(raw) < want:
		return nil, errkind.Errorf(errkind.Invalid, "cursor is cut off: %d bytes are there of %d; copy it whole", len(raw), want)
	case len(raw) > want:
		return nil, errkind.Errorf(errkind.Invalid, "cursor is damaged: %d bytes follow its end; copy it alone", len(raw)-want)
	}
	sum := binary.BigEndian.Uint32(raw[want-cursorCRC:])
	if crc32.Checksum(raw[:want-cursorCRC], castagnoli) != sum {
		return nil, errkind.Errorf(errkind.Invalid, "cursor is damaged: its checksum does not match; use another checkpoint")
	}
	return raw[n : want-cursorCRC], nil
}

// decodeCursor reads the fields of body, all of it.
func decodeCursor(body []byte) (Cursor, bool) {
	var c Cursor
	r := fieldReader{rest: body, ok: true}
	c.Job = string(r.bytes(r.uvarint()))
	copy(c.Order[:], r.bytes(uint64(len(c.Order))))
	copy(c.Pixels[:], r.bytes(uint64(len(c.Pixels))))
	for _, v := range [...]*uint64{&c.Epoch, &c.Step, &c.Rows, &c.Partition, &c.RowInPartition, &c.LogPosition} {
		*v = r.uvarint()
	}
	copy(c.LogHash[:], r.bytes(uint64(len(c.LogHash))))
	return c, r.ok && len(r.rest) == 0
}

// fieldReader takes fields from the front of rest. After one that is not there, ok is false and all others are empty.
type fieldReader struct {
	rest []byte
	ok   bool
}

func (r *fieldReader) bytes(n uint64) []byte {
	if !r.ok || n > uint64(len(r.rest)) {
		r.ok = false
		return nil
	}
	out := r.rest[:n]
	r.rest = r.rest[n:]
	return out
}

func (r *fieldReader) uvarint() uint64 {
	v, n := binary.Uvarint(r.rest)
	if !r.ok || n <= 0 {
		r.ok = false
		return 0
	}
	r.rest = r.rest[n:]
	return v
}
