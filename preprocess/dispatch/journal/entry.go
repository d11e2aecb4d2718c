package journal

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"

	"github.com/millrace/millrace/internal/errkind"
)

// Entry is what is written at once.
type Entry struct {
	// Number in the log, from 1 without gaps.
	Number uint64
	// Term of the writer.
	Term uint64
	// Writer tells entries of two writers apart that are else the same.
	Writer string
	// Snapshot, if any, is the state before Records: nothing earlier is needed.
	Snapshot *State
	Records  []Record
}

// An entry is encoded as magic, number, term, length of the body, CRC32C of all these and the body, and the body, JSON.
const (
	magic      = "mrlog1\n\x00"
	headerSize = len(magic) + 8 + 8 + 4 + 4
	// MaxEntry is the most bytes that an entry may have.
	MaxEntry = 64 << 20
)

type body struct {
	Writer   string   `json:"writer"`
	Snapshot *State   `json:"snapshot,omitempty"`
	Records  []Record `json:"records,omitempty"`
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Encode is e as bytes.
func (e *Entry) Encode() ([]byte, error) {
	text, err := json.Marshal(body{Writer: e.Writer, Snapshot: e.Snapshot, Records: e.Records})
	if err != nil {
		return nil, fmt.Errorf("encoding entry %d of a log: %w", e.Number, err)
	}
	if len(text) > MaxEntry-headerSize {
		return nil, errkind.Errorf(errkind.Exhausted, "entry %d of a log has %d bytes; at most %d are allowed", e.Number, len(text), MaxEntry)
	}
	out := make([]byte, 0, headerSize+len(text))
	out = append(out, magic...)
	out = binary.BigEndian.AppendUint64(out, e.Number)
	out = binary.BigEndian.AppendUint64(out, e.Term)
	out = binary.BigEndian.AppendUint32(out, uint32(len(text))) //nolint:gosec // Checked above.
	sum := crc32.Update(crc32.Checksum(out, castagnoli), castagnoli, text)
	out = binary.BigEndian.AppendUint32(out, sum)
	return append(out, text...), nil
}

// Decode reads what [Entry.Encode] writes. Anything else is an error of kind BadData that says whether the entry was cut
// off, is damaged, or is of another version.
func Decode(data []byte) (*Entry, error) {
	if !bytes.HasPrefix(data, []byte(magic)) {
		if len(data) < len(magic) && bytes.HasPrefix([]byte(magic), data) {
			return nil, errkind.Errorf(errkind.BadData, "entry of a log was cut off after %d bytes", len(data))
		}
		return nil, errkind.Errorf(errkind.BadData, "this is no entry of a log, or one of another version")
	}
	if len(data) < headerSize {
		return nil, errkind.Errorf(errkind.BadData, "entry of a log was cut off after %d bytes", len(data))
	}
	at := len(magic)
	e := &Entry{Number: binary.BigEndian.Uint64(data[at:]), Term: binary.BigEndian.Uint64(data[at+8:])}
	size, sum := binary.BigEndian.Uint32(data[at+16:]), binary.BigEndian.Uint32(data[at+20:])
	text := data[headerSize:]
	switch {
	case uint64(len(text)) < uint64(size):
		return nil, errkind.Errorf(errkind.BadData, "entry %d of a log was cut off: %d of %d bytes are there", e.Number, len(text), size)
	case uint64(len(text)) > uint64(size) || len(data) > MaxEntry:
		return nil, errkind.Errorf(errkind.BadData, "entry %d of a log has more bytes than it says", e.Number)
	case crc32.Update(crc32.Checksum(data[:headerSize-4], castagnoli), castagnoli, text) != sum:
		return nil, errkind.Errorf(errkind.BadData, "entry %d of a log is damaged: its checksum differs", e.Number)
	}
	var b body
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&b); err != nil {
		return nil, errkind.With(errkind.BadData, fmt.Errorf("entry %d of a log: %w", e.Number, err))
	}
	e.Writer, e.Snapshot, e.Records = b.Writer, b.Snapshot, b.Records
	return e, nil
}

// Replayed is a log as far as it was read.
type Replayed struct {
	State State
	// Number of the last entry, 0 in an empty log.
	Number uint64
	// Since is the number of entries after the last snapshot.
	Since int
}

// Take follows with the next entry: one without a snapshot must be the next in number, and terms never fall. Errors, of
// kind BadData, leave r unchanged.
func (r *Replayed) Take(e *Entry) error {
	next := r.State.Clone()
	since := r.Since + 1
	switch {
	case e.Snapshot != nil:
		next, since = e.Snapshot.Clone(), 0
		if e.Number <= r.Number {
			return errkind.Errorf(errkind.BadData, "entry %d of a log follows entry %d", e.Number, r.Number)
		}
	case e.Number != r.Number+1:
		return errkind.Errorf(errkind.BadData, "entry %d of a log follows entry %d", e.Number, r.Number)
	}
	for _, record := range e.Records {
		if err := next.Apply(record); err != nil {
			return fmt.Errorf("entry %d of a log: %w", e.Number, err)
		}
	}
	if e.Term != next.Term || e.Term < r.State.Term {
		return errkind.Errorf(errkind.BadData, "entry %d of a log is of term %d in a log of term %d", e.Number, e.Term, max(next.Term, r.State.Term))
	}
	r.State, r.Number, r.Since = *next, e.Number, since
	return nil
}
